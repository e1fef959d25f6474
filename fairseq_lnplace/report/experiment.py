"""The report on an experiment of `scripts/reproduce.sh`: its trainings, published values and judged claims."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from fairseq_lnplace.experiments.claims import CLAIMS, Claim, Outcome, Results, Verdict
from fairseq_lnplace.experiments.results import record_of, table
from fairseq_lnplace.report import page
from fairseq_lnplace.report.measured import Measured
from fairseq_lnplace.report.runs import TrainedRun, read_run

__all__ = ["Experiment", "read_experiment", "show"]


@dataclass(frozen=True)
class Experiment:
    """What one call of the runner has left.

    Attributes:
        path: the experiment's file.
        about: the content of the experiment's file: its name, title, scale, command, minutes, versions …
        results: its trainings with their levels, and its measurements.
        claims: what the papers claim, with the verdicts.
        published: the papers' own values at this scale, under ``curves`` and ``values``.
    """

    path: Path
    about: Mapping[str, Any]
    results: Results
    claims: tuple[tuple[Claim, Verdict], ...]
    published: Mapping[str, list[Mapping[str, Any]]]

    @property
    def runs(self) -> list[TrainedRun]:
        """The trainings, in the order of the grid."""
        return [outcome.run for outcome in self.results.outcomes]


def read_experiment(path: Path) -> Experiment:
    """Return the experiment whose file the runner wrote.

    Raises:
        LnplaceError: one of its folders is gone.
    """
    about = json.loads(path.read_text(encoding="utf-8"))
    outcomes = [Outcome(cell["levels"], read_run(path.parent / cell["folder"])) for cell in about["cells"]]
    measured = {
        name: json.loads((path.parent / file).read_text(encoding="utf-8"))
        for name, file in about["measurements"].items()
    }
    results = Results(outcomes, measured)
    claims = tuple((claim, claim.judge(results)) for claim in CLAIMS.get(about["experiment"], ()))
    published = {
        kind: [each for each in entries if each["scale"] == about["scale"]]
        for kind, entries in about["published"].items()
    }
    return Experiment(path, about, results, claims, published)


def show(experiment: Experiment, console: Console) -> None:
    """Print what came of an experiment, and write the page beside its file."""
    if experiment.runs:
        caption = f"{experiment.about['title']} ({experiment.about['scale']})"
        console.print(table([record_of(run) for run in experiment.runs], caption))
    for claim, verdict in experiment.claims:
        console.print(f"{claim.text} ({claim.source}): [b]{verdict.verdict}[/b]; {escape(verdict.evidence)}")
    output = experiment.path.with_suffix(".html")
    page.write(output, page_of(experiment))
    console.print(f"{output} shows it all", soft_wrap=True)


def page_of(experiment: Experiment) -> str:
    """Return the page."""
    about = experiment.about
    minutes = f"; {about['minutes']} minutes on {about['cores']} cores" if about["minutes"] else ""
    return page.build(
        experiment.runs,
        claims=[page.Judgement(claim.text, claim.source, *astuple(verdict)) for claim, verdict in experiment.claims],
        published=[published_curve(entry) for entry in experiment.published.get("curves", ())],
        heading=about["title"],
        measured=[
            Measured(name, experiment.path.parent / about["measurements"][name], content)
            for name, content in experiment.results.measurements.items()
        ],
        about=f"{about['source']}, at {about['scale']} scale{minutes}",
        command=about["command"],
    )


def published_curve(entry: Mapping[str, Any]) -> page.Published:
    """Return a curve of a grid's file as the page takes it."""
    return page.Published(**{name: value for name, value in entry.items() if name not in ("scale", "levels")})
