"""What is drawn against the layer at each time of a training: the statistics of ``--log-layer-stats``."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_lnplace.report.curves import Line
from fairseq_lnplace.runs.groups import Group, Spread
from fairseq_lnplace.runs.trained_run import TrainedRun

__all__ = ["SIDES", "Panel", "Row", "layer_line", "positions_of", "trained_panels"]

Row = Mapping[str, Any]

POSITIONS = 60  # of the slider, at most
POINTS = 50_000  # rows of the statistics at all positions of the slider, at most
SIDES = ("encoder", "decoder")
PARTS = {"SA": "self-attention", "CA": "cross-attention", "FF": "feed-forward"}


@dataclass(frozen=True)
class Panel:
    """A figure against the layer, at one or more times of the training.

    Attributes:
        frames: for each time, the lines of the same groups in the same order; a line may be empty.
    """

    name: str
    xlabel: str
    ylabel: str
    logarithmic: bool
    frames: Sequence[Sequence[Line]]


def layer_line(title: str, placement: str, variant: int, values: Mapping[int, Spread]) -> Line:
    """Return a line through the values of the layers."""
    numbers = np.array([[each.mean, each.low, each.high] for each in values.values()], dtype=float).reshape(-1, 3)
    several = any(each.count > 1 for each in values.values())
    low, high = (numbers[:, 1], numbers[:, 2]) if several else (None, None)
    return Line(title, placement, variant, np.array([*values], dtype=float), numbers[:, 0], low, high)


def positions_of(groups: Sequence[Group]) -> list[int]:
    """Return the updates at which the statistics of any run were logged, or as many of them as a page can hold."""
    updates = sorted({row["updates"] for group in groups for run in group.runs for row in run.layer_stats})
    shown = sum(len(_History(group.runs[0]).at(updates[-1])) for group in groups) if updates else 0
    count = min(len(updates), POSITIONS, max(2, POINTS // max(shown, 1)))
    return [updates[int(place)] for place in np.linspace(0, len(updates) - 1, count).round()]


class _History:
    """A run's statistics, found by update."""

    def __init__(self, run: TrainedRun) -> None:
        self.by_update: dict[int, list[Row]] = {}
        for row in run.layer_stats:
            self.by_update.setdefault(row["updates"], []).append(row)
        self.updates = sorted(self.by_update)

    def at(self, update: int) -> list[Row]:
        """Return the newest rows up to this update."""
        place = bisect.bisect_right(self.updates, update)
        return self.by_update[self.updates[place - 1]] if place else []


def trained_panels(groups: Sequence[Group], positions: Sequence[int]) -> list[Panel]:
    """Return the panels whose frames are the statistics at each of the positions."""
    groups = [group for group in groups if any(run.layer_stats for run in group.runs)]
    histories = {run.folder: _History(run) for group in groups for run in group.runs}
    there = {(row["side"], row["part"]) for history in histories.values() for row in history.at(10**12)}
    wanted: list[tuple[str, str, Callable[[Row], float | None]]] = [
        *((part, f"gradient norm, {PARTS[part]}", lambda row: row["gradient"]) for part in PARTS),
        ("FF", "E‖x‖²/d behind the layer", lambda row: row["activation"]),
        ("FF", "relative update, feed-forward", lambda row: _ratio(row["update"], row["weight"])),
    ]

    def line(group: Group, side: str, part: str, value: Callable[[Row], float | None], update: int) -> Line:
        layers: dict[int, list[float]] = {}
        for run in group.runs:
            for row in histories[run.folder].at(update):
                if (row["side"], row["part"]) == (side, part) and row["layer"] and (found := value(row)):
                    layers.setdefault(row["layer"], []).append(found)
        spreads = {layer: spread for layer in sorted(layers) if (spread := Spread.of(layers[layer]))}
        return layer_line(group.title, group.placement, group.variant, spreads)

    panels = []
    for side in SIDES:
        for number, (part, label, value) in enumerate(wanted):
            if (side, part) in there:
                frames = [[line(group, side, part, value, update) for group in groups] for update in positions]
                if any(len(each.xs) for frame in frames for each in frame):
                    panels.append(Panel(f"trained-{side}-{number}", f"{side} layer", f"{side}: {label}", True, frames))
    return panels


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
