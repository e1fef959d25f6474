"""What is drawn against the layer: the statistics of ``--log-layer-stats``, and what `lnplace diagnose` measured."""

from __future__ import annotations

import bisect
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lnplace.report.curves import Line
from fairseq_lnplace.report.groups import Group, Spread
from fairseq_lnplace.report.runs import TrainedRun

__all__ = ["Measured", "Panel", "depth_rows", "measured_panels", "positions_of", "read_measured", "trained_panels"]

Row = Mapping[str, Any]

POSITIONS = 60  # of the slider, at most
SIDES = ("encoder", "decoder")
PARTS = {"SA": "self-attention", "CA": "cross-attention", "FF": "feed-forward"}
FILES = {"gradients": "gradients", "activations": "activations", "depth": "stacks"}  # and a table that each has
# file -> table, what its rows have in common, number, label, whether its axis is logarithmic
MEASURED: dict[str, list[tuple[str, Row, str, str, bool]]] = {
    "gradients": [
        ("gradients", {"matrix": matrix}, "norm_of_mean", f"‖mean gradient‖ of {symbol}", True)
        for matrix, symbol in (("fc1", "W1"), ("fc2", "W2"))
    ],
    "activations": [("activations", {}, "stream", "E‖x‖²/d of the stream", True)],
    "depth": [
        ("layers", {}, "step", "relative step of the stream", True),
        ("layers", {}, "merge_error", "merge error e", False),
        ("layers", {}, "loss_removed", "loss without the layer (bits a token)", False),
    ],
}


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


def _line(title: str, placement: str, variant: int, values: Mapping[int, Spread]) -> Line:
    """Return a line through the values of the layers."""
    numbers = np.array([[each.mean, each.low, each.high] for each in values.values()], dtype=float).reshape(-1, 3)
    several = any(each.count > 1 for each in values.values())
    low, high = (numbers[:, 1], numbers[:, 2]) if several else (None, None)
    return Line(title, placement, variant, np.array([*values], dtype=float), numbers[:, 0], low, high)


# --- while training ---------------------------------------------------------------------------------------------------


def positions_of(runs: Sequence[TrainedRun]) -> list[int]:
    """Return the updates at which the statistics of any run were logged, or POSITIONS of them, evenly chosen."""
    updates = sorted({row["updates"] for run in runs for row in run.layer_stats})
    chosen = np.linspace(0, len(updates) - 1, min(POSITIONS, len(updates))).round()
    return [int(updates[int(index)]) for index in chosen]


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
        return _line(group.title, group.placement, group.variant, spreads)

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


# --- measured afterwards ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What one call of `lnplace diagnose` wrote as JSON."""

    name: str
    path: Path
    content: Mapping[str, Any]


def read_measured(paths: Sequence[Path]) -> list[Measured]:
    """Return the measurements that lie in folders, at any depth."""
    found = dict.fromkeys(
        file.resolve() for path in paths for name in FILES for file in sorted(path.rglob(f"{name}.json"))
    )
    contents = {path: json.loads(path.read_text(encoding="utf-8")) for path in found}
    return [
        Measured(path.stem, path, content)
        for path, content in contents.items()
        if isinstance(content, dict) and "settings" in content and FILES[path.stem] in content
    ]


@dataclass(frozen=True)
class _Model:
    """A measured model, or the seeds of one setting."""

    title: str
    placement: str
    variant: int
    rows: Sequence[Row]
    group: str = ""


def _models(rows: Sequence[Row], groups: Sequence[Group]) -> list[_Model]:
    """Return the models that rows are of: those of a group are one if they are its seeds' same checkpoints."""
    of_folder = {run.folder.resolve().name: group for group in groups for run in group.runs}
    checkpoints = {row["state"].partition("/")[2] for row in rows if row["state"].partition("/")[0] in of_folder}
    seen = Counter(group.placement for group in groups)
    found: dict[str, tuple[Group | None, list[Row]]] = {}
    for row in rows:
        folder, _, checkpoint = row["state"].partition("/")
        group = of_folder.get(folder)
        more = f", {checkpoint}" if len(checkpoints) > 1 else ""
        found.setdefault(f"{group.title}{more}" if group else row["label"], (group, []))[1].append(row)
    models: list[_Model] = []
    for title, (group, own) in found.items():
        placement = own[0]["placement"]
        if group and group.title not in [model.group for model in models]:  # its first checkpoint looks like the group
            models.append(_Model(title, placement, group.variant, own, group.title))
        else:
            models.append(_Model(title, placement, seen[placement], own))
            seen[placement] += 1
    return models


def _spreads(rows: Sequence[Row], key: str, number: str) -> dict[Any, Spread]:
    """Return a number's spread for each value of a key, in order."""
    values: dict[Any, list[float]] = {}
    for row in rows:
        if row.get(key) is not None and row.get(number) is not None:
            values.setdefault(row[key], []).append(row[number])
    return {each: spread for each in sorted(values) if (spread := Spread.of(values[each]))}


def measured_panels(measured: Measured, groups: Sequence[Group]) -> Iterator[Panel]:
    """Give the panels of a measurement, each of one frame."""
    for table, common, number, label, logarithmic in MEASURED[measured.name]:
        rows = [row for row in measured.content.get(table, []) if common.items() <= row.items()]
        for side in SIDES:
            lines = [
                _line(model.title, model.placement, model.variant, spreads)
                for model in _models(rows, groups)
                if (spreads := _spreads([row for row in model.rows if row["side"] == side], "layer", number))
            ]
            if lines:
                name = "-".join(["measured", measured.path.parent.name, number, side, *map(str, common.values())])
                yield Panel(name, f"{side} layer", f"{side}: {label}", logarithmic, [lines])


def depth_rows(measured: Measured, groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return a row for each model and stack: ``title, side, layers``, and the spreads ``effective`` and ``loss``."""
    return [
        {
            "title": model.title,
            "side": side,
            "layers": next(iter(effective)),
            "effective": next(iter(effective.values())),
            "loss": next(iter(_spreads(own, "depth", "loss").values()), None),
        }
        for model in _models(measured.content.get("stacks", []), groups)
        for side in SIDES
        if (own := [row for row in model.rows if row["side"] == side])
        and (effective := _spreads(own, "depth", "effective_depth"))
    ]
