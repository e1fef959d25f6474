"""What is said of a claim: confirmed, contradicted, or this run cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairseq_lnplace.experiments.outcomes import Results

__all__ = ["CANNOT_TELL", "CONFIRMED", "CONTRADICTED", "Judge", "Verdict", "verdict_of"]

CONFIRMED, CONTRADICTED, CANNOT_TELL = "confirmed", "contradicted", "cannot tell"


@dataclass(frozen=True)
class Verdict:
    """``confirmed``, ``contradicted`` or ``cannot tell``, and the figures that say so."""

    verdict: str
    evidence: str


Judge = Callable[[Results], Verdict]


def verdict_of(confirming: Sequence[bool], contradicting: Sequence[bool]) -> str:
    """Return ``confirmed`` if every comparison confirms, ``contradicted`` if every one contradicts, else the third."""
    if confirming and all(confirming):
        return CONFIRMED
    return CONTRADICTED if contradicting and all(contradicting) else CANNOT_TELL
