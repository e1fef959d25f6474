"""A grid of trainings: cells, each one `fairseq-train` command, read from a YAML file.

The file holds ``common`` options, ``cells`` with a ``title`` and options of their own, and ``scales``, each with
further options under ``train`` and evaluations under ``evaluate``; see `quickstart.yaml`. ``${.name}`` takes another
option's value, whichever of the three it comes from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fairseq_lnplace.errors import must_be

__all__ = ["Cell", "Grid", "fingerprint", "option_of", "read_grid"]

Options = Mapping[str, Any]


def words(options: Options) -> tuple[str, ...]:
    """Return options as the words of a command line: true is a flag, false and null leave the option out."""
    given = {f"--{name}": value for name, value in options.items() if value is not None and value is not False}
    return tuple(word for name, value in given.items() for word in ([name] if value is True else [name, str(value)]))


def option_of(command: Sequence[str], name: str) -> str | None:
    """Return the value that the command gives to ``--name`` (the last one wins), or None."""
    last = max((place for place, word in enumerate(command[:-1]) if word == f"--{name}"), default=None)
    return None if last is None else command[last + 1]


@dataclass(frozen=True)
class Cell:
    """One training and its evaluations.

    Attributes:
        name: short, names its folder.
        title: what tables and pictures call it.
        train: fairseq-train's options, without the data and folders.
        evaluate: options of `lnplace evaluate` for each evaluation; ``checkpoint`` is a pattern inside the folder.
    """

    name: str
    title: str
    train: tuple[str, ...]
    evaluate: tuple[Options, ...]

    def key(self, data: str) -> str:
        """Return what the training's settings and the data's fingerprint hash to: equal work, equal key."""
        return hashlib.sha256(json.dumps([self.train, data]).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Grid:
    """The cells of an experiment at one scale."""

    name: str
    scale: str
    cells: tuple[Cell, ...]


def read_grid(path: Path, scale: str, extra: Sequence[str] = ()) -> Grid:
    """Return the grid of a file.

    Args:
        scale: one of the file's scales.
        extra: words added to every training's command, where they win.

    Raises:
        LnplaceError: the file has no such scale.
    """
    content: Any = OmegaConf.load(path)
    if scale not in content.scales:
        raise must_be("--scale", f"one of {', '.join(content.scales)}", scale)
    chosen = content.scales[scale]
    evaluate: Any = OmegaConf.to_container(chosen.evaluate)
    cells = []
    for name, own in content.cells.items():
        options: Any = OmegaConf.to_container(OmegaConf.merge(content.common, own, chosen.train), resolve=True)
        title = options.pop("title")
        cells.append(Cell(name, title, (*words(options), *extra), tuple(evaluate)))
    return Grid(path.stem, scale, tuple(cells))


def fingerprint(data: Path) -> str:
    """Return a hash of a prepared folder's content: the dictionaries and the binarised text.

    Raises:
        LnplaceError: the folder holds none.
    """
    files = sorted([*data.glob("dict.*.txt"), *data.glob("*.bin")])
    if not files:
        raise must_be("--data", "a folder that `lnplace prepare` made", data)
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\n{file.stat().st_size}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
