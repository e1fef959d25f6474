"""The average of several checkpoints' weights, as Vaswani et al. (2017, section 6.1) evaluate with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_lnplace.checkpoints import model_identity, options
from fairseq_lnplace.compat import load_checkpoint
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.files import new_file
from fairseq_lnplace.placements.stock import IDENTITY
from fairseq_lnplace.plugin.models.method import described

__all__ = ["average", "last_checkpoints"]

# The names that fairseq-train gives: `checkpoint12.pt` after an epoch, `checkpoint_3_4000.pt` after an update.
_NAMES = {"epoch": re.compile(r"checkpoint(\d+)\.pt"), "update": re.compile(r"checkpoint_\d+_(\d+)\.pt")}


def last_checkpoints(folder: Path, number: int, by: str) -> list[Path]:
    """Return the last ``number`` checkpoints that were saved after an epoch or an update, oldest first.

    Raises:
        LnplaceError: the folder holds fewer.
    """
    if number < 1:
        raise must_be("--last", "at least 1", number)
    matches = [(match, path) for path in folder.glob("*.pt") if (match := _NAMES[by].fullmatch(path.name))]
    found = [path for _, path in sorted((int(match[1]), path) for match, path in matches)]
    if len(found) < number:
        raise must_be("--last", f"at most the number of checkpoints by {by} in {folder} ({len(found)})", number)
    return found[-number:]


def average(paths: Sequence[Path], output: Path) -> None:
    """Write a checkpoint whose weights are the mean of the given ones', summed in float64 and kept in their own type.

    Whatever is no floating-point number (step counters, ``num_batches_tracked``), and everything besides the weights,
    is the last checkpoint's. The optimizer's state is left out: it belongs to no average.

    Raises:
        LnplaceError: no path is given, or the checkpoints are not of one model.
    """
    if not paths:
        raise LnplaceError("There must be at least one checkpoint to average")
    sums: dict[str, Tensor] = {}
    identity: dict[str, str] = {}
    for position, path in enumerate(paths):
        state = load_checkpoint(path)
        weights = state["model"]
        if not position:
            sums = {name: weight.double() for name, weight in weights.items() if weight.is_floating_point()}
            shapes = {name: weight.shape for name, weight in weights.items()}
            identity = _identity(state)
            continue
        if (other := _identity(state)) != identity:
            raise LnplaceError(
                f"All checkpoints must be of one model, but {paths[0]} is of {_told(identity)} "
                f"and {path} of {_told(other)}"
            )
        for name in sorted(shapes.keys() | weights.keys()):
            if name not in shapes or name not in weights or weights[name].shape != shapes[name]:
                raise LnplaceError(
                    f"All checkpoints must be of one model, but {path} differs from {paths[0]} in {name}"
                )
        for name, total in sums.items():
            total += weights[name]
    mean = {name: (total / len(paths)).to(weights[name].dtype) for name, total in sums.items()}
    averaged = {key: value for key, value in state.items() if key != "last_optimizer_state"}
    averaged["model"] = {name: mean.get(name, weight) for name, weight in weights.items()}
    with new_file(output) as partial:
        torch.save(averaged, partial)


def _identity(state: Mapping[str, Any]) -> dict[str, str]:
    """Return what says which model weights are for, with the constants that the weights themselves name."""
    found = model_identity(options(state, "model"))
    return found | {"trained as": described(state["model"][IDENTITY])} if IDENTITY in state["model"] else found


def _told(identity: dict[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in identity.items())
