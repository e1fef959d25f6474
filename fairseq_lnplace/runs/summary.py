"""What came out: a row of numbers for each group, and the same in a sentence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_lnplace.runs.training_log import Row
from fairseq_lnplace.runs.groups import Group
from fairseq_lnplace.runs.trained_run import TrainedRun

__all__ = ["Column", "accuracy", "as_rows", "best_validation", "columns_of", "headline", "signatures_of"]

NAMES = {"bleu": "BLEU", "chrf": "chrF", "tokenised_bleu": "tokenised BLEU"}


@dataclass(frozen=True)
class Column:
    """A number of every run.

    Attributes:
        name: the heading.
        value: the number, None where a run has none.
        digits: after the point.
        best: ``min`` or ``max``, or None where neither is better.
    """

    name: str
    value: Callable[[TrainedRun], float | None]
    digits: int
    best: Callable[[Sequence[float]], float] | None = None


def best_validation(run: TrainedRun) -> Row:
    """Return the validation with the lowest loss; empty if there was none with a finite one."""
    return min((row for row in run.log.valid if math.isfinite(row["loss"])), key=lambda row: row["loss"], default={})


def accuracy(run: TrainedRun) -> float | None:
    """Return a classifier's best accuracy on the validation set, in percent; None of another model."""
    return max((row["accuracy"] for row in run.log.valid if "accuracy" in row), default=None)


def _score(name: str) -> Column:
    """Return the column of a score of the test set."""

    def value(run: TrainedRun) -> float | None:
        return run.test.scores.get(name) if run.test else None

    return Column(NAMES.get(name, name), value, 1, max)


def columns_of(runs: Sequence[TrainedRun]) -> list[Column]:
    """Return the columns for which at least one run has a number."""
    scores = dict.fromkeys(name for run in runs if run.test for name in run.test.scores)
    every = [
        Column("updates", lambda run: run.updates, 0),
        Column("valid loss", lambda run: best_validation(run).get("loss"), 2, min),
        Column("valid ppl", lambda run: best_validation(run).get("ppl"), 1, min),
        Column("accuracy", accuracy, 1, max),
        *map(_score, scores),
        Column("minutes", lambda run: run.log.seconds / 60, 1),
    ]
    return [column for column in every if any(column.value(run) is not None for run in runs)]


def as_rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the table as data: of each group its runs, their states, and each number's mean, range and count."""
    columns = columns_of([run for group in groups for run in group.runs])
    rows = []
    for group in groups:
        spreads = {column.name: group.spread(column.value) for column in columns}
        rows.append(
            {
                "title": group.title,
                "placement": group.placement,
                "runs": [{"folder": str(run.folder), "seed": run.seed, "state": run.state} for run in group.runs],
                **{name: spread and vars(spread) for name, spread in spreads.items()},
            }
        )
    return rows


def signatures_of(runs: Sequence[TrainedRun]) -> dict[str, list[str]]:
    """Return the signatures of each score of the test set: more than one is as many kinds of score."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, signature in run.test.signatures.items() if run.test else ():
            found.setdefault(NAMES.get(name, name), {})[signature] = None
    return {name: [*signatures] for name, signatures in found.items()}


def headline(groups: Sequence[Group]) -> str:
    """Return in a sentence or two how many trainings there are, what became of them, and which is ahead."""
    runs = [run for group in groups for run in group.runs]
    states = Counter(run.state for run in runs)
    if not runs:
        return "No training."
    count = f"{len(runs)} training{'s' * (len(runs) > 1)}"
    settings = f" of {len(groups)} settings" if 1 < len(groups) < len(runs) else ""
    told = [f"{count}{settings}: {', '.join(f'{number} {state}' for state, number in states.most_common())}."]
    columns = {column.name: column for column in columns_of(runs)}
    praised = {"valid loss": "lowest validation loss", "BLEU": "highest BLEU", "accuracy": "highest accuracy"}
    for name, words in praised.items():
        if len(groups) > 1 and (column := columns.get(name)) and column.best:
            spreads = {group.title: spread for group in groups if (spread := group.spread(column.value))}
            best = column.best([spread.mean for spread in spreads.values()])
            title = next(title for title, spread in spreads.items() if spread.mean == best)
            told.append(f"The {words} is {title}'s, {best:.{column.digits}f}.")
    return " ".join(told)
