"""What an experiment measures when its cells are trained: calls of `lnplace diagnose`, each done once."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.experiments.grid import fingerprint
from fairseq_lnplace.experiments.runner import Run

__all__ = ["Measurement", "measure", "measurements"]


@dataclass(frozen=True)
class Measurement:
    """A call of `lnplace`, whose results go to a folder named by what is measured."""

    name: str
    folder: Path
    command: tuple[str, ...]

    @property
    def done(self) -> bool:
        """Whether an earlier call has measured it."""
        return any(self.folder.glob("*.json"))


def measurements(
    commands: Mapping[str, str], runs: Sequence[Run], data: Mapping[str, Path], dest: Path
) -> list[Measurement]:
    """Return the measurements of a grid's file, where ``{CELL}`` is a cell's folder and ``{data}`` the data's.

    A measurement of a cell that is not among the runs is left out.
    """
    (folder,) = {*data.values()} if commands else {dest}
    places = {"data": str(folder), **{run.cell.name: str(run.folder) for run in runs}}
    key = fingerprint(folder) if commands and folder.exists() else ""
    found = []
    for name, line in commands.items():
        try:
            words = tuple(word.format_map(places) for word in shlex.split(line))
        except KeyError:
            continue
        digest = hashlib.sha256(repr((words, key)).encode()).hexdigest()[:8]
        target = dest / f"{name}-{digest}"
        found.append(Measurement(name, target, ("lnplace", *words, "--dest", str(target))))
    return found


def measure(measurement: Measurement, console: Console) -> None:
    """Measure, unless it is done.

    Raises:
        LnplaceError: the command failed.
    """
    if measurement.done:
        return
    console.print(f"measuring {measurement.name}, for {measurement.folder}", soft_wrap=True, highlight=False)
    command = [sys.executable, "-m", "fairseq_lnplace", *measurement.command[1:]]
    call = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)  # what it prints is in the folder, too
    if call.returncode:
        raise LnplaceError(f"{shlex.join(measurement.command)} failed; what it says above tells why")
