"""Every published placement, by name."""

from __future__ import annotations

from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.placements.methods import METHODS
from fairseq_lnplace.placements.spec import Placement

__all__ = ["add", "get", "names"]

_PLACEMENTS: dict[str, Placement] = {placement.name: placement for placement in METHODS}


def names() -> tuple[str, ...]:
    """Return the names of all placements, in the order of the table."""
    return tuple(_PLACEMENTS)


def get(name: str) -> Placement:
    """Return the placement called ``name``.

    Raises:
        LnplaceError: there is no such placement.
    """
    if name not in _PLACEMENTS:
        raise must_be("--placement", f"one of {', '.join(_PLACEMENTS)}", name)
    return _PLACEMENTS[name]


def add(placement: Placement) -> None:
    """Add a placement of your own, before the models are built.

    Raises:
        LnplaceError: the name is taken.
    """
    if placement.name in _PLACEMENTS:
        raise LnplaceError(f"`{placement.name}` must be a new name, but is a placement already")
    _PLACEMENTS[placement.name] = placement
