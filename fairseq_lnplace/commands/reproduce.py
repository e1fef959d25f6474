"""Reproduces one of the papers' experiments from its grid.

    python -m fairseq_lnplace.commands.reproduce EXPERIMENT --root REPOSITORY [OPTIONS] [-- FAIRSEQ-TRAIN-OPTIONS]

`scripts/reproduce.sh` does the set-up and calls this. An experiment is a file NAME.yaml in this folder; `grid.py` tells
its form.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.experiments.devices import Devices, slots, visible_gpus
from fairseq_lnplace.experiments.grid import FOLDER, Grid, fingerprint, read_grid
from fairseq_lnplace.experiments.measure import Measurement, measure, measurements
from fairseq_lnplace.experiments.progress import watch
from fairseq_lnplace.experiments.runner import Run, plan
from fairseq_lnplace.experiments.script import check_positive, earlier_cost, exit_status, own_and_extra
from fairseq_lnplace.experiments.slurm import job_script
from fairseq_lnplace.files import new_file, write_json
from fairseq_lnplace.versions import versions

__all__ = ["EXPERIMENTS", "main"]

SCRIPT = "scripts/reproduce.sh"  # in the repository
EXPERIMENTS = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "quickstart")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, of which what follows ``--`` is left for fairseq-train."""
    options = argparse.ArgumentParser(
        prog="reproduce",
        description="Trains, evaluates and measures what one of the papers' experiments compares.",
        epilog="What follows -- is added to every fairseq-train command, for example: -- --weight-decay 1e-4. "
        "Ctrl-C stops it, and the same command goes on from there.",
    )
    options.add_argument("experiment", choices=EXPERIMENTS, metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    options.add_argument(
        "--scale",
        choices=("demo", "full"),
        default="demo",
        help="demo: the same path in minutes on a laptop, on a small corpus; full: the paper's models and data",
    )
    options.add_argument("--only", nargs="+", default=[], metavar="CELL", help="names of cells, or patterns for them")
    options.add_argument("--seeds", nargs="+", type=int, default=[], metavar="N", help="train every cell once for each")
    options.add_argument("--data", type=Path, metavar="DIR", help="prepared data in place of the experiment's")
    options.add_argument("--dest", type=Path, metavar="DIR", help="for the results (runs/reproduce/EXPERIMENT-SCALE)")
    options.add_argument("--dry-run", action="store_true", help="print the settings and every command, do nothing")
    where = options.add_argument_group("devices")
    where.add_argument("--gpus", type=int, metavar="N", help="of each cell; 0 is the CPU (1 at full scale; else 0)")
    where.add_argument(
        "--precision", choices=("fp32", "fp16", "bf16"), help="default: fp16 on a GPU, which its tensor cores need"
    )
    where.add_argument(
        "--max-tokens", type=int, default=4096, metavar="N", help="that one GPU takes at once; --update-freq follows"
    )
    where.add_argument("--jobs", type=int, metavar="N", help="cells side by side (the CPU's cores; 1 on GPUs)")
    where.add_argument("--threads", type=int, metavar="N", help="of each cell; default: the machine's, shared out")
    where.add_argument("--torchrun", action="store_true", help="start the processes of several GPUs by torchrun")
    where.add_argument("--slurm", action="store_true", help="write a job array instead, with a task for each cell")
    options.add_argument("--no-report", action="store_true", help=argparse.SUPPRESS)  # one of several tasks
    options.add_argument("--root", type=Path, required=True, help=argparse.SUPPRESS)  # of the repository
    return options


@dataclass(frozen=True)
class Plan:
    """What is to be done: the runs of the grid, and the measurements that follow them."""

    grid: Grid
    dest: Path
    data: Mapping[str, Path]
    devices: Devices
    runs: Sequence[Run]
    measurements: Sequence[Measurement]


def make_plan(args: argparse.Namespace, extra: Sequence[str]) -> Plan:
    """Return what the command line asks for.

    Raises:
        LnplaceError: an option is out of range, or the data could not be made.
    """
    check_positive(args, "jobs", "threads")
    gpus = (1 if args.scale == "full" else 0) if args.gpus is None else args.gpus
    precision = args.precision or ("fp16" if gpus else "fp32")
    devices = Devices(gpus, precision, args.max_tokens, args.torchrun)
    grid = read_grid(FOLDER / f"{args.experiment}.yaml", args.scale, extra, args.seeds, args.only)
    home = grid.content.get("runs", grid.name)
    dest = (args.dest or args.root / "runs" / "reproduce" / f"{home}-{args.scale}").resolve()
    settings = grid.content["scales"][args.scale]
    measured = settings["train"].get("data"), settings["train"].get("prepare")
    sources = dict([(cell.data, cell.prepare) for cell in grid.cells] or [measured])
    if args.data and len(sources) > 1:
        raise must_be("--data", f"left out, as {args.experiment} takes {len(sources)} kinds of data", args.data)
    data = {str(name): (args.data or args.root / str(name)).resolve() for name in sources}
    if not args.data and not args.dry_run:
        for name, script in sources.items():
            prepare(data[str(name)], str(script), args.root)
    runs = plan(grid, data, dest, devices, planned_fingerprint if args.dry_run else fingerprint)
    return Plan(grid, dest, data, devices, runs, measurements(settings.get("measure", {}), runs, data, dest))


def planned_fingerprint(folder: Path) -> str:
    """Return the fingerprint of data that may still have to be made."""
    return fingerprint(folder) if folder.exists() else ""


def prepare(folder: Path, script: str, root: Path) -> None:
    """Make data that is not there yet, by one of the scripts.

    Raises:
        LnplaceError: the script failed.
    """
    if folder.exists():
        return
    name, *options = shlex.split(script)
    if subprocess.run(["bash", str(root / "scripts" / name), *options], cwd=root, check=False).returncode:
        raise LnplaceError(f"scripts/{name} could not make {folder}; what it says above tells why")


def describe(plan: Plan, args: argparse.Namespace) -> str:
    """Return the settings, a line each."""
    devices = f"{plan.devices.gpus or 'no'} GPUs a cell" if plan.devices.gpus else "the CPU"
    lines = [
        f"{plan.grid.content['title']} ({plan.grid.content['source']})",
        f"scale {args.scale}, {len(plan.runs)} cells, {devices}, {plan.devices.precision}",
    ]
    for tokens in dict.fromkeys(run.cell.tokens_per_update for run in plan.runs):
        options = plan.devices.options(tokens)
        lines.append(f"{tokens:,} tokens an update: {shlex.join(options)}" if tokens else shlex.join(options))
    missing = [folder for folder in plan.data.values() if not folder.exists()]
    lines += [f"{folder} is not there yet" for folder in missing]
    return "\n".join(lines)


def reproduce(args: argparse.Namespace, extra: Sequence[str], command: Sequence[str]) -> None:
    """Do what the command line asks for.

    Raises:
        LnplaceError: an option or the data is wrong, or a cell could not be trained or evaluated.
    """
    todo = make_plan(args, extra)
    if args.dry_run:
        print(describe(todo, args))
        for run in todo.runs:
            print(f"\n# {run.cell.name}: {run.cell.title}\n{shlex.join(run.train_command())}")
        for measurement in todo.measurements:
            print(f"\n# {measurement.name}\n{shlex.join(measurement.command)}")
        return
    cores = len(os.sched_getaffinity(0))
    if args.slurm:
        path, threads = todo.dest / f"{todo.grid.name}.slurm.sh", args.threads or cores
        again = ["bash", str(args.root / SCRIPT), *(word for word in command[2:] if word != "--slurm")]
        script = job_script(todo.dest.name, todo.runs, todo.devices.gpus or 0, threads, Path.cwd(), again)
        with new_file(path) as partial:
            partial.write_text(script, encoding="utf-8")
        print(f"sbatch {shlex.quote(str(path))}")
        print(f"# and then, for measurements and the report: {shlex.join(again)}")
        return
    gpus = todo.devices.gpus or 0
    names = visible_gpus() if gpus else []
    jobs = args.jobs or (max(1, len(names) // gpus) if gpus else cores)
    # what a part of the work costs is not what all of it does
    fresh = all(run.state == "waiting" and not run.train_log.exists() for run in todo.runs)
    places = slots(jobs, args.threads or max(1, cores // jobs), gpus, names)
    console = Console()
    console.print(describe(todo, args), soft_wrap=True, highlight=False)
    start, used = time.monotonic(), cpu_seconds()
    if todo.runs:
        watch(todo.runs, places, console)
    errors = [run.error for run in todo.runs if run.error]
    if args.no_report:
        if errors:
            raise LnplaceError("; ".join(errors))
        return
    for measurement in todo.measurements if not errors else ():
        measure(measurement, console)
    cost = {"minutes": time.monotonic() - start, "core_minutes": cpu_seconds() - used}
    report(todo, {name: round(seconds / 60, 1) if fresh else None for name, seconds in cost.items()}, command, console)
    if errors:
        raise LnplaceError("; ".join(errors))


def cpu_seconds() -> float:
    """Return the processor time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(todo: Plan, cost: Mapping[str, float | None], command: Sequence[str], console: Console) -> None:
    """Write down what was run; print what came of it, and write the page that shows it.

    Args:
        cost: ``minutes`` and ``core_minutes`` of everything, None where earlier calls had done a part.
    """
    from fairseq_lnplace.report.experiment import read_experiment, show  # matplotlib is slow to import

    trained = [run for run in todo.runs if run.train_log.exists()]
    cells = [{"name": run.cell.name, "folder": run.folder.name, "levels": dict(run.cell.levels)} for run in trained]
    content, words = todo.grid.content, shlex.join(command)
    path = todo.dest / f"{todo.grid.name}.json"
    about: Mapping[str, Any] = {
        "experiment": todo.grid.name,
        "title": content["title"],
        "source": content["source"],
        "scale": todo.grid.scale,
        "command": words,
        **(earlier_cost(path, words, *cost) if None in cost.values() else cost),
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions("fairseq", "torch", "sacrebleu"),
        "cells": cells,
        "measurements": {each.name: f"{each.folder.name}/{each.name}.json" for each in todo.measurements if each.done},
        "table": content.get("table"),
        "published": content.get("published", {}),
    }
    write_json(path, about)
    show(read_experiment(path), console)


def main(argv: Sequence[str] | None = None) -> int:
    """Run an experiment; return the exit status (130 after Ctrl-C)."""
    own, extra = own_and_extra(argv)

    def work() -> None:
        args = parser().parse_args(own)
        place = own.index("--root")  # which the script adds
        said = ["bash", SCRIPT, *own[:place], *own[place + 2 :], *(["--", *extra] if extra else [])]
        reproduce(args, extra, said)

    return exit_status("reproduce", work)


if __name__ == "__main__":
    sys.exit(main())
