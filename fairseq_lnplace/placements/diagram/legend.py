"""The lines below a diagram: the equation, and its symbols with their values at the start of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fairseq_lnplace.placements import equation
from fairseq_lnplace.placements.at_depth import Depth, slots_of
from fairseq_lnplace.placements.spec import Options, Placement

__all__ = ["legend"]


def legend(placement: Placement, options: Options, depth: Depth, about: dict[str, Any]) -> Iterator[str]:
    """Yield the lines below the diagram: the equation, and its symbols with their values at the start of training."""
    side = depth.sides[-1]
    for first, last in equation.layer_ranges(placement, options, depth.positions(side)[-1]):
        layer = list(slots_of(placement.at(depth.positions(side)[first - 1], options), depth.branches(side)))
        updates = [(branch, equation.update(placement, slots, branch)) for branch, slots in layer]
        if len({slots for _, slots in layer}) == 1:
            updates = [("F", equation.update(placement, layer[0][1], "F"))]
        before = "" if depth.layers(side) == last - first + 1 else f"{equation.range_name(first, last)}:   "
        yield before + "      ".join(line for _, lines in updates for line in lines)
        yield from (line for branch, slots in layer for line in equation.inside(placement, slots, branch))
    yield from equation.scores(placement, placement.mean_scores(depth.positions(side)[0], options) != 0)
    yield from equation.history(placement)
    for row in about["constants"]:
        at_start = " at the start" if "learned" in row["meaning"] else ""
        yield f"{row['symbol']}{spans(row['values'], ' = ', at_start)}: {row['meaning']}"
    for row in about["initialisation"]:
        apart = "" if row["cross_attention"] else " (cross-attention apart)"
        yield f"initialisation of {', '.join(row['matrices'])}{apart}: times{spans(row['values'], ' ')}"


def spans(values: dict[str, list[float]], before: str, after: str = "") -> str:
    """Return a constant's values in both stacks; nothing where it has none."""
    texts = {side: span(numbers) for side, numbers in values.items() if numbers}
    named = (
        list(texts.values())[:1]
        if len(set(texts.values())) == 1
        else [f"{text} ({side})" for side, text in texts.items()]
    )
    return f"{before}{', '.join(named)}{after}" if named else ""


def span(numbers: Sequence[float]) -> str:
    """Return a constant's value, or its first and last where it differs by layer."""
    return f"{numbers[0]:.4g}" if len(set(numbers)) <= 1 else f"{numbers[0]:.4g} … {numbers[-1]:.4g}"
