"""Norms of queries and keys, beside any placement that has none of its own."""

from __future__ import annotations

import math
from dataclasses import replace

from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.placements.spec import Layer, Placement

__all__ = ["DEFAULT_LENGTH", "QK_NORMS", "described", "with_qk_norm"]

QK_NORMS = ("layernorm", "rmsnorm", "l2")
DEFAULT_LENGTH = 72  # pieces; ours, as the paper takes the training's own


def with_qk_norm(placement: Placement, kind: str | None, length: int | None = None) -> Placement:
    """Return a placement whose attentions normalise queries and keys over each head's features.

    - ``layernorm``, ``rmsnorm``: with a weight for all heads, and without bias (Dehghani et al. 2023, 2302.05442, which
      has LayerNorm); the scores are divided by the square root of D as ever.
    - ``l2``: to the length 1 (Henry et al. 2020, 2010.04245); instead, the scores are multiplied by g, one learned
      number for each attention. It starts at log2(n^2 - n), n the ``length`` below which 97.5 % of the training's
      sentences are.

    Args:
        placement: the method, its variant resolved.
        kind: one of QK_NORMS; None for none.
        length: n, in pieces (72).

    Raises:
        LnplaceError: there is no such kind, the method normalises queries and keys by itself, or the length is below 2
            or given with another kind.
    """
    if kind is None:
        if length is not None:
            raise LnplaceError("`--qk-norm-length` must go with --qk-norm l2, but --qk-norm is left out")
        return placement
    if kind not in QK_NORMS:
        raise must_be("--qk-norm", " or ".join(QK_NORMS), kind)
    if length is not None and (kind != "l2" or length < 2):
        raise must_be("--qk-norm-length", "at least 2, and for --qk-norm l2 alone", length)
    layers = [each for each in (placement.layer, placement.lower_layer) if each is not None]
    if any(slots.qkv_norm for layer in layers for slots in layer.slots):
        raise must_be("--qk-norm", f"left out with {placement.name}, which normalises queries and keys itself", kind)
    n = DEFAULT_LENGTH if length is None else length
    start = math.log2(n**2 - n) if kind == "l2" else 0.0

    def normalised(layer: Layer) -> Layer:
        own, cross = (replace(slots, qk_norm=kind, qk_scale=start) for slots in layer.slots[:2])
        return Layer(own, cross, layer.feed_forward)

    lower = None if placement.lower_layer is None else normalised(placement.lower_layer)
    return replace(placement, layer=normalised(placement.layer), lower_layer=lower)


def described(placement: Placement) -> list[str]:
    """Return what tells a placement with such norms from one without, for a checkpoint."""
    slots = placement.layer.self_attention
    if not slots.qk_norm:
        return []
    return [f"qk_norm={slots.qk_norm}", *([f"qk_scale={slots.qk_scale:.6g}"] if slots.qk_norm == "l2" else [])]
