"""The report on an experiment of `scripts/reproduce.sh`: its trainings, published values and judged claims."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fairseq_lnplace.experiments.claims import CLAIMS
from fairseq_lnplace.experiments.outcomes import Outcome, Results
from fairseq_lnplace.experiments.results import record_of
from fairseq_lnplace.files import write_json
from fairseq_lnplace.report import page
from fairseq_lnplace.report.crosstab import Crosstab, crosstab
from fairseq_lnplace.report.measured import read_measured
from fairseq_lnplace.runs.records import read_json
from fairseq_lnplace.runs.trained_run import TrainedRun, read_run

__all__ = ["Experiment", "experiments_in", "read_experiment", "show", "shown"]


@dataclass(frozen=True)
class Experiment:
    """What one call of the runner has left.

    Attributes:
        path: the experiment's file.
        about: the content of the experiment's file: its name, title, scale, command, minutes, versions …
        results: its trainings with their levels, and its measurements.
        claims: what the papers claim, judged.
        published: the papers' own values at this scale, under ``curves`` and ``values``.
    """

    path: Path
    about: Mapping[str, Any]
    results: Results
    claims: tuple[page.Judgement, ...]
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
    claims = tuple(
        page.Judgement(claim.text, claim.source, *astuple(claim.judge(results)))
        for claim in CLAIMS.get(about["experiment"], ())
    )
    published = {
        kind: [each for each in entries if each["scale"] == about["scale"]]
        for kind, entries in about["published"].items()
    }
    return Experiment(path, about, results, claims, published)


def experiments_in(folders: Sequence[Path]) -> list[Experiment]:
    """Return the experiments whose runs lie in the folders."""
    files = [file for folder in folders for file in sorted(folder.glob("*.json"))]
    return [read_experiment(file) for file in files if "experiment" in (read_json(file) or {})]


def shown(experiments: Sequence[Experiment]) -> dict[str, Any]:
    """Return what a page shows of experiments beside their runs: arguments of :func:`.page.build`."""
    if not experiments:
        return {}
    return {
        "claims": [claim for experiment in experiments for claim in experiment.claims],
        "published": [
            published_curve(entry) for experiment in experiments for entry in experiment.published.get("curves", ())
        ],
        "tables": [table for experiment in experiments if (table := table_of(experiment))],
        "heading": " · ".join(experiment.about["title"] for experiment in experiments),
        "about": "; ".join(map(circumstances, experiments)),
        "command": "\n".join(experiment.about["command"] for experiment in experiments),
    }


def circumstances(experiment: Experiment) -> str:
    """Return where an experiment comes from and what it took."""
    about = experiment.about
    took = f", {about['core_minutes']:g} minutes of a core" if about["core_minutes"] else ""
    return f"{about['source']}, at {about['scale']} scale{took}"


def published_curve(entry: Mapping[str, Any]) -> page.Published:
    """Return a curve of a grid's file as the page takes it."""
    return page.Published(**{name: value for name, value in entry.items() if name not in ("scale", "levels")})


def table_of(experiment: Experiment) -> Crosstab | None:
    """Return an experiment's table, if it has trainings and its grid says how."""
    layout = experiment.about["table"]
    if not layout or not experiment.runs:
        return None
    return crosstab(experiment.results.outcomes, layout, experiment.published.get("values", ()))


def show(experiment: Experiment, console: Console) -> None:
    """Print what came of an experiment; write it as data and as a page beside the experiment's file."""
    found = table_of(experiment)
    if found:
        printed = Table(*found.headings, title=experiment.about["title"], caption=found.caption)
        for line in found.lines:
            printed.add_row(*line)
        console.print(printed)
    for each in experiment.claims:
        told = f"{escape(each.claim)} ({each.source}): [b]{each.verdict}[/b]; {escape(each.evidence)}"
        console.print(told, soft_wrap=True, highlight=False)
    write_json(experiment.path.with_suffix(".results.json"), results_of(experiment, found))
    output = experiment.path.with_suffix(".html")
    files = [experiment.path.parent / file for file in experiment.about["measurements"].values()]
    measured = read_measured([file.parent for file in files])
    page.write(output, page.build(experiment.runs, measured=measured, **shown([experiment])))
    console.print(f"{output} shows it all", soft_wrap=True, highlight=False)


def results_of(experiment: Experiment, found: Crosstab | None) -> dict[str, Any]:
    """Return the results as data: the table, the claims, and each training's record."""
    about = ("title", "source", "scale", "command", "minutes", "core_minutes", "cores", "versions")
    return {
        "name": experiment.about["experiment"],
        **{name: experiment.about[name] for name in about},
        "table": asdict(found) if found else None,
        "claims": [asdict(claim) for claim in experiment.claims],
        "runs": [record_of(run) for run in experiment.runs],
    }
