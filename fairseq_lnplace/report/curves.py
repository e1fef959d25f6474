"""What is drawn against the course of a training: a line for each group, with the band over its seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_lnplace.runs.groups import Group
from fairseq_lnplace.runs.records import Evaluation
from fairseq_lnplace.runs.trained_run import TrainedRun
from fairseq_lnplace.runs.training_log import Row

__all__ = ["UNITS", "Array", "Line", "Metric", "line_of", "metrics_of", "progress_of"]

Array = NDArray[np.float64]
Points = tuple[Array, Array]

# How far a training has come: the unit, and what an axis calls it.
UNITS = {"updates": "updates", "epochs": "epochs", "minutes": "minutes of updates, without validation"}
# Points in one figure and in one line; longer lines are averaged over neighbouring points.
POINTS = 4000
POINTS_EACH = 400


@dataclass(frozen=True)
class Line:
    """What a figure draws of a group: means over its seeds.

    Attributes:
        title: the group's, or another's that is drawn like one.
        placement, variant: say the style, see :func:`~fairseq_lnplace.palette.style_of`.
        xs, ys: of equal length.
        low, high: the least and the greatest over the seeds, of the same length; None of a single one.
        ends: the last finite points of the seeds that diverged.
        published: drawn as values that were taken from elsewhere.
    """

    title: str
    placement: str
    variant: int
    xs: Array
    ys: Array
    low: Array | None = None
    high: Array | None = None
    ends: Sequence[tuple[float, float]] = ()
    published: bool = False


@dataclass(frozen=True)
class Metric:
    """A number that is followed over a training.

    Attributes:
        name: short; published values name it, too.
        label: what the axis calls it.
        values: a run's updates, ascending, and values.
        logarithmic: whether the axis is.
    """

    name: str
    label: str
    values: Callable[[TrainedRun], Points]
    logarithmic: bool = False


def metrics_of(runs: Sequence[TrainedRun]) -> list[Metric]:
    """Return what at least one of the runs has."""
    subset, decoding = kind = _usual_evaluation(runs)
    search = "greedy search" if decoding.get("beam") == 1 else f"beam {decoding.get('beam')}"
    every = [
        Metric("loss", "validation loss (bits a token)", lambda run: _logged(run.log.valid, "loss")),
        Metric("bleu", f"BLEU, {subset} set, {search}", lambda run: _evaluated(run, kind)),
        Metric("eval_bleu", "BLEU by --eval-bleu", lambda run: _logged(run.log.valid, "bleu")),
        Metric("accuracy", "validation accuracy (%)", lambda run: _logged(run.log.valid, "accuracy")),
        Metric("train_loss", "training loss (bits a token)", lambda run: _logged(run.log.inner, "loss")),
        Metric("lr", "learning rate", lambda run: _logged(run.log.inner, "lr")),
        Metric("gnorm", "gradient norm before clipping", lambda run: _logged(run.log.inner, "gnorm"), True),
    ]
    return [metric for metric in every if any(len(metric.values(run)[0]) for run in runs)]


def _logged(rows: Sequence[Row], name: str) -> Points:
    """Return the updates and values of a logged number, where it is finite."""
    return _points([(row["updates"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))])


def _evaluated(run: TrainedRun, kind: tuple[str, Any]) -> Points:
    """Return BLEU at the ends of epochs."""
    found = [each for each in run.evaluations if each.epoch is not None and _kind(each) == kind]
    epochs, scores = _points(sorted((float(each.epoch or 0), each.scores["bleu"]) for each in found))
    progress = progress_of(run)
    return np.interp(epochs, progress["epochs"], progress["updates"]), scores


def _points(found: Sequence[tuple[float, float]]) -> Points:
    array = np.array(found, dtype=float).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def _kind(evaluation: Evaluation) -> tuple[str, Any]:
    return evaluation.subset, evaluation.decoding


def _usual_evaluation(runs: Sequence[TrainedRun]) -> tuple[str, Any]:
    """Return the subset and search that most checkpoints at epochs' ends were evaluated with."""
    kinds = [_kind(each) for run in runs for each in run.evaluations if each.epoch is not None]
    return max(kinds, key=kinds.count, default=("", {}))


def progress_of(run: TrainedRun) -> dict[str, Array]:
    """Return updates, ascending from 0, with the epochs and minutes that they had taken."""
    minutes = np.cumsum([row["train_wall"] / 60 for row in run.log.inner])
    updates = [row["updates"] for row in run.log.inner]
    epochs = {0.0: 0.0, **{row["updates"]: row["epoch"] for row in [*run.log.inner, *run.log.valid]}}
    known = np.array(sorted(epochs))
    return {
        "updates": known,
        "epochs": np.array([epochs[update] for update in known]),
        "minutes": np.interp(known, [0.0, *updates], [0.0, *minutes]),
    }


def line_of(group: Group, metric: Metric, unit: str, lines: int = 1) -> Line | None:
    """Return a group's line, or None if no run of it has the number.

    Between its own points a seed counts with the straight line through them; before and after it does not count.

    Args:
        unit: of UNITS.
        lines: in the same figure, which share out its points.
    """
    points = {run.folder: metric.values(run) for run in group.runs}
    runs = [run for run in group.runs if len(points[run.folder][0])]
    if not runs:
        return None
    progress = {run.folder: progress_of(run) for run in runs}

    def position(run: TrainedRun, updates: Array) -> Array:
        own = progress[run.folder]
        return np.interp(updates, own["updates"], own[unit])

    grid = np.unique(np.concatenate([points[run.folder][0] for run in runs]))
    each = np.array([np.interp(grid, *points[run.folder], left=np.nan, right=np.nan) for run in runs])
    count = max(2, min(POINTS_EACH, POINTS // lines))
    several = len(runs) > 1
    return Line(
        group.title,
        group.placement,
        group.variant,
        _thinned(np.mean([position(run, grid) for run in runs], axis=0), count),
        _thinned(np.nanmean(each, axis=0), count),
        _thinned(np.nanmin(each, axis=0), count) if several else None,
        _thinned(np.nanmax(each, axis=0), count) if several else None,
        [
            (float(position(run, points[run.folder][0][-1:])[0]), float(points[run.folder][1][-1]))
            for run in runs
            if run.state == "diverged"
        ],
    )


def _thinned(values: Array, count: int) -> Array:
    """Return at most ``count`` means of neighbouring values."""
    if len(values) <= count:
        return values
    return np.array([part.mean() for part in np.array_split(values, count)])
