"""Which model a checkpoint of fairseq's is of, without building it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["model_identity", "model_options"]


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
