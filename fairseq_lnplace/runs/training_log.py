"""What a training has logged, read back from the file that `fairseq-train --log-format json` wrote."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["TrainingLog", "last_line", "read_log"]

# A record as fairseq-train prints it, as --log-file writes it, and as fairseq-hydra-train logs it.
_LINE = re.compile(r'(?:^| \| (?:train_inner|train|valid) \| |\]\[INFO\] - )(\{"epoch".*\})$')

Row = dict[str, float]


@dataclass(frozen=True)
class TrainingLog:
    """Rows in the order of their updates; a stretch that was trained twice, after an interruption, counts once.

    Losses are fairseq's: in bits a token. ``epoch`` counts from 0 and has fractions.

    Attributes:
        inner: ``epoch, updates, loss, nll_loss, ppl, lr, gnorm, …`` every few updates.
        valid: ``epoch, updates, loss, nll_loss, ppl, …`` at each validation.
        seconds: spent on the updates of ``inner``, without validation and start.
    """

    inner: list[Row]
    valid: list[Row]
    seconds: float

    @property
    def diverged(self) -> bool:
        """Whether the training's or the validation's last loss is not a number, or infinite."""
        return any(rows and not math.isfinite(rows[-1]["loss"]) for rows in (self.inner, self.valid))


def _kind(record: dict[str, object]) -> str:
    """Return what a record is of: ``train_inner``, ``train``, or the subset that was validated on."""
    loss = next((name for name in record if name == "loss" or name.endswith("_loss")), "")
    return "train_inner" if loss == "loss" else loss.removesuffix("_loss")


def _row(record: dict[str, object], prefix: str = "") -> Row:
    """Return a logged record's numbers, without the prefix that fairseq gives the names at an epoch's end."""
    row: Row = {}
    for name, value in record.items():
        try:
            row[name.removeprefix(prefix)] = float(str(value))
        except ValueError:
            continue
    row["updates"] = row.pop("num_updates", 0.0)
    return row


def _text(path: Path, tail: int | None = None) -> str:
    """Return a log's text, or its last ``tail`` bytes' (the first line may then be cut); nothing if there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        if tail is not None:
            file.seek(max(0, path.stat().st_size - tail))
        return file.read().decode("utf-8", errors="replace")


def read_log(path: Path, tail: int | None = None) -> TrainingLog:
    """Return what the log holds, or only what its last ``tail`` bytes hold; nothing if there is none yet."""
    rows: dict[str, dict[float, Row]] = {"train_inner": {}, "train": {}, "valid": {}}
    for line in _text(path, tail).split("\n"):
        if match := _LINE.search(line):
            record = json.loads(match[1])
            kind = _kind(record)
            if kind not in rows:
                continue
            row = _row(record, "" if kind == "train_inner" else f"{kind}_")
            for later in [updates for updates in rows[kind] if updates > row["updates"]]:
                del rows[kind][later]  # the training has gone back to a checkpoint before these
            rows[kind][row["updates"]] = row
    inner, ends, valid = (list(by_updates.values()) for by_updates in rows.values())
    for row in inner:
        row["epoch"] = row.pop("update")
    # A validation's record says in which epoch it fell, not how far into it.
    known = next((row for row in (*reversed(ends), *reversed(inner)) if row["updates"]), {"epoch": 0.0, "updates": 1.0})
    for row in valid:
        row["epoch"] = row["updates"] * known["epoch"] / known["updates"]
    return TrainingLog(inner, valid, sum(row["train_wall"] for row in inner))


def gave_up(path: Path) -> bool:
    """Return whether fairseq refused values that are not finite and trained no further; torchrun has more to say."""
    said = re.split(r"^(?:\[rank\d+\]:\s*)?FloatingPointError: ", _text(path, tail=10_000), flags=re.MULTILINE)
    return len(said) > 1 and not any(map(_LINE.search, said[-1].split("\n")))


def last_line(path: Path) -> str:
    """Return the last line of a log that is not empty: after a failure, the exception's message."""
    lines = _text(path, tail=10_000).split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing was logged")
