"""A grid of trainings: cells, each one `fairseq-train` command, read from a YAML file.

Every key of an option mapping is an option of fairseq-train, but for those of ``NOT_OPTIONS`` and those that begin
with ``_``: values for others to take by ``${.name}``. The file holds

- ``common``: options of every cell;
- ``blocks``: a list, each with ``options`` of its own and ``product``: factor → level → options. A block gives one
  cell for each combination of levels, named by them; a level of the last factor wins over the first's. A factor that
  is a list of levels gives each the option ``_factor: level``. ``from: NAME`` in a block's place stands for the cells
  of another experiment, and ``keep`` beside it chooses among them. ``cells`` is short for a single block of one factor;
- ``scales``: what a scale adds under ``train``, where it wins over all others, the evaluations of every training under
  ``evaluate``, and under ``keep`` the levels that remain of a factor (all, where it is silent);
- ``table``: the factors down (``rows``) and across (``columns``) the table of results; ``published``: a paper's values,
  and the levels and scale they hold for.

`quickstart.yaml` is the smallest example.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fairseq_lnplace.errors import must_be

__all__ = ["FOLDER", "Cell", "Grid", "fingerprint", "option_of", "read_grid"]

FOLDER = Path(__file__).parent  # of the files
Options = Mapping[str, Any]
NOT_OPTIONS = ("title", "data", "prepare", "evaluate", "after", "tokens-per-update")


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
        title: what tables and pictures call it; the same for every seed.
        train: fairseq-train's options, without the data, folders and devices.
        evaluate: options of `lnplace evaluate` for each evaluation; ``checkpoint`` is a pattern inside the folder, and
            ``average: N`` instead of it is the average of the last N epochs.
        levels: the level of each factor.
        data: the folder of the data, from the repository's root, if the file says it.
        prepare: the script, with its options, that makes the data.
        after: the name of the cell from whose last checkpoint this one starts.
        tokens_per_update: over all devices and batches that make up an update, if the file says it.
    """

    name: str
    title: str
    train: tuple[str, ...]
    evaluate: tuple[Options, ...] = ()
    levels: Mapping[str, str] = field(default_factory=dict)
    data: str | None = None
    prepare: str | None = None
    after: str | None = None
    tokens_per_update: int | None = None

    def key(self, *more: str) -> str:
        """Return what the training's settings and ``more`` (such as the data) hash to: equal work, equal key."""
        tokens = [] if self.tokens_per_update is None else [self.tokens_per_update]
        return hashlib.sha256(json.dumps([self.train, *more, *tokens]).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Grid:
    """The cells of an experiment at one scale; ``content`` is the whole file."""

    name: str
    scale: str
    cells: tuple[Cell, ...]
    content: Mapping[str, Any] = field(default_factory=dict)


def read_grid(
    path: Path, scale: str, extra: Sequence[str] = (), seeds: Sequence[int] = (), only: Sequence[str] = ()
) -> Grid:
    """Return the grid of a file.

    Args:
        scale: one of the file's scales.
        extra: words added to every training's command, where they win.
        seeds: one cell for each, of those whose options name no seed themselves (default: the scale's ``seeds``).
        only: patterns for the names of the cells to keep (all, without a pattern), with those that they start from.

    Raises:
        LnplaceError: the file has no such scale, or no cell has such a name.
    """
    content = _read(path)
    if scale not in content["scales"]:
        raise must_be("--scale", f"one of {', '.join(content['scales'])}", scale)
    seeds = seeds or content["scales"][scale].get("seeds", ())
    cells = []
    for name, levels, options in _combinations(path.parent, content, scale, {}):
        if "seed" in options or not seeds:
            cells.append(_cell(name, levels, options, extra))
        else:
            cells += [_cell(f"{name}-seed{seed}", levels, {**options, "seed": seed}, extra) for seed in seeds]
    return Grid(path.stem, scale, tuple(_chosen(cells, only)), content)


def _combinations(
    folder: Path, content: Any, scale: str, keep: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    """Give each combination of levels: its name, its levels and its options; ``keep`` wins over the file's own."""
    chosen = content["scales"][scale]
    kept = {**chosen.get("keep", {}), **keep}
    for block in content.get("blocks") or [{"product": {"cell": content["cells"]}}]:
        if "from" in block:
            other = _read(folder / f"{block['from']}.yaml")
            yield from _combinations(folder, other, scale, {**block.get("keep", {}), **keep})
            continue
        factors = {factor: _levels(factor, levels) for factor, levels in block["product"].items()}
        left = ([level for level in levels if level in kept.get(factor, levels)] for factor, levels in factors.items())
        for names in itertools.product(*left):
            levels = dict(zip(factors, names, strict=True))
            own = [factors[factor][level] for factor, level in levels.items()]
            title = ", ".join(level["title"] for level in own if "title" in level)
            layers = [content.get("common", {}), block.get("options", {}), *own, chosen.get("train", {})]
            options: Any = OmegaConf.to_container(OmegaConf.merge(*layers, {"title": title}), resolve=True)
            yield "-".join(names), levels, {"evaluate": chosen.get("evaluate", []), **options}


def _levels(factor: str, levels: Any) -> dict[str, dict[str, Any]]:
    """Return the options of each level of a factor."""
    if isinstance(levels, list):
        return {level: {f"_{factor}": level, "title": level} for level in levels}
    return dict(levels)


def _read(path: Path) -> Any:
    """Return a file's content, interpolations left as they are."""
    return OmegaConf.to_container(OmegaConf.load(path))


def _cell(name: str, levels: dict[str, str], options: dict[str, Any], extra: Sequence[str]) -> Cell:
    """Return one cell."""
    train = {key: value for key, value in options.items() if key not in NOT_OPTIONS and not key.startswith("_")}
    return Cell(
        name,
        options["title"],
        (*words(train), *extra),
        tuple(options["evaluate"]),
        levels,
        data=options.get("data"),
        prepare=options.get("prepare"),
        after=options.get("after"),
        tokens_per_update=options.get("tokens-per-update"),
    )


def _chosen(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """Return the cells whose names, with or without the seed, fit one of the patterns, and those they start from."""

    def fits(cell: Cell, pattern: str) -> bool:
        return any(fnmatchcase(name, pattern) for name in (cell.name, re.sub(r"-seed\d+$", "", cell.name)))

    for pattern in only:
        if not any(fits(cell, pattern) for cell in cells):
            raise must_be("--only", f"patterns for {', '.join(cell.name for cell in cells)}", pattern)
    kept = {cell.name for cell in cells if not only or any(fits(cell, pattern) for pattern in only)}
    kept |= {cell.after for cell in cells if cell.name in kept and cell.after}
    return [cell for cell in cells if cell.name in kept]


def fingerprint(data: Path) -> str:
    """Return a hash of a prepared folder's content: the dictionaries and the binarised text.

    Raises:
        LnplaceError: the folder holds none.
    """
    files = sorted(path for pattern in ("dict*.txt", "*.bin") for path in data.rglob(pattern))
    if not files:
        raise must_be("--data", "a folder that `lnplace prepare` made", data)
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(data)}\n{file.stat().st_size}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
