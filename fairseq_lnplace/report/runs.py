"""Trainings read back from the folders in which they left their logs, records and measurements.

A folder is an experiment's cell (`experiments/runner.py`) or any ``--save-dir`` of `fairseq-train`:

    cell.json            of a cell: its title, the command in full and what became of it
    train.log            fairseq's log; of a --save-dir any *.log with the lines that ``--log-format json`` writes
    *.json               what `lnplace evaluate` wrote
    layer_stats.jsonl    what ``fairseq-train --log-layer-stats N`` wrote
"""

from __future__ import annotations

import ast
import fcntl
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairseq_lnplace import placements
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.experiments.training_log import TrainingLog, gave_up, last_line, read_log

__all__ = ["Evaluation", "TrainedRun", "placement_of", "read_json", "read_run", "read_runs"]

CELL = "cell.json"
LOG = "train.log"
LAYER_STATS = "layer_stats.jsonl"
# The groups of fairseq's configuration whose name is an option of fairseq-train's, and that option.
NAMED = {
    "model": "arch",
    "task": "task",
    "criterion": "criterion",
    "optimizer": "optimizer",
    "lr_scheduler": "lr-scheduler",
}
# Those that other commands than fairseq-train read.
FOREIGN = ("common_eval", "generation", "eval_lm", "interactive", "scoring")


@dataclass(frozen=True)
class Evaluation:
    """One record of `lnplace evaluate`.

    Attributes:
        record: the file.
        subset: the split that was translated.
        checkpoint: the checkpoint's file name.
        epoch: of the checkpoint at an epoch's end; None of any other, such as the best or an average.
        decoding: the search's options.
        scores: ``bleu`` and ``chrf`` (0 to 100), and whatever else the record scores.
        signatures: of those scores that have one.
        versions: of the packages that scored.
        command: that wrote the record.
    """

    record: Path
    subset: str
    checkpoint: str
    epoch: int | None
    decoding: Mapping[str, Any]
    scores: Mapping[str, float]
    signatures: Mapping[str, str]
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""


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
        state=_state_of_cell(cell["state"], folder) if cell else _state_of_log(path, log),
        log=log,
        evaluations=tuple(_evaluations(folder)),
        layer_stats=_layer_stats(folder / LAYER_STATS),
    )


def placement_of(arch: str) -> str:
    """Return the placement that an architecture's name holds ("transformer_postln_tiny": "postln")."""
    return max((name for name in placements.names() if f"_{name}_" in f"{arch}_"), key=len, default="")


def options_of(command: str) -> dict[str, Any]:
    """Return the options of a command of `fairseq-train`, however it is started; the folder after it is ``data``."""
    words = shlex.split(command)
    start = next((place for place, word in enumerate(words) if word in ("fairseq-train", "fairseq_cli.train")), 0)
    options: dict[str, Any] = {}
    name, values = "data", list[str]()
    for word in [*words[start + 1 :], "--"]:
        if word.startswith("--"):
            options[name] = " ".join(values) or True
            name, _, value = word[2:].partition("=")
            values = [value] if value else []
        else:
            values.append(word)
    return options


class _AsDicts(ast.NodeTransformer):
    """Turns the ``Namespace(name=value)`` of older models, and ``inf``, into what is a Python literal."""

    def visit_Call(self, node: ast.Call) -> ast.Dict:
        """Return the call's keywords as a dict."""
        values = [self.visit(keyword.value) for keyword in node.keywords]
        return ast.Dict([ast.Constant(keyword.arg) for keyword in node.keywords], values)

    def visit_Name(self, node: ast.Name) -> ast.Constant:
        """Return the number that a name is, such as inf."""
        return ast.Constant(float(node.id))


def logged_options(path: Path) -> dict[str, Any]:
    """Return the options of the configuration that fairseq logs at its start; none where that cannot be read."""
    with path.open(encoding="utf-8", errors="replace") as file:
        line = next((line for line in file if "{'_name': None, 'common': {" in line), "")
    try:
        config = ast.literal_eval(_AsDicts().visit(ast.parse(line[line.find("{") :].strip(), mode="eval")).body)
    except (SyntaxError, ValueError):
        return {}
    options: dict[str, Any] = {}
    for group, values in config.items():
        if isinstance(values, dict) and group not in FOREIGN:
            # Older models come with all options there are; each is the other group's own.
            options = {**flat(values), **options} if group == "model" else {**options, **flat(values)}
            if values.get("_name"):
                options[NAMED.get(group, group)] = values["_name"]
    return options


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a group's values as options: ``{"encoder": {"embed_dim": 8}}`` is ``{"encoder-embed-dim": 8}``."""
    options: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            options |= flat(value, f"{prefix}{name}-")
        elif value is not None and not name.endswith("_name"):
            only = value[0] if isinstance(value, list) and len(value) == 1 else value
            options[f"{prefix}{name}".replace("_", "-")] = only
    return options


def _log_of(folder: Path) -> Path | None:
    """Return the log of a --save-dir: train.log, or the first other one that a training has begun in JSON lines."""
    paths = [path for path in [folder / LOG, *sorted(folder.glob("*.log"))] if path.exists()]
    return next((path for path in paths if logged_options(path).get("log-format") == "json" or _rows(path)), None)


def _rows(path: Path) -> int:
    log = read_log(path)
    return len(log.inner) + len(log.valid)


def _state_of_cell(recorded: str, folder: Path) -> str:
    """Return a cell's state: one that was recorded as at work, and is no longer, was interrupted."""
    if recorded not in ("training", "evaluating"):
        return recorded
    try:
        with (folder / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return recorded  # the runner holds the folder
    except OSError:
        pass  # the folder was copied without its lock
    return "interrupted"


def _state_of_log(path: Path, log: TrainingLog) -> str:
    """Return the state that a log of fairseq's ends in."""
    last, crash = last_line(path), path.with_name("crash.pt")  # saved for gradients that are not finite
    if re.search(r"done training in [\d.]+ seconds$", last):
        return "diverged" if log.diverged else "finished"
    if log.diverged or gave_up(path):
        return "diverged"
    if crash.exists() and crash.stat().st_mtime >= path.stat().st_mtime:
        return "diverged"  # of which --log-file tells nothing
    return "failed" if re.match(r"[\w.]*(Error|Exception)\b", last) else "interrupted"


def read_json(path: Path) -> Any:
    """Return a JSON file's content, or None where there is none, or something else."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _evaluations(folder: Path) -> Iterator[Evaluation]:
    """Give the evaluations whose records lie in the folder."""
    for path in sorted(folder.glob("*.json")):
        record = read_json(path)
        if not (isinstance(record, dict) and {"subset", "checkpoint", "decoding"} <= record.keys()):
            continue
        checkpoint = Path(record["checkpoint"])
        number = checkpoint.stem.removeprefix("checkpoint")
        scored = {name: value for name, value in record.items() if isinstance(value, dict) and "score" in value}
        yield Evaluation(
            record=path,
            subset=record["subset"],
            checkpoint=checkpoint.name,
            epoch=int(number) if number.isdecimal() else None,
            decoding=record["decoding"],
            scores={name: value["score"] for name, value in scored.items()},
            signatures={name: value["signature"] for name, value in scored.items() if "signature" in value},
            versions=record.get("versions", {}),
            command=record.get("command", ""),
        )


def _layer_stats(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the statistics, if the training wrote any."""
    if not path.exists():
        return []
    from fairseq_lnplace.measure.layer_stats import read_layer_stats  # imports torch

    return [asdict(row) for row in read_layer_stats(path)]
