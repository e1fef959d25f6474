"""The quick start: Pre-LN without warm-up against Post-LN without and with it, on one machine, within minutes.

    python -m fairseq_lnplace.commands.quickstart --data DIR [--fast] [-- FAIRSEQ-TRAIN-OPTIONS]

`scripts/quickstart.sh` makes the data and calls this.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.experiments.devices import slots
from fairseq_lnplace.experiments.grid import FOLDER, Grid, read_grid
from fairseq_lnplace.experiments.measure import measure, measurements
from fairseq_lnplace.experiments.progress import watch
from fairseq_lnplace.experiments.results import draw, markdown, record_of, table
from fairseq_lnplace.experiments.runner import Run, plan
from fairseq_lnplace.experiments.script import check_positive, earlier_cost, exit_status, own_and_extra
from fairseq_lnplace.files import new_file, write_json
from fairseq_lnplace.runs.trained_run import TrainedRun, read_run
from fairseq_lnplace.versions import versions

__all__ = ["main"]

GRID = FOLDER / "quickstart.yaml"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, of which what follows ``--`` is left for fairseq-train."""
    options = argparse.ArgumentParser(prog="quickstart", description=__doc__.split("\n")[0] if __doc__ else None)
    options.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder that `lnplace prepare` made")
    options.add_argument("--dest", type=Path, default=Path("runs/quickstart"), metavar="DIR", help="for the results")
    options.add_argument("--fast", action="store_true", help="fewer updates, no BLEU")
    options.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one"
    )
    options.add_argument("--jobs", type=int, default=3, metavar="N", help="models trained side by side")
    options.add_argument("--threads", type=int, metavar="N", help="of each; default: the machine's, shared out")
    options.add_argument("--dry-run", action="store_true", help="print the commands, do nothing")
    options.add_argument("--said", default="bash scripts/quickstart.sh", help=argparse.SUPPRESS)  # to the script
    options.epilog = "What follows -- is added to every fairseq-train command, for example: -- --lr 1e-3"
    return options


def device_options(device: str) -> tuple[str, ...]:
    """Return fairseq-train's options for a device.

    Raises:
        LnplaceError: a GPU is asked for where there is none.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise must_be("--device", "cpu or auto on a machine without a GPU", device)
    if device == "cpu" or not torch.cuda.is_available():
        return ("--cpu",)
    return ("--fp16",)


def describe(data: Path) -> str:
    """Return what the data is, in a few words."""
    prepared = data / "prepared.json"
    if not prepared.exists():  # fairseq-preprocess made the folder
        return data.name
    manifest = json.loads(prepared.read_text(encoding="utf-8"))
    pairs = manifest["counts"]["train"]["pairs"]
    return f"{manifest['source_lang']}-{manifest['target_lang']}, {manifest['note'] or data.name}: {pairs:,} pairs"


def measure_all(grid: Grid, runs: Sequence[Run], data: Path, dest: Path, console: Console) -> list[Path]:
    """Measure what the grid's file asks for, if every run has come to its end; return where the results are."""
    if any(run.state != "finished" for run in runs):
        return []
    wanted = measurements(grid.content["scales"][grid.scale].get("measure", {}), runs, {"": data}, dest)
    for each in wanted:
        measure(each, console)
    return [each.folder for each in wanted]


def report(runs: Sequence[TrainedRun], measured: Sequence[Path], dest: Path, about: dict[str, Any]) -> list[Path]:
    """Write results.json, results.md, the picture and the page; return their paths."""
    from fairseq_lnplace.report import page  # matplotlib is slow to import
    from fairseq_lnplace.report.measured import read_measured

    records = [record_of(run) for run in runs]
    write_json(dest / "results.json", {**about, "versions": versions("fairseq", "torch", "sacrebleu"), "runs": records})
    with new_file(dest / "results.md") as partial:
        partial.write_text(markdown(records), encoding="utf-8")
    draw(records, about["data"], dest)
    heading = "Quick start: where the normalisation stands, and warm-up"
    text = f"Trained on {about['data']}."
    shown = page.build(runs, heading=heading, measured=read_measured(measured), about=text, command=about["command"])
    page.write(dest / "report.html", shown)
    return [dest / name for name in ("results.json", "results.md", "curves.png", "curves.svg", "report.html")]


def show(runs: Sequence[TrainedRun], files: Sequence[Path], caption: str, console: Console) -> None:
    """Print the table and where the rest is, the page last."""
    records = [record_of(run) for run in runs]
    signatures = {signature for record in records for score in record["scores"] for signature in score["signatures"]}
    console.print(table(records, "\n".join([caption, *sorted(signatures)])))
    *others, page = files
    console.print(f"{', '.join(path.name for path in others)} are in {page.parent}", soft_wrap=True)
    console.print(f"To see it all, open {page}", soft_wrap=True)


def quickstart(args: argparse.Namespace, extra: Sequence[str]) -> None:
    """Train, evaluate and show.

    Raises:
        LnplaceError: an option or the data is wrong, or a model could not be trained or evaluated.
    """
    check_positive(args, "jobs", "threads")
    grid = read_grid(GRID, "fast" if args.fast else "full", (*device_options(args.device), *extra))
    dest = args.dest.resolve()
    runs = plan(grid, args.data.resolve(), dest)
    if args.dry_run:
        for run in runs:
            print(shlex.join(run.train_command()))
        return
    console = Console()
    cores = len(os.sched_getaffinity(0))
    jobs = min(args.jobs, len(runs))
    threads = args.threads or max(1, cores // jobs)
    where = "the CPU" if "--cpu" in grid.cells[0].train else "the GPU with --fp16 (--device cpu avoids it)"
    console.print(
        f"{jobs} models side by side on {where}, {threads} of {cores} cores each; logs in {dest}", soft_wrap=True
    )
    fresh = not any(run.folder.exists() for run in runs)
    caption = describe(args.data)
    start = time.monotonic()
    watch(runs, slots(jobs, threads), console)
    measured = measure_all(grid, runs, args.data.resolve(), dest, console)
    minutes = round((time.monotonic() - start) / 60, 1)
    about = {
        "data": caption,
        "command": args.said,
        "cores": cores,
        "jobs": jobs,
        "threads": threads,
        **({"minutes": minutes} if fresh else earlier_cost(dest / "results.json", args.said, "minutes")),
    }
    trained = [read_run(run.folder) for run in runs]
    show(trained, report(trained, measured, dest, about), caption, console)
    console.print(f"{minutes} minutes")
    if errors := [run.error for run in runs if run.error]:
        raise LnplaceError("; ".join(errors))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the quick start; return the exit status (130 after Ctrl-C)."""
    own, extra = own_and_extra(argv)
    return exit_status("quickstart", lambda: quickstart(parser().parse_args(own), extra))


if __name__ == "__main__":
    sys.exit(main())
