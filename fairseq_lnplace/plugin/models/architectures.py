"""The named sizes, and the architectures they give together with the placements."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY, register_model_architecture
from omegaconf import OmegaConf, open_dict

from fairseq_lnplace import placements
from fairseq_lnplace.errors import LnplaceError


def transformer_size(dim: int, ffn: int, heads: int, layers: int, **others: Any) -> dict[str, Any]:
    """Return the preset of an encoder-decoder; where not given, the decoder's widths follow the encoder's."""
    return {
        "encoder_embed_dim": dim,
        "encoder_ffn_embed_dim": ffn,
        "encoder_attention_heads": heads,
        "encoder_layers": layers,
        "decoder_attention_heads": heads,
        "decoder_layers": layers,
        **others,
    }


# suffix -> preset; sizes as of stock fairseq's architectures of these names
TRANSFORMER_SIZES: dict[str, dict[str, Any]] = {
    "": transformer_size(512, 2048, 8, layers=6),
    "_tiny": transformer_size(128, 512, 4, layers=3),
    "_iwslt_de_en": transformer_size(512, 1024, 4, layers=6),
    "_wmt_en_de": transformer_size(512, 2048, 8, layers=6),
    "_wmt_en_de_big": transformer_size(1024, 4096, 16, layers=6, dropout=0.3, attention_dropout=0.1),
}


def lm_size(dim: int, ffn: int, heads: int, layers: int, **others: Any) -> dict[str, Any]:
    """Return the preset of a decoder-only model."""
    return {
        "decoder_embed_dim": dim,
        "decoder_ffn_embed_dim": ffn,
        "decoder_attention_heads": heads,
        "decoder_layers": layers,
        **others,
    }


LM_SIZES: dict[str, dict[str, Any]] = {
    "": lm_size(512, 2048, 8, layers=6),
    "_tiny": lm_size(128, 512, 4, layers=3),
    "_gpt2_small": lm_size(1024, 4096, 16, layers=24, dropout=0.1, attention_dropout=0.1, activation_fn="gelu"),
}


def bert_size(dim: int, ffn: int, heads: int, layers: int) -> dict[str, Any]:
    """Return the preset of an encoder-only model."""
    return {
        "encoder_embed_dim": dim,
        "encoder_ffn_embed_dim": ffn,
        "encoder_attention_heads": heads,
        "encoder_layers": layers,
    }


BERT_SIZES: dict[str, dict[str, Any]] = {
    "": bert_size(768, 3072, 12, layers=12),
    "_base": bert_size(768, 3072, 12, layers=12),
    "_tiny": bert_size(128, 512, 4, layers=3),
}


def fill_in(cfg: Any, preset: Mapping[str, Any]) -> None:
    """Fill in what the user left open in ``cfg`` (a Namespace or a DictConfig), in place."""
    with open_dict(cfg) if OmegaConf.is_config(cfg) else nullcontext():
        for name, value in preset.items():
            if getattr(cfg, name, None) is None:
                setattr(cfg, name, value)


def register_architectures(model: str, prefix: str, sizes: Mapping[str, Mapping[str, Any]]) -> None:
    """Register ``prefix + placement + suffix`` for every placement and size as an architecture of ``model``.

    Raises:
        LnplaceError: another package has taken one of the names.
    """
    for placement in placements.names():
        for suffix, size in sizes.items():
            register_architecture(model, f"{prefix}{placement}{suffix}", {**size, "placement": placement})


def register_architecture(model: str, arch: str, preset: Mapping[str, Any]) -> None:
    """Register one architecture; see :func:`register_architectures`.

    Raises (when it is used):
        LnplaceError: the user gave another placement.
    """
    if arch in ARCH_MODEL_REGISTRY:
        raise LnplaceError(f"`{arch}` must be free for fairseq_lnplace, but another package has registered it")

    @register_model_architecture(model, arch)  # type: ignore[untyped-decorator]
    def architecture(cfg: Any) -> None:
        given = getattr(cfg, "placement", None)
        if given not in (None, preset["placement"]):
            raise LnplaceError(f"`--placement` must be {preset['placement']} with --arch {arch}, but is {given}")
        fill_in(cfg, preset)
