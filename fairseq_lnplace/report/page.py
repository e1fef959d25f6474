"""The page that shows trainings side by side: one HTML file that needs nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.files import new_file
from fairseq_lnplace.report.curves import UNITS, Line, line_of, metrics_of, progress_of
from fairseq_lnplace.report.figures import layer_figure, progress_figure, swatch
from fairseq_lnplace.report.layers import Panel, positions_of, trained_panels
from fairseq_lnplace.report.measured import Measured, depth_rows, measured_panels
from fairseq_lnplace.runs.groups import Group, common_options, differing_options, grouped, state_of
from fairseq_lnplace.runs.summary import columns_of, headline, signatures_of
from fairseq_lnplace.runs.trained_run import TrainedRun
from fairseq_lnplace.versions import versions

__all__ = ["Judgement", "Published", "Table", "build", "write"]


@dataclass(frozen=True)
class Judgement:
    """What somebody claims, and what these trainings say to it.

    Attributes:
        claim: one sentence.
        source: paper, section, figure.
        verdict: ``confirmed``, ``contradicted`` or ``cannot tell``.
        evidence: the numbers that the verdict rests on.
    """

    claim: str
    source: str
    verdict: str
    evidence: str


@dataclass(frozen=True)
class Published:
    """Values of a paper, drawn dashed beside ours.

    Attributes:
        title: for the legend.
        metric: the figure they belong in: ``loss``, ``bleu``, … (see :func:`.curves.metrics_of`).
        unit: ``updates``, ``epochs`` or ``minutes``; the figures against the other units go without.
        xs, ys: of equal length.
        source: paper and figure, and how the values were read.
        placement: gives the colour.
    """

    title: str
    metric: str
    unit: str
    xs: Sequence[float]
    ys: Sequence[float]
    source: str
    placement: str = ""

    @property
    def line(self) -> Line:
        """What is drawn."""
        return Line(self.title, self.placement, 0, np.array(self.xs), np.array(self.ys), published=True)


class Table(Protocol):
    """Text in rows, under headings; the first column names the rows."""

    @property
    def caption(self) -> str:
        """What the entries are."""

    @property
    def headings(self) -> Sequence[str]:
        """One for each column."""

    @property
    def lines(self) -> Sequence[Sequence[str]]:
        """The rows, with an entry for each heading."""


def build(
    runs: Sequence[TrainedRun],
    claims: Sequence[Judgement] = (),
    published: Sequence[Published] = (),
    heading: str = "Trainings side by side",
    measured: Sequence[Measured] = (),
    about: str = "",
    command: str = "",
    tables: Sequence[Table] = (),
) -> str:
    """Return the page.

    Args:
        claims: to be shown with what these trainings say to them.
        published: values to draw beside ours.
        heading: what was compared, in a few words.
        measured: by `lnplace diagnose`, of these runs' checkpoints or of other models.
        about: a sentence under the heading, such as on the data.
        command: that does all of it again.
        tables: further views of the results.
    """
    groups = grouped(runs)
    positions = positions_of(groups)
    trained = [(panel, *layer_figure(panel)) for panel in trained_panels(groups, positions)]
    return _template().render(
        heading=heading,
        headline=headline(groups),
        about=about,
        command=command,
        tables=tables,
        claims=claims,
        groups=groups,
        looks={group.title: swatch(_plain(group)) for group in groups},
        columns=columns_of(runs),
        tested=list(dict.fromkeys(_tested(run) for run in runs if run.test)),
        signatures=signatures_of(runs),
        differing=differing_options(groups),
        common=common_options(groups),
        units=UNITS,
        diverged=any(run.state == "diverged" for run in runs),
        curves=_curves(groups, published),
        published=[(each, swatch(each.line)) for each in published],
        trained=[(panel, svg) for panel, svg, _ in trained],
        trained_looks=_legend([panel for panel, *_ in trained]),
        frames={panel.name: frames for panel, _, frames in trained},
        times=[_time(runs, updates) for updates in positions],
        measured=[_measurement(each, groups, f"measured{number}") for number, each in enumerate(measured)],
        versions=_versions(runs),
    )


def write(path: Path, page: str) -> None:
    """Write the page.

    Raises:
        LnplaceError: that is not possible there.
    """
    if path.is_dir():
        raise must_be("--output", "a file", f"{path}, which is a folder")
    with new_file(path) as partial:
        partial.write_text(page, encoding="utf-8")


def _template() -> Template:
    """Return the page's template, which shows numbers by the filters here."""
    environment = Environment(
        loader=PackageLoader("fairseq_lnplace.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    copies = itertools.count()
    environment.filters |= {
        "state": state_of,
        "number": _number,
        "copy": lambda look: look.replace("swatch-", f"swatch{next(copies)}-"),  # names are unique in a page
    }
    return environment.get_template("page.html.jinja")


def _number(value: float | None, digits: int) -> str:
    """Return a number with so many digits after the point."""
    return "–" if value is None else f"{value:,.{digits}f}"


def _plain(group: Group) -> Line:
    """Return a line that has the group's style alone."""
    return Line(group.title, group.placement, group.variant, np.array([]), np.array([]))


def _tested(run: TrainedRun) -> str:
    """Return in words what a run's scores of the test set are of."""
    assert run.test
    search = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in run.test.decoding.items() if value)
    return f"{run.test.checkpoint} ({search})"


def _curves(groups: Sequence[Group], published: Sequence[Published]) -> list[tuple[str, dict[str, str]]]:
    """Return the label of each metric and its figures, one against each unit."""
    runs = [run for group in groups for run in group.runs]
    curves = []
    for metric in metrics_of(runs):
        figures = {}
        for unit in UNITS:
            ours = [line for group in groups if (line := line_of(group, metric, unit, len(groups)))]
            theirs = [each.line for each in published if (each.metric, each.unit) == (metric.name, unit)]
            figures[unit] = progress_figure([*ours, *theirs], metric, unit)
        curves.append((metric.label, figures))
    return curves


def _time(runs: Sequence[TrainedRun], updates: int) -> str:
    """Return a position of the slider in words, with the epoch of the run that has come furthest."""
    furthest = progress_of(max(runs, key=lambda run: run.updates))
    return f"update {updates:,}, epoch {np.interp(updates, furthest['updates'], furthest['epochs']):.1f}"


def _legend(panels: Sequence[Panel]) -> dict[str, str]:
    """Return a swatch for every title in the panels."""
    lines = {line.title: line for panel in panels for line in panel.frames[-1]}
    return {title: swatch(line) for title, line in lines.items()}


def _measurement(measured: Measured, groups: Sequence[Group], name: str) -> dict[str, Any]:
    """Return what the page shows of a measurement."""
    panels = list(measured_panels(measured, groups, name))
    return {
        "title": f"{measured.name}, {_settings(measured.content['settings'])}",
        "legend": _legend(panels),
        "figures": [(panel, layer_figure(panel)[0]) for panel in panels],
        "depths": depth_rows(measured, groups) if measured.name == "depth" else [],
    }


def _settings(settings: Mapping[str, Any]) -> str:
    """Return in words what was measured on."""
    text = Path(settings["data"]).name if settings.get("data") else "random text"
    batches = f"{settings['batches']} batch{'es' * (settings['batches'] > 1)}"
    return f"on {batches} of {settings['batch_tokens']} tokens of {text}"


def _versions(runs: Sequence[TrainedRun]) -> dict[str, dict[str, str]]:
    """Return the versions that scored, as far as recorded, and those that wrote the page."""
    here = {"this page": versions("fairseq", "torch", "matplotlib")}
    scored = {tuple(each.versions.items()): dict(each.versions) for run in runs for each in run.evaluations}
    return here | {f"scores {number}": found for number, found in enumerate(scored.values(), start=1) if found}
