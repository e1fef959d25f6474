"""Looking into fairseq's checkpoints without building their model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fairseq_lnplace.errors import LnplaceError

__all__ = ["load", "model_identity", "model_options"]


def load(path: Path) -> dict[str, Any]:
    """Load a checkpoint to the CPU, safely.

    Raises:
        LnplaceError: the file is not there, or is no checkpoint of fairseq's.
    """
    if not path.is_file():
        raise LnplaceError(f"There is no checkpoint at {path}")
    state = _load_safely(path)
    if (
        not isinstance(state, dict)
        or not isinstance(state.get("model"), Mapping)
        or not (state.get("cfg") or state.get("args"))
    ):
        raise LnplaceError(f"{path} is not a checkpoint that fairseq-train wrote")
    return state


def _load_safely(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def model_identity(model: object) -> dict[str, str]:
    """Return what says which model weights are for: the registered name, the architecture, the placement.

    Args:
        model: the model's options as a checkpoint holds them, a mapping or a namespace.
    """
    options = model if isinstance(model, Mapping) else vars(model)
    return {
        key.lstrip("_"): str(options[key]) for key in ("_name", "arch", "placement") if options.get(key) is not None
    }


def model_options(state: Mapping[str, Any]) -> object:
    """Return the model's options out of a checkpoint of today's form or the old one."""
    return state["args"] if state.get("args") is not None else state["cfg"]["model"]
