"""The JSON that commands leave in a training's folder, and the records of `lnplace evaluate` among it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Evaluation", "read_evaluations", "read_json"]


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


def read_json(path: Path) -> Any:
    """Return a JSON file's content, or None where there is none, or something else."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_evaluations(folder: Path) -> Iterator[Evaluation]:
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
