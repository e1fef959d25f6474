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
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import fairseq_lnplace
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.experiments.devices import Devices, Environment
from fairseq_lnplace.experiments.grid import Cell, Grid, fingerprint, option_of, words
from fairseq_lnplace.files import new_file, write_json
from fairseq_lnplace.runs.training_log import gave_up, last_line, read_log

__all__ = ["Run", "plan", "run_all"]

Call = Callable[[Sequence[str], Path], Awaitable[int]]

# Commands are run as modules of this very Python, whatever PATH says.
MODULES = {"fairseq-train": "fairseq_cli.train", "lnplace": "fairseq_lnplace", "torchrun": "torch.distributed.run"}
EVALUATION_SHARE = 0.1  # of a cell's time, for the progress shown


@dataclass
class Run:
    """A cell in its folder.

    Attributes:
        data: the prepared data.
        folder: this cell's own.
        state: ``waiting``, ``training``, ``evaluating``, ``finished``, ``diverged`` or ``failed``.
        error: after a failure, one sentence.
        devices: what it is trained on.
        parent: the run from whose last checkpoint this one starts.
    """

    cell: Cell
    data: Path
    folder: Path
    state: str = "waiting"
    error: str = ""
    devices: Devices = field(default_factory=Devices)
    parent: Run | None = None

    @property
    def train_log(self) -> Path:
        """fairseq's log of the training, over all interruptions."""
        return self.folder / "train.log"

    def train_command(self) -> tuple[str, ...]:
        """Return the `fairseq-train` command in full."""
        plugin = Path(fairseq_lnplace.__file__).parent
        fixed = ("--user-dir", str(plugin), "--save-dir", str(self.folder), "--log-format", "json")
        # unlike --restore-file, this leaves an interrupted training to its own last checkpoint
        start = ("--finetune-from-model", str(self.parent.folder / "checkpoint_last.pt")) if self.parent else ()
        options = self.devices.options(self.cell.tokens_per_update)
        command = (*self.devices.launcher, str(self.data), *fixed, "--log-interval", "10", *start, *options)
        return (*command, *self.cell.train)

    def evaluations(self) -> Iterator[tuple[Path, tuple[str, ...]]]:
        """Give the file that each step of the evaluation leaves and its command, as far as checkpoints exist.

        A step is an average of checkpoints, or the evaluation of one, whose record is the file.
        """
        for options in self.cell.evaluate:
            pattern = options.get("checkpoint")
            if pattern is None:
                pattern = f"average{options['average']}.pt"
                average = ("lnplace", "average", str(self.folder), "--last", str(options["average"]))
                yield self.folder / pattern, (*average, "--output", str(self.folder / pattern))
            for checkpoint in sorted(self.folder.glob(pattern)):
                search = {key: value for key, value in options.items() if key not in ("checkpoint", "average")}
                how = (f"-{key}{value}" for key, value in search.items() if key != "gen-subset")
                output = checkpoint.with_suffix(f".{search['gen-subset']}{''.join(how)}.json")
                given = {**search, "checkpoint": checkpoint, "data": self.data, "output": output}
                yield output, ("lnplace", "evaluate", *words(given))

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
        levels = {"levels": dict(self.cell.levels)} if self.cell.levels else {}
        write_json(self.folder / "cell.json", {**cell, **levels, "state": self.state, **more})


def plan(
    grid: Grid,
    data: Path | Mapping[str, Path],
    dest: Path,
    devices: Devices = Devices(),  # noqa: B008 - frozen
    digest_of: Callable[[Path], str] = fingerprint,
) -> list[Run]:
    """Return the grid's cells in their folders below ``dest``, with the state in which earlier calls have left them.

    Args:
        data: the prepared folder, or that of each cell's ``data``.
        digest_of: tells one folder's content from another's.

    Raises:
        LnplaceError: ``data`` is no prepared folder.
    """
    digests: dict[Path, str] = {}
    runs: dict[str, Run] = {}
    for cell in grid.cells:
        folder = data if isinstance(data, Path) else data[str(cell.data)]
        digest = digests[folder] = digests.get(folder) or digest_of(folder)
        parent = runs[cell.after] if cell.after else None
        key = cell.key(digest, *devices.settings, *([parent.folder.name] if parent else []))
        run = runs[cell.name] = Run(cell, folder, dest / f"{cell.name}-{key}", devices=devices, parent=parent)
        record = run.folder / "cell.json"
        known = json.loads(record.read_text(encoding="utf-8"))["state"] if record.exists() else "waiting"
        if known == "diverged" or (known == "finished" and all(output.exists() for output, _ in run.evaluations())):
            run.state = known
    return list(runs.values())


@contextmanager
def alone(folder: Path) -> Iterator[int]:
    """Hold a cell's folder for this call; the descriptor is handed to child processes, which so hold it, too.

    Raises:
        LnplaceError: another call, or what it left running, is at work there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LnplaceError(f"Another call is at work in {folder}: wait for it, or end it") from None
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


async def call(command: Sequence[str], log: Path, environment: Mapping[str, str], lock: int) -> int:
    """Run a command, its output added to ``log``; return its exit status. The process ends when this is cancelled."""
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", MODULES[command[0]], *command[1:]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            pass_fds=[lock],
            start_new_session=True,  # Ctrl-C is for us to pass on
        )
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def perform(run: Run, call: Call) -> None:
    """Train and evaluate one cell, from where it stands; its state says how that ended."""
    if run.parent and run.parent.state != "finished":
        fail(run, f"it starts from {run.parent.cell.title}, which is {run.parent.state}")
        return
    trained = run.folder / "trained"
    if not trained.exists():
        run.state = "training"
        run.record()
        mend_last_checkpoint(run.folder)
        status = await call(run.train_command(), run.train_log)
        if (status and gave_up(run.train_log)) or read_log(run.train_log).diverged:
            run.state = "diverged"
            run.record()
            return
        if status:
            fail(run, ended("training", status, run.train_log))
            return
        trained.touch()
    run.state = "evaluating"
    run.record()
    log = run.folder / "evaluate.log"
    for output, command in run.evaluations():
        if not output.exists() and (status := await call(command, log)):
            fail(run, ended("evaluation", status, log))
            return
    run.state = "finished"
    run.record()


def ended(what: str, status: int, log: Path) -> str:
    """Return how a command failed."""
    return f"{what} ended with status {status}, {last_line(log)!r} (log: {log})"


def fail(run: Run, why: str) -> None:
    """Note a failure; the other cells go on, and a further call tries again."""
    run.state = "failed"
    run.error = f"{run.cell.title}: {why}"
    run.record(error=run.error)


def run_all(runs: Sequence[Run], slots: Sequence[Environment], show: Callable[[], None], every: float = 0.5) -> None:
    """Bring every run to its end.

    Args:
        runs: each after the one from which it starts.
        slots: as many cells are at work at the same time as there are slots, each with the environment of its slot.
        show: called every ``every`` seconds, and once at the end.

    Raises:
        LnplaceError: another call is at work on one of the runs.
        KeyboardInterrupt: Ctrl-C, SIGTERM or a closed terminal; all processes have ended by then, and a further call
            continues.
    """
    waiting = [run for run in runs if run.state == "waiting"]

    async def in_turn(run: Run, lock: int, free: asyncio.Queue[Environment], parent: asyncio.Task[None] | None) -> None:
        if parent:
            await asyncio.wait([parent])
        slot = await free.get()
        try:
            await perform(run, partial(call, environment=slot, lock=lock))
        finally:
            free.put_nowait(slot)

    async def main(locks: Mapping[str, int]) -> None:
        free: asyncio.Queue[Environment] = asyncio.Queue()
        for slot in slots:
            free.put_nowait(slot)
        work: dict[str, asyncio.Task[None]] = {}
        for run in waiting:
            parent = work.get(run.cell.after or "")
            work[run.cell.name] = asyncio.create_task(in_turn(run, locks[run.cell.name], free, parent))
        everything = asyncio.gather(*work.values())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, everything.cancel)
        try:
            while not everything.done():
                show()
                await asyncio.wait([everything], timeout=every)
            await everything
        except asyncio.CancelledError:
            await asyncio.gather(*work.values(), return_exceptions=True)  # until the processes have ended
            raise KeyboardInterrupt from None

    with ExitStack() as held:
        asyncio.run(main({run.cell.name: held.enter_context(alone(run.folder)) for run in waiting}))
    show()
