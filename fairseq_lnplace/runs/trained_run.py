"""Trainings read back from the folders in which they left their logs, records and measurements.

A folder is an experiment's cell (`experiments/runner.py`) or any ``--save-dir`` of `fairseq-train`:

    cell.json            of a cell: its title, the command in full and what became of it
    train.log            fairseq's log; of a --save-dir any *.log with the lines that ``--log-format json`` writes
    *.json               what `lnplace evaluate` wrote
    layer_stats.jsonl    what ``fairseq-train --log-layer-stats N`` wrote
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.runs.training_log import TrainingLog, read_log
from fairseq_lnplace.runs.options import logged_options, options_of, placement_of
from fairseq_lnplace.runs.records import Evaluation, read_evaluations, read_json
from fairseq_lnplace.runs.states import state_of_cell, state_of_log

__all__ = ["TrainedRun", "read_run", "read_runs"]

CELL = "cell.json"
LOG = "train.log"
LAYER_STATS = "layer_stats.jsonl"


@dataclass(frozen=True)
class TrainedRun:
    """One training, as far as it has come.

    Attributes:
        folder: where all of it lies.
        name: short; a cell's name, or the folder's.
        title: what tables and pictures call it.
        arch: the architecture, or the registered model; empty if unknown.
        placement: its placement; empty for stock fairseq's models.
        seed: fairseq's ``--seed``, which is 1 unless given.
        command: the `fairseq-train` command in full; empty if unknown.
        options: of the training by name, as in ``label-smoothing``; the words of the command where that is known (true
            for a flag), else all values of fairseq's configuration that are not None.
        state: ``training``, ``evaluating``, ``finished``, ``interrupted``, ``diverged`` or ``failed``. The log of a
            --save-dir cannot tell a training that goes on from one that was interrupted, and says the latter.
        log: what was logged.
        evaluations: in the order of their records' names.
        layer_stats: rows of ``--log-layer-stats``: ``updates, side, layer, part, gradient, activation, …``.
    """

    folder: Path
    name: str
    title: str
    arch: str
    placement: str
    seed: int
    command: str
    options: Mapping[str, Any]
    state: str
    log: TrainingLog
    evaluations: tuple[Evaluation, ...] = ()
    layer_stats: Sequence[Mapping[str, Any]] = ()

    @property
    def updates(self) -> int:
        """How many updates were logged."""
        return int(max((rows[-1]["updates"] for rows in (self.log.inner, self.log.valid) if rows), default=0))

    @property
    def test(self) -> Evaluation | None:
        """What stands for the run in a table: of the test set, the best checkpoint or an average, else the last."""
        tested = [each for each in self.evaluations if each.subset == "test"]
        return max(tested, key=lambda each: math.inf if each.epoch is None else each.epoch, default=None)


def read_runs(paths: Sequence[Path]) -> list[TrainedRun]:
    """Return the trainings of the folders, each once; a folder is a training's own, or one that holds several.

    Raises:
        LnplaceError: a path is no folder, or no training has logged anything there.
    """
    folders = [folder for path in paths for folder in _folders(path)]
    return [read_run(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]


def _folders(path: Path) -> Iterator[Path]:
    """Give the trainings' folders at ``path``."""
    if not path.is_dir():
        raise must_be(
            "RUN", "the folder of a training", f"{path}, which is {'a file' if path.exists() else 'not there'}"
        )
    if _is_run(path):
        yield path
        return
    inside = sorted(folder for folder in path.iterdir() if folder.is_dir() and _is_run(folder))
    if not inside:
        raise _no_log(path)
    yield from inside


def _is_run(folder: Path) -> bool:
    return (folder / CELL).exists() or _log_of(folder) is not None


def _no_log(folder: Path) -> LnplaceError:
    return LnplaceError(
        f"No log of a training with JSON lines is in {folder}: "
        f"`fairseq-train --log-format json --log-file {folder / LOG}` writes one, once the folder is there"
    )


def read_run(folder: Path) -> TrainedRun:
    """Return the training of a folder.

    Raises:
        LnplaceError: there is no such folder, or nothing was logged there.
    """
    if not folder.is_dir():
        raise must_be("RUN", "the folder of a training", f"{folder}, which is not there")
    cell = read_json(folder / CELL) or {}
    path = folder / LOG if cell else _log_of(folder)
    if path is None:
        raise _no_log(folder)
    log = read_log(path)
    command = str(cell.get("command", ""))
    options = options_of(command) if command else logged_options(path)
    arch = str(options.get("arch", ""))
    return TrainedRun(
        folder=folder,
        name=cell.get("cell") or folder.resolve().name,
        title=cell.get("title") or folder.resolve().name,
        arch=arch,
        placement=str(options.get("placement") or placement_of(arch)),
        seed=int(options.get("seed", 1)),
        command=command,
        options=options,
        state=state_of_cell(cell["state"], folder) if cell else state_of_log(path, log),
        log=log,
        evaluations=tuple(read_evaluations(folder)),
        layer_stats=_layer_stats(folder / LAYER_STATS),
    )


def _log_of(folder: Path) -> Path | None:
    """Return the log of a --save-dir: train.log, or the first other one that a training has begun in JSON lines."""
    paths = [path for path in [folder / LOG, *sorted(folder.glob("*.log"))] if path.exists()]
    return next((path for path in paths if logged_options(path).get("log-format") == "json" or _rows(path)), None)


def _rows(path: Path) -> int:
    log = read_log(path)
    return len(log.inner) + len(log.valid)


def _layer_stats(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the statistics, if the training wrote any."""
    if not path.exists():
        return []
    from fairseq_lnplace.measure.layer_stats import read_layer_stats  # imports torch

    return [asdict(row) for row in read_layer_stats(path)]
