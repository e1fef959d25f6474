"""What `lnplace diagnose` has measured, of the models of a report's trainings and of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairseq_lnplace.diagnostics.paper import FIGURE_3, LAST_BY_DEPTH, SIDE, Series
from fairseq_lnplace.errors import must_be
from fairseq_lnplace.report.curves import Line
from fairseq_lnplace.report.layers import SIDES, Panel, Row, layer_line
from fairseq_lnplace.runs.groups import Group, Spread
from fairseq_lnplace.runs.records import read_json

__all__ = ["Measured", "depth_rows", "measured_panels", "read_measured"]

FILES = {"gradients": "gradients", "activations": "activations", "depth": "stacks"}  # and a table that each has


@dataclass(frozen=True)
class View:
    """A figure of a measurement.

    Attributes:
        table: the table whose rows are drawn.
        number: the column that is drawn.
        label: what the axis calls it.
        common: what the rows have in common.
        key: the column that it is drawn against.
        logarithmic: whether the axis is.
        paper: a paper's values of the same.
    """

    table: str
    number: str
    label: str
    common: Row = field(default_factory=dict)
    key: str = "layer"
    logarithmic: bool = False
    paper: Sequence[Series] = ()


VIEWS: dict[str, list[View]] = {
    "gradients": [
        *(
            View(
                *("gradients", "norm_of_mean", f"‖mean gradient‖ of {symbol}", {"matrix": matrix}),
                logarithmic=True,
                paper=[series for series in FIGURE_3 if series.matrix == matrix],
            )
            for matrix, symbol in (("fc1", "W1"), ("fc2", "W2"))
        ),
        View(
            *("depths", "norm_of_mean", "‖mean gradient‖ of the last W2"),
            key="depth",
            logarithmic=True,
            paper=LAST_BY_DEPTH,
        ),
    ],
    "activations": [View("activations", "stream", "E‖x‖²/d of the stream", logarithmic=True)],
    "depth": [
        View("layers", "step", "relative step of the stream", logarithmic=True),
        View("layers", "merge_error", "merge error e"),
        View("layers", "loss_removed", "loss without the layer (bits a token)"),
    ],
}


@dataclass(frozen=True)
class Measured:
    """What one call of `lnplace diagnose` wrote as JSON."""

    name: str
    path: Path
    content: Mapping[str, Any]


def read_measured(paths: Sequence[Path]) -> list[Measured]:
    """Return the measurements that lie in folders, at any depth.

    Raises:
        LnplaceError: a folder is not there.
    """
    if absent := [path for path in paths if not path.is_dir()]:
        raise must_be("--diagnose", "a folder that `lnplace diagnose` wrote", f"{absent[0]}, which is none")
    files = (file for path in paths for name in FILES for file in sorted(path.rglob(f"{name}.json")))
    contents = {file: read_json(file) for file in dict.fromkeys(file.resolve() for file in files)}
    return [
        Measured(file.stem, file, content)
        for file, content in contents.items()
        if isinstance(content, dict) and "settings" in content and FILES[file.stem] in content
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


def measured_panels(measured: Measured, groups: Sequence[Group], name: str) -> Iterator[Panel]:
    """Give the panels of a measurement, each of one frame; their names begin with ``name``."""
    for place, view in enumerate(VIEWS[measured.name]):
        models = _models(
            [row for row in measured.content.get(view.table, []) if view.common.items() <= row.items()], groups
        )
        for side in SIDES:
            lines = [
                layer_line(model.title, model.placement, model.variant, spreads)
                for model in models
                if (spreads := _spreads([row for row in model.rows if row["side"] == side], view.key, view.number))
            ]
            if lines:
                known = _published(view, {line.placement for line in lines}) if side == SIDE else []
                against = f"{side} layer" if view.key == "layer" else f"{view.key} of the {side}"
                label = f"{side}: {view.label}"
                yield Panel(f"{name}-{place}-{side}", against, label, view.logarithmic, [[*lines, *known]])


def _published(view: View, placements: set[str]) -> list[Line]:
    """Return the paper's lines for the placements."""
    return [
        replace(
            layer_line(
                f"{series.placement} in Xiong et al. 2020, {series.state}",
                series.placement,
                0,
                {layer: Spread(value, value, value, 1) for layer, value in series.values.items()},
            ),
            published=True,
        )
        for series in view.paper
        if series.placement in placements
    ]


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
