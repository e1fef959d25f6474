"""Weights of other libraries' layers, where their placement is one of ours: Post-LN, or Pre-LN."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.layers.stack import PlacedStack
from fairseq_lnplace.layers.transformer_layer import TransformerLayer

__all__ = ["load_weights"]

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
        pre: whether it is Pre-LN; None where the layer's ``norm_first`` tells.
        joined: the start of the names of matrices that hold those of queries, keys and values, one below the other.
        transposed: names of matrices that are stored as input x output.
    """

    title: str
    sign: str
    names: Mapping[str, str]
    pre: bool | None
    joined: str = r"^$"
    transposed: str = r"^$"


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
    None,
    r"\.qkv\.",
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
    False,
)
BART = Style("Hugging Face's BART", "self_attn_layer_norm.weight", {}, False)
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
    True,
    r"\.qkv\.",
    r"\.c_\w+\.weight$",
)


def load_weights(target: nn.Module, source: nn.Module) -> None:
    """Copy the weights of another library's layer, or stack of layers, into ours.

    They are those of ``torch.nn``'s Transformer and of Hugging Face's BERT, BART and GPT-2, and what is built like
    them. Sizes, activation and ``layer_norm_eps`` (1e-12 in BERT) are yours to set alike; BART's and BERT's layers go
    with the placement postln, GPT-2's with preln, and its stack with preln_final.

    Args:
        target: a layer or a stack of this package.
        source: theirs; of a stack the module that has the layers as ``layers``, ``layer`` or ``h``.

    Raises:
        LnplaceError: the source is of another kind, or its placement, depth, shapes or epsilon differ.
    """
    if isinstance(target, PlacedStack):
        load_stack(target, source)
    elif isinstance(target, TransformerLayer):
        load_layer(target, source)
    else:
        raise must_be("target", "a layer or a stack of this package", type(target).__name__)


def load_stack(target: PlacedStack, source: nn.Module) -> None:
    """Copy all layers of a stack, and its final norm; see :func:`load_weights`."""
    children = dict(source.named_children())
    lists = [child for name in LAYERS if isinstance(child := children.get(name), nn.ModuleList)]
    layers = lists[0] if lists else None
    if layers is None or len(layers) != len(target.layers):
        found = "none" if layers is None else len(layers)
        raise must_be("source", f"a stack of {len(target.layers)} layers in {' or '.join(LAYERS)}", f"one of {found}")
    norm = next((children[name] for name in FINAL_NORMS if isinstance(children.get(name), nn.LayerNorm)), None)
    if (norm is None) != (target.layer_norm is None):
        raise must_be("source", f"{'without' if norm else 'with'} a final norm, as the target", "not")
    for ours, theirs in zip(target.layers, layers, strict=True):
        load_layer(ours, theirs)
    if norm is not None and target.layer_norm is not None:
        target.layer_norm.load_state_dict(norm.state_dict())


def load_layer(target: TransformerLayer, source: nn.Module) -> None:
    """Copy one layer; see :func:`load_weights`."""
    theirs = source.state_dict()
    style = next((each for each in (TORCH, BERT, GPT2, BART) if each.sign in theirs), None)
    if style is None:
        raise must_be("source", "a layer of torch.nn, BERT, BART or GPT-2", type(source).__name__)
    pre = bool(getattr(source, "norm_first", False)) if style.pre is None else style.pre
    check_placement(target, style, pre)
    epsilons = {module.eps for module in source.modules() if isinstance(module, nn.LayerNorm)}
    if epsilons - {target.final_layer_norm.eps}:
        raise must_be("layer_norm_eps", f"{min(epsilons)}, as the source's", target.final_layer_norm.eps)
    try:
        target.load_state_dict(renamed(theirs, style, cross=target.encoder_attn is not None))
    except RuntimeError as error:
        first = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), str(error))
        raise LnplaceError(f"`source` must fit the target, but does not: {first}") from error


def check_placement(target: TransformerLayer, style: Style, pre: bool) -> None:
    """Raise LnplaceError unless the layer is plain Pre-LN or Post-LN, whichever the source is."""
    slots = [getattr(target, name) for name in target.norm_names()]
    plain = target.spec.placement.name in ("postln", "preln", "preln_final") and target.spec.norm_type == "layernorm"
    if not plain or any(each.in_norm != pre for each in slots):
        raise must_be(
            "placement",
            f"{'preln_final or preln' if pre else 'postln'} for {style.title}'s layers",
            target.spec.placement.name,
        )


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
