"""An experiment's results as a table with the levels of some factors across, and published values beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from mpmath import betainc, findroot

from fairseq_lnplace.experiments.outcomes import Outcome
from fairseq_lnplace.runs.summary import Column, columns_of

__all__ = ["Crosstab", "crosstab", "half_width", "markdown"]

QUALITY = ("valid loss", "accuracy", "BLEU")
Levels = tuple[str, ...]


@dataclass(frozen=True)
class Crosstab:
    """A table of text.

    Attributes:
        caption: what the numbers are.
        headings: of the columns; those of the rows' factors come first.
        lines: the rows, each with an entry for every heading.
    """

    caption: str
    headings: list[str]
    lines: list[list[str]]


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of the mean of at least two values, by Student's t."""
    freedom = len(values) - 1

    def above(t: Any) -> Any:
        """The probability beyond ±t, less what it is to be."""
        return betainc(freedom / 2, 0.5, 0, freedom / (freedom + t * t), regularized=True) - 0.05

    return float(findroot(above, (1, 30), solver="anderson") * stdev(values) / len(values) ** 0.5)


def crosstab(
    outcomes: Sequence[Outcome], layout: Mapping[str, Sequence[str]], published: Sequence[Mapping[str, Any]] = ()
) -> Crosstab:
    """Return the table of the outcomes that have all the factors; seeds share an entry.

    Args:
        layout: the factors down (``rows``) and across (``columns``).
        published: a paper's values, each with the ``levels`` it holds for and ``bleu``.
    """
    down, across = layout["rows"], layout["columns"]
    entries: dict[tuple[Levels, Levels], list[Outcome]] = {}
    for outcome in outcomes:
        if {*down, *across} <= outcome.levels.keys():
            place = _at(outcome, down), _at(outcome, across)
            entries.setdefault(place, []).append(outcome)
    rows, columns = (list(dict.fromkeys(place[side] for place in entries)) for side in (0, 1))
    runs = [outcome.run for here in entries.values() for outcome in here]
    shown = [column for column in columns_of(runs) if column.name in QUALITY]
    lines = [[*row, *(_entry(entries.get((row, column), []), shown, published) for column in columns)] for row in rows]
    caption = " / ".join(column.name for column in shown)
    several = any(len(here) > 1 for here in entries.values())
    beside = f"{', ± half of the 95 % interval over seeds' * several}{', in brackets as published' * bool(published)}"
    return Crosstab(f"{caption}{beside}", [*down, *(", ".join(column) or caption for column in columns)], lines)


def _at(outcome: Outcome, factors: Sequence[str]) -> Levels:
    return tuple(outcome.levels[factor] for factor in factors)


def _entry(here: Sequence[Outcome], shown: Sequence[Column], published: Sequence[Mapping[str, Any]]) -> str:
    """Return what the table says of one setting."""
    if not here:
        return ""
    numbers = [_number([outcome.run for outcome in here], column) for column in shown]
    states = {outcome.run.state for outcome in here} - {"finished"}
    known = [each["bleu"] for each in published if each["levels"].items() <= here[0].levels.items()]
    brackets = [*sorted(states), *(f"{value:g}" for value in known)]
    return " / ".join(numbers) + (f" ({', '.join(brackets)})" if brackets else "")


def _number(runs: Sequence[Any], column: Column) -> str:
    """Return the mean over seeds, and what it may be off by."""
    values = [float(value) for run in runs if (value := column.value(run)) is not None]
    if not values:
        return "–"
    spread = f" ± {half_width(values):.{column.digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{column.digits}f}{spread}"


def markdown(table: Crosstab) -> str:
    """Return the table in Markdown."""
    rule = ["---"] * len(table.headings)
    return "\n".join(f"| {' | '.join(line)} |" for line in (table.headings, rule, *table.lines)) + "\n"
