"""Which stacks stock fairseq has too: Post-LN, and Pre-LN with a final norm, up to factors that fold into weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fairseq_lnplace.placements.spec import ONE, UNIT, Options, Placement, Position, Slots

__all__ = ["IDENTITY", "STOCK_PLACEMENTS", "has_factors", "normalize_before", "obstacle"]

# These two, with LayerNorm, are fairseq's own normalize_before off and on: their state dicts are stock's. All others'
# have an entry more, which tells what they are.
STOCK_PLACEMENTS = {"postln": False, "preln_final": True}
IDENTITY = "placement_version"  # fairseq's EMA averages every entry, bytes too, unless its name says "version"

POST, PRE = Slots(add_norm=True), Slots(in_norm=True)
STOCK_EPS = 1e-5

# What stock has no place for, by the name of the slot.
STACK_SLOTS = {
    "embedding_norm": "it normalises the embeddings",
    "second_stream": "it carries a second stream",
    "residual_scores": "it hands attention scores on from layer to layer",
}
SUBLAYER_SLOTS = {
    "out_norm": "it normalises a branch's output",
    "inner_norm": "it normalises inside a sub-layer",
    "qkv_norm": "it normalises queries, keys and values",
    "qk_norm": "it normalises queries and keys",
    "head_scale": "it scales attention heads",
    "layer_skip": "it adds a layer's input again at the layer's end",
    "gate": "it gates the stream after a sub-layer",
}


def normalize_before(slots: Slots) -> bool | None:
    """Return stock's ``normalize_before`` for one sub-layer; None where it is neither of stock's two.

    Folded are the factor of a branch (into its last matrix), Pre-LN's factor after the norm (into the norm), and
    Post-LN's factor of the skip (into the norm before it and, divided by, into the branch's first matrices). In
    Pre-LN nothing stands before the skip that could take its factor.
    """
    if replace(slots, branch_scale=UNIT, in_scale=ONE) == PRE:
        return True
    return False if replace(slots, branch_scale=UNIT, skip_scale=UNIT) == POST else None


def has_factors(slots: Slots) -> bool:
    """Return whether a sub-layer that stock has too has factors that must be folded."""
    return slots not in (PRE, POST)


def obstacle(placement: Placement, options: Options, positions: Sequence[Position]) -> str | None:
    """Return why stock fairseq has no stack like this one; None where it has.

    Args:
        placement: the method, its variant resolved.
        options: the method's options.
        positions: the places of the stack's layers.
    """
    for slot, reason in STACK_SLOTS.items():
        if getattr(placement, slot):
            return reason
    if placement.history != "none":
        return "its layers read the outputs of all layers below"
    first = positions[0]
    branches = (0, 1, 2) if first.side == "decoder" and first.encoder_layers and first.cross else (0, 2)
    slots = [placement.at(position, options).slots[branch] for position in positions for branch in branches]
    for each in slots:
        for slot, reason in SUBLAYER_SLOTS.items():
            if getattr(each, slot):
                return reason
        if not (each.in_norm or each.add_norm):
            return "it has sub-layers without a norm"
        if each.in_norm and each.add_norm:
            return "it normalises both a branch's input and the sum"
        if normalize_before(each) is None:
            return "it scales what no weights beside it can take over"
    kinds = {normalize_before(each) for each in slots}
    if len(kinds) > 1:
        return "some of its sub-layers are Post-LN and some Pre-LN"
    pre = kinds == {True}
    if placement.final_norm and not pre:
        return "its Post-LN ends with a further norm"
    if placement.final_norm and placement.final_norm_eps not in (None, STOCK_EPS):
        return f"its final norm adds {placement.final_norm_eps} to the variance"
    if pre and not placement.final_norm and first.side == "encoder":
        return "stock's Pre-LN encoder always ends with a norm"
    return None
