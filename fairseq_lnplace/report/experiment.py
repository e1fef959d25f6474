"""The report on an experiment of `scripts/reproduce.sh`: its trainings, published values and judged claims."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fairseq_lnplace.experiments.claims import CLAIMS, Claim, Outcome, Results, Verdict
from fairseq_lnplace.experiments.results import record_of, table
from fairseq_lnplace.report.runs import TrainedRun, read_run

__all__ = ["Experiment", "read_experiment"]


@dataclass(frozen=True)
class Experiment:
    """What one call of the runner has left.

    Attributes:
        about: the content of the experiment's file: its name, title, scale, command, minutes, versions …
        results: its trainings with their levels, and its measurements.
        claims: what the papers claim, with the verdicts.
        published: the papers' own values at this scale, under ``curves`` and ``values``.
    """

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
        name: json.loads((path.parent / folder / f"{name}.json").read_text(encoding="utf-8"))
        for name, folder in about["measurements"].items()
    }
    results = Results(outcomes, measured)
    claims = tuple((claim, claim.judge(results)) for claim in CLAIMS.get(about["experiment"], ()))
    published = {
        kind: [each for each in entries if each["scale"] == about["scale"]]
        for kind, entries in about["published"].items()
    }
    return Experiment(about, results, claims, published)


def show(experiment: Experiment, path: Path, console: Console) -> None:
    """Print the table and the claims of an experiment, and write both, and the page, beside its file."""
    records = [record_of(run) for run in experiment.runs]
    about = experiment.about
    if records:
        console.print(table(records, f"{about['title']} ({about['scale']})"))
    console.print(claims_table(experiment))


def claims_table(experiment: Experiment) -> Table:
    """Return the claims and verdicts for a terminal."""
    shown = Table("claim", "verdict", "figures", title=None)
    for claim, verdict in experiment.claims:
        shown.add_row(f"{claim.text} ({claim.source})", verdict.verdict, verdict.evidence)
    return shown
