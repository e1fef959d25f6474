"""What stands on a branch, in the order in which it is computed: a sub-layer and its norms and scales."""

from __future__ import annotations

from fairseq_lnplace.placements import equation
from fairseq_lnplace.placements.spec import ONE, UNIT, Slots

__all__ = ["LABELS", "after_parts", "before_parts", "inside_parts"]

LABELS = {"SA": "self-attention", "CA": "cross-attention", "FFN": "feed-forward"}

Part = tuple[str, str]  # kind of box, as the pen knows it, and text


def inside_parts(slots: Slots, branch: str) -> list[Part]:
    """Return what a sub-layer consists of, as far as norms or scales stand inside it; else the sub-layer as one."""
    attention = branch != "FFN"
    inner: list[Part] = [("norm", "LN")] if slots.inner_norm else []
    if not attention:
        return [("block", "W₁, φ"), *inner, ("block", "W₂")] if inner else [("block", LABELS[branch])]
    if not (slots.qkv_norm or slots.head_scale or slots.inner_norm):
        return [("block", LABELS[branch])]
    on_qkv = "LN on each head's q, k, v" if slots.qkv_norm == "head" else "LN on q, k, v"
    projected: list[Part] = [("block", "$W_q, W_k, W_v$"), ("norm", on_qkv)] if slots.qkv_norm else []
    heads: list[Part] = [("scale", "γ")] if slots.head_scale else []
    return [*projected, ("block", "heads"), *heads, *inner, ("block", "$W_o$")]


def before_parts(slots: Slots) -> list[Part]:
    """Return what stands between the stream and a sub-layer."""
    norm: list[Part] = [("norm", "LN")] if slots.in_norm else []
    return norm + ([("scale", "c")] if slots.in_scale is not ONE else [])


def after_parts(slots: Slots) -> list[Part]:
    """Return what stands between a sub-layer and the add."""
    norm: list[Part] = [("norm", "LN")] if slots.out_norm else []
    scaled = slots.branch_scale != UNIT
    return norm + ([("scale", equation.branch_name(slots.branch_scale))] if scaled else [])
