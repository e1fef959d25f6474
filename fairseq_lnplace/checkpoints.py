"""Which model a checkpoint of fairseq's is of, without building it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairseq_lnplace.errors import LnplaceError

__all__ = ["model_identity", "options"]


def options(state: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return the options of a group ("model", "task") out of a checkpoint of today's form, or all out of an old one's.

    Raises:
        LnplaceError: the checkpoint holds no options.
    """
    found = state.get("args") or (state.get("cfg") or {}).get(group)
    if found is None:
        raise LnplaceError(f"The checkpoint is not one that fairseq-train wrote: it holds no options of the {group}")
    return dict(found) if isinstance(found, Mapping) else vars(found)


def model_identity(model: Mapping[str, Any]) -> dict[str, str]:
    """Return what says which model weights are for: the registered name, the architecture, the placement."""
    return {key.lstrip("_"): str(model[key]) for key in ("_name", "arch", "placement") if model.get(key) is not None}
