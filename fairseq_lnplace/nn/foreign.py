"""Weights of other libraries' layers, where their placement is one of ours: Post-LN, or Pre-LN."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.layers.norm import Norm
from fairseq_lnplace.layers.stack import PlacedStack
from fairseq_lnplace.layers.transformer_layer import TransformerLayer

__all__ = ["Load", "load_of_layer", "loads_of_stack"]

Load = tuple[nn.Module, Mapping[str, Tensor]]
"""A module of ours, and its new weights by its names."""

# A stack's layers and its final norm, by the names of their attributes.
LAYERS = ("layers", "layer", "h")
FINAL_NORMS = ("norm", "ln_f", "layer_norm")


@dataclass(frozen=True)
class Style:
    """How a library names what a layer has.

    Attributes:
        title: whose it is.
        sign: a name that only its layers have.
        names: regular expressions of its names, and what they are called here.
        classes: what the name of a layer's class, or of one that it is built on, starts with.
        pre: whether it is Pre-LN; None where the layer's ``norm_first`` tells.
        joined: the start of the names of matrices that hold those of queries, keys and values, one below the other.
        transposed: names of matrices that are stored as input x output.
    """

    title: str
    sign: str
    names: Mapping[str, str]
    classes: tuple[str, ...]
    pre: bool | None
    joined: str = r"^$"
    transposed: str = r"^$"

    def has(self, layer: nn.Module) -> bool:
        """Whether a layer is of this kind: others have the same names, and their norms elsewhere (mBART, GPT-1)."""
        return any(cls.__name__.startswith(self.classes) for cls in type(layer).__mro__)


TORCH = Style(
    "torch.nn",
    "self_attn.in_proj_weight",
    {
        r"^self_attn\.in_proj_": "self_attn.qkv.",
        r"^multihead_attn\.in_proj_": "encoder_attn.qkv.",
        r"^multihead_attn\.": "encoder_attn.",
        r"^linear": "fc",
        r"^norm1": "self_attn_layer_norm",
    },
    classes=("TransformerEncoderLayer", "TransformerDecoderLayer"),
    pre=None,
    joined=r"\.qkv\.",
)
BERT = Style(
    "Hugging Face's BERT",
    "attention.self.query.weight",
    {
        r"^attention\.self\.": "self_attn.",
        r"^attention\.output\.dense": "self_attn.out_proj",
        r"^attention\.output\.LayerNorm": "self_attn_layer_norm",
        r"^crossattention\.self\.": "encoder_attn.",
        r"^crossattention\.output\.dense": "encoder_attn.out_proj",
        r"^crossattention\.output\.LayerNorm": "encoder_attn_layer_norm",
        r"\.(q)uery|\.(k)ey|\.(v)alue": r".\1\2\3_proj",
        r"^intermediate\.dense": "fc1",
        r"^output\.dense": "fc2",
        r"^output\.LayerNorm": "final_layer_norm",
    },
    classes=("Bert", "Roberta", "XLMRoberta", "Camembert", "Electra"),
    pre=False,
)
BART = Style(
    "Hugging Face's BART",
    "self_attn_layer_norm.weight",
    {},
    classes=("Bart", "Marian", "PLBart", "BlenderbotSmall"),
    pre=False,
)
GPT2 = Style(
    "Hugging Face's GPT-2",
    "attn.c_attn.weight",
    {
        r"^attn\.c_attn\.": "self_attn.qkv.",
        r"^attn\.c_proj": "self_attn.out_proj",
        r"^ln_1": "self_attn_layer_norm",
        r"^ln_2": "final_layer_norm",
        r"^mlp\.c_fc": "fc1",
        r"^mlp\.c_proj": "fc2",
    },
    classes=("GPT2",),
    pre=True,
    joined=r"\.qkv\.",
    transposed=r"\.c_\w+\.weight$",
)


def loads_of_stack(target: PlacedStack, source: nn.Module) -> list[Load]:
    """Return what to load for all layers of a stack, and its final norm; see :func:`.load_weights`."""
    children = dict(source.named_children())
    lists = [child for name in LAYERS if isinstance(child := children.get(name), nn.ModuleList)]
    layers = lists[0] if lists else None
    if layers is None or len(layers) != len(target.layers):
        found = "none" if layers is None else len(layers)
        raise must_be("source", f"a stack of {len(target.layers)} layers in {' or '.join(LAYERS)}", f"one of {found}")
    norm = next((children[name] for name in FINAL_NORMS if isinstance(children.get(name), nn.LayerNorm)), None)
    if (norm is None) != (target.layer_norm is None):
        wanted = "with" if norm is None else "without"
        raise must_be("source", f"a stack {wanted} a final norm, as the target", "another")
    loads = [load_of_layer(ours, theirs) for ours, theirs in zip(target.layers, layers, strict=True)]
    if norm is not None and target.layer_norm is not None:
        check_epsilons(norm, target.layer_norm)
        loads.append((target.layer_norm, norm.state_dict()))
    return loads


def load_of_layer(target: TransformerLayer, source: nn.Module) -> Load:
    """Return what to load for one layer; see :func:`.load_weights`."""
    theirs = source.state_dict()
    style = next((each for each in (TORCH, BERT, GPT2, BART) if each.sign in theirs and each.has(source)), None)
    if style is None:
        raise must_be("source", "a layer of torch.nn, BERT, BART or GPT-2", f"a {type(source).__name__}")
    check_placement(target, style, bool(source.norm_first) if style.pre is None else style.pre)
    check_epsilons(source, target.final_layer_norm)
    return target, renamed(theirs, style, cross=target.encoder_attn is not None)


def check_epsilons(source: nn.Module, target: Norm) -> None:
    """Raise LnplaceError unless the source's norms add to the variance what ours adds."""
    epsilons = {module.eps for module in source.modules() if isinstance(module, nn.LayerNorm)}
    if other := epsilons - {target.eps}:
        raise must_be("layer_norm_eps", f"{min(other)}, as the source's", target.eps)


def check_placement(target: TransformerLayer, style: Style, pre: bool) -> None:
    """Raise LnplaceError unless the layer is plain Pre-LN or Post-LN, whichever the source is."""
    ours = target.spec.placement.name
    if ours not in (("preln", "preln_final") if pre else ("postln",)):
        wanted = "preln_final or preln" if pre else "postln"
        raise must_be("placement", f"{wanted} for {style.title}'s layers", ours)
    if norm := target.spec.slots.self_attention.qk_norm:
        raise must_be("qk_norm", f"None for {style.title}'s layers", norm)
    if target.spec.norm_type != "layernorm":
        raise must_be("norm_type", f"layernorm for {style.title}'s layers", target.spec.norm_type)


def renamed(theirs: Mapping[str, Tensor], style: Style, cross: bool) -> dict[str, Tensor]:
    """Return a layer's weights by our names."""
    ours: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        weight = tensor.t() if re.search(style.transposed, name) else tensor
        for pattern, ours_is in style.names.items():
            name = re.sub(pattern, ours_is, name)
        if style is TORCH:
            name = re.sub("^norm2", "encoder_attn_layer_norm" if cross else "final_layer_norm", name)
            name = re.sub("^norm3", "final_layer_norm", name)
        if re.search(style.joined, name):
            for part, rows in zip("qkv", weight.chunk(3), strict=True):
                ours[name.replace(".qkv.", f".{part}_proj.")] = rows
        else:
            ours[name] = weight
    return ours
