"""Runs a grid's cells side by side: skips what is finished, continues what was interrupted.

Each cell has a folder named by its settings and data, so that nothing is overwritten and nothing done twice:

    NAME-KEY/cell.json     the command in full and what became of it
    NAME-KEY/train.log     fairseq's log; evaluate.log likewise
    NAME-KEY/checkpoint*   fairseq's checkpoints, and beside each its evaluations (.json)
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shlex
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fairseq_lnplace
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.experiments.grid import Cell, Grid, fingerprint, option_of
from fairseq_lnplace.experiments.training_log import last_line, read_log
from fairseq_lnplace.files import new_file, write_json

__all__ = ["Run", "plan", "run_all"]

# Commands are run as modules of this very Python, whatever PATH says.
MODULES = {"fairseq-train": "fairseq_cli.train", "lnplace": "fairseq_lnplace"}
EVALUATION_SHARE = 0.1  # of a cell's time, for the progress shown


@dataclass
class Run:
    """A cell in its folder.

    Attributes:
        data: the prepared data.
        folder: this cell's own.
        state: ``waiting``, ``training``, ``evaluating``, ``finished``, ``diverged`` or ``failed``.
        error: after a failure, one sentence.
    """

    cell: Cell
    data: Path
    folder: Path
    state: str = "waiting"
    error: str = ""

    @property
    def train_log(self) -> Path:
        """fairseq's log of the training, over all interruptions."""
        return self.folder / "train.log"

    def train_command(self) -> tuple[str, ...]:
        """Return the `fairseq-train` command in full."""
        plugin = Path(fairseq_lnplace.__file__).parent
        fixed = ("--user-dir", str(plugin), "--save-dir", str(self.folder), "--log-format", "json")
        return ("fairseq-train", str(self.data), *fixed, "--log-interval", "10", *self.cell.train)

    def evaluations(self) -> Iterator[tuple[Path, tuple[str, ...]]]:
        """Give the record's path and the `lnplace evaluate` command of each evaluation, as far as checkpoints exist."""
        for options in self.cell.evaluate:
            for checkpoint in sorted(self.folder.glob(options["checkpoint"])):
                search = [
                    f"{name}{value}" for name, value in options.items() if name not in ("checkpoint", "gen-subset")
                ]
                output = checkpoint.with_suffix(f".{'-'.join([options['gen-subset'], *search])}.json")
                given = {**options, "checkpoint": checkpoint, "data": self.data, "output": output}
                flags = [word for name, value in given.items() for word in (f"--{name}", str(value))]
                yield output, ("lnplace", "evaluate", *flags)

    def progress(self) -> float:
        """Return the share of the cell's work that is done, 0 to 1."""
        if self.state in ("finished", "diverged", "failed"):
            return 1.0
        share = EVALUATION_SHARE if self.cell.evaluate else 0.0
        if self.state == "evaluating":
            done = [output.exists() for output, _ in self.evaluations()]
            return 1 - share + share * sum(done) / max(len(done), 1)
        inner = read_log(self.train_log, tail=10_000).inner
        limits = {"epoch": option_of(self.cell.train, "max-epoch"), "updates": option_of(self.cell.train, "max-update")}
        parts = [inner[-1][unit] / float(limit) for unit, limit in limits.items() if limit and inner]
        return (1 - share) * min(1.0, max(parts, default=0.0))

    def record(self, **more: Any) -> None:
        """Write down the command and the state."""
        cell = {"cell": self.cell.name, "title": self.cell.title, "command": shlex.join(self.train_command())}
        write_json(self.folder / "cell.json", {**cell, "state": self.state, **more})


def plan(grid: Grid, data: Path, dest: Path) -> list[Run]:
    """Return the grid's cells in their folders below ``dest``, with the state in which earlier calls have left them.

    Raises:
        LnplaceError: ``data`` is no prepared folder.
    """
    digest = fingerprint(data)
    runs = [Run(cell, data, dest / f"{cell.name}-{cell.key(digest)}") for cell in grid.cells]
    for run in runs:
        record = run.folder / "cell.json"
        known = json.loads(record.read_text(encoding="utf-8"))["state"] if record.exists() else "waiting"
        if known == "diverged" or (known == "finished" and all(output.exists() for output, _ in run.evaluations())):
            run.state = known
    return runs


@contextmanager
def alone(dest: Path) -> Iterator[int]:
    """Hold ``dest`` for this call; the descriptor is handed to child processes, which so hold it as long as they live.

    Raises:
        LnplaceError: another call, or what it left running, is at work there.
    """
    dest.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(dest / ".lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LnplaceError(f"Another call is at work in {dest}: wait for it, or end it") from None
    else:
        yield descriptor
    finally:
        os.close(descriptor)


def mend_last_checkpoint(folder: Path) -> None:
    """See to it that a training interrupted while it wrote can continue.

    fairseq writes one checkpoint atomically and then copies it to checkpoint_last.pt: a copy that was cut short is
    replaced by the newest checkpoint that is whole.
    """
    last = folder / "checkpoint_last.pt"
    if not last.exists() or zipfile.is_zipfile(last):
        return
    whole = [path for path in folder.glob("checkpoint*.pt") if zipfile.is_zipfile(path)]
    if not whole:
        last.unlink()
        return
    with new_file(last) as partial:
        shutil.copy(max(whole, key=lambda path: path.stat().st_mtime), partial)


class Processes:
    """Starts commands of this environment, a limited number of threads each; ends them when it is cancelled."""

    def __init__(self, threads: int, lock: int) -> None:
        self.lock = lock
        count = str(threads)
        self.environment = {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "PYTHONUNBUFFERED": "1"}

    async def call(self, command: Sequence[str], log: Path) -> int:
        """Run a command, its output added to ``log``; return its exit status."""
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", MODULES[command[0]], *command[1:]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                pass_fds=[self.lock],
                start_new_session=True,  # Ctrl-C is for us to pass on
            )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


async def perform(run: Run, processes: Processes) -> None:
    """Train and evaluate one cell, from where it stands; its state says how that ended."""
    run.folder.mkdir(parents=True, exist_ok=True)
    trained = run.folder / "trained"
    if not trained.exists():
        run.state = "training"
        run.record()
        mend_last_checkpoint(run.folder)
        status = await processes.call(run.train_command(), run.train_log)
        gave_up = status and last_line(run.train_log).startswith("FloatingPointError")
        if gave_up or read_log(run.train_log).diverged:
            run.state = "diverged"
            run.record()
            return
        if status:
            fail(run, "training", status, run.train_log)
            return
        trained.touch()
    run.state = "evaluating"
    run.record()
    log = run.folder / "evaluate.log"
    for output, command in run.evaluations():
        if not output.exists() and (status := await processes.call(command, log)):
            fail(run, "evaluation", status, log)
            return
    run.state = "finished"
    run.record()


def fail(run: Run, what: str, status: int, log: Path) -> None:
    """Note a failure; the other cells go on, and a further call tries again."""
    run.state = "failed"
    run.error = f"{run.cell.title}: {what} ended with status {status}, {last_line(log)!r} (log: {log})"
    run.record(error=run.error)


def run_all(
    runs: Sequence[Run], dest: Path, jobs: int, threads: int, show: Callable[[], None], every: float = 0.5
) -> None:
    """Bring every run to its end.

    Args:
        dest: the runs' common folder.
        jobs: cells at work at the same time.
        threads: of each process.
        show: called every ``every`` seconds, and once at the end.

    Raises:
        KeyboardInterrupt: Ctrl-C, SIGTERM or a closed terminal; all processes have ended by then, and a further call
            continues.
    """

    async def limited(run: Run, free: asyncio.Semaphore, processes: Processes) -> None:
        async with free:
            await perform(run, processes)

    async def main(lock: int) -> None:
        free, processes = asyncio.Semaphore(jobs), Processes(threads, lock)
        work = [asyncio.create_task(limited(run, free, processes)) for run in runs if run.state == "waiting"]
        everything = asyncio.gather(*work)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, everything.cancel)
        try:
            while not everything.done():
                show()
                await asyncio.wait([everything], timeout=every)
            await everything
        except asyncio.CancelledError:
            await asyncio.gather(*work, return_exceptions=True)  # until the processes have ended
            raise KeyboardInterrupt from None

    with alone(dest) as lock:
        asyncio.run(main(lock))
    show()
