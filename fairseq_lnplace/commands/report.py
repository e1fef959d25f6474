"""``lnplace report``: trainings side by side, as one page."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

HELP = "show trainings side by side as one HTML page"
EXAMPLE = "lnplace report runs/quickstart --output runs/report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the trainings, the measurements and the outputs."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="folder of a training (its --save-dir), or of several of them, or of an experiment",
    )
    parser.add_argument(
        "--diagnose", nargs="+", type=Path, default=[], metavar="DIR", help="further results of `lnplace diagnose`"
    )
    parser.add_argument("--output", type=Path, default=Path("report.html"), metavar="FILE", help="the page")
    parser.add_argument("--json", action="store_true", help="print the table of results as JSON, too")


def run(args: argparse.Namespace) -> None:
    """Read the trainings, write the page, say where it is."""
    from fairseq_lnplace.report.experiment import experiments_in, shown
    from fairseq_lnplace.report.measured import read_measured
    from fairseq_lnplace.report.page import build, write  # matplotlib is slow to import
    from fairseq_lnplace.runs.groups import grouped
    from fairseq_lnplace.runs.summary import as_rows, headline
    from fairseq_lnplace.runs.trained_run import read_runs

    experiments = experiments_in(args.runs)
    trained = any(experiment.runs for experiment in experiments) or not experiments
    runs = read_runs(args.runs) if trained else []
    write(args.output, build(runs, measured=read_measured([*args.runs, *args.diagnose]), **shown(experiments)))
    groups = grouped(runs)
    if args.json:
        print(json.dumps(as_rows(groups), indent=2))
        return
    print(headline(groups))
    print(args.output)
