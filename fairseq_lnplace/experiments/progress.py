"""Shows runs at work: a bar for each, and one, with the time left, for all."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from fairseq_lnplace.experiments.devices import Environment
from fairseq_lnplace.experiments.runner import Run, run_all
from fairseq_lnplace.runs.training_log import read_log

__all__ = ["watch"]

PARTS = 1000  # of a run, in the progress bar
AT_WORK = ("training", "evaluating")


def parts(run: Run) -> int:
    """Return how many of its PARTS a run has done."""
    return round(PARTS * run.progress())


def last_loss(run: Run) -> str:
    """Return the last validation loss, in words."""
    valid = read_log(run.train_log, tail=10_000).valid
    return f", loss {valid[-1]['loss']:.2f}" if valid else ""


def watch(runs: Sequence[Run], slots: Sequence[Environment], console: Console, few: int = 6) -> None:
    """Bring every run to its end; with more than ``few`` runs only those at work have bars.

    Where the output goes to a file or a pipe, each run that ends is told in a line.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[note]}"))
    remaining = TimeRemainingColumn(elapsed_when_finished=True)
    with Progress(*columns, remaining, console=console, speed_estimate_period=120) as bars:
        tasks = [bars.add_task(run.cell.title, total=PARTS, completed=parts(run), note="") for run in runs]
        everything = bars.add_task("all", total=PARTS * len(runs), completed=sum(map(parts, runs)), note="time left")
        states = [run.state for run in runs]

        def show() -> None:
            for number, (task, run) in enumerate(zip(tasks, runs, strict=True)):
                visible = len(runs) <= few or run.state in AT_WORK
                bars.update(task, completed=parts(run), note=run.state + last_loss(run), visible=visible)
                if not console.is_terminal and run.state != states[number] and run.state not in AT_WORK:
                    console.print(f"{run.cell.title}: {run.state}{last_loss(run)}", soft_wrap=True)
                    states[number] = run.state
            bars.update(everything, completed=sum(map(parts, runs)))

        run_all(runs, slots, show)
