"""From a model's flat configuration to what fairseq's stacks read, and the checks on the way."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields
from typing import Any

from fairseq.models.transformer import TransformerConfig

from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.models._architectures import fill_in
from fairseq_lnplace.models._method import Method, trained_layers_text
from fairseq_lnplace.placements.spec import Side

DEFAULTS = {"placement": "preln_final", "norm_type": "layernorm", "init": "xavier"}


def open_fields(flat: type) -> dict[str, Any]:
    """Return every option of the dataclass ``flat`` as left open: a Namespace, or an old checkpoint, may lack some."""
    return dict.fromkeys(each.name for each in fields(flat) if each.name != "_name")


def nested_config(cfg: Any, flat: type, method: Method) -> TransformerConfig:
    """Return a resolved flat configuration (of the dataclass ``flat``) as the nested one that fairseq's stacks read.

    The method comes along as its attribute ``method``.
    """
    names = {each.name for each in fields(flat) if not each.name.endswith("layers_to_keep")}
    given = {name: getattr(cfg, name, None) for name in names if not name.startswith("_")}
    given = {name: value for name, value in given.items() if value is not None}
    nested = TransformerConfig.from_namespace(Namespace(**given))
    nested.method = method
    return nested


def apply_pruning(cfg: Any, method: Method) -> None:
    """Write into the configuration how many layers are kept, and which layers of which depths they were."""
    text = trained_layers_text(method)
    if text is not None:
        fill_in(cfg, {"trained_layers": text})
        cfg.trained_layers = text
        for side, layers in (("encoder", method.encoder_layers), ("decoder", method.decoder_layers)):
            if layers:
                setattr(cfg, f"{side}_layers", len(layers))


def check_side(cfg: Any, method: Method, side: Side) -> None:
    """Check the options of one stack.

    Raises:
        LnplaceError: one is out of range, contradicts the placement, or cannot work in these layers.
    """
    for number in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads"):
        value = getattr(cfg, f"{side}_{number}")
        if value < 1:
            raise must_be(f"--{side}-{number.replace('_', '-')}", "at least 1", value)
    dim, heads = getattr(cfg, f"{side}_embed_dim"), getattr(cfg, f"{side}_attention_heads")
    if dim % heads:
        raise must_be(f"--{side}-attention-heads", f"a divisor of {dim}", heads)
    if getattr(cfg, f"{side}_normalize_before", None) and not method.placement.layer.self_attention.in_norm:
        raise LnplaceError(
            f"`--{side}-normalize-before` must be left out with {method.placement.name}, which does not normalise a "
            "branch's input, but is given"
        )
    if getattr(cfg, f"{side}_xformers_att_config", None):
        raise LnplaceError(f"`--{side}-xformers-att-config` must be left out: the attention is this package's own")


def check_common(cfg: Any, method: Method) -> None:
    """Check the options that the kinds of models share.

    Raises:
        LnplaceError: one contradicts the placement, or cannot work in these layers.
    """
    if getattr(cfg, "no_decoder_final_norm", None) and method.placement.final_norm:
        raise LnplaceError("`--no-decoder-final-norm` must be left out; the placement without final norm is preln")
    if getattr(cfg, "base_layers", None):
        raise must_be("--base-layers", "0, as BASE layers have no placement", cfg.base_layers)
    for flag in ("scale_fc", "scale_attn", "scale_heads", "scale_resids"):
        if getattr(cfg, flag, None):
            raise LnplaceError(f"`--{flag.replace('_', '-')}` must be left out; its place is --placement normformer")
