"""The trainings of an experiment by their levels of its factors, and which of them can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_lnplace.runs.trained_run import TrainedRun

__all__ = ["Levels", "Outcome", "Results"]

Levels = Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """A cell's level of each factor, and its training."""

    levels: Levels
    run: TrainedRun


@dataclass(frozen=True)
class Results:
    """What an experiment gave: its trainings, and its measurements by name."""

    outcomes: Sequence[Outcome]
    measurements: Mapping[str, Any] = field(default_factory=dict)

    def groups(self, wanted: Levels) -> dict[tuple[tuple[str, str], ...], list[TrainedRun]]:
        """Return the ended trainings at the wanted levels, all seeds together, by their other levels."""
        found: dict[tuple[tuple[str, str], ...], list[TrainedRun]] = {}
        for outcome in self.outcomes:
            if wanted.items() <= outcome.levels.items() and outcome.run.state in ("finished", "diverged"):
                others = tuple(sorted(outcome.levels.items() - wanted.items()))
                found.setdefault(others, []).append(outcome.run)
        return found

    def pairs(self, one: Levels, other: Levels) -> list[tuple[str, list[TrainedRun], list[TrainedRun]]]:
        """Return the trainings at ``one`` and at ``other`` that agree in the rest, with that rest in words."""
        ones, others = self.groups(one), self.groups(other)
        fixed = one.items() & other.items()
        return [
            (", ".join(f"{factor} {level}" for factor, level in sorted({*rest, *fixed})), ones[rest], others[rest])
            for rest in ones
            if rest in others
        ]
