"""Trainings that differ in nothing but their seed, taken together, and the settings in which groups differ."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_lnplace.runs.trained_run import TrainedRun

__all__ = ["Group", "Spread", "common_options", "differing_options", "grouped"]

# What settings are first told apart by.
FIRST = ("arch", "placement", "optimizer", "lr", "lr-scheduler", "warmup-updates", "hold-updates")
# Options that may differ between the seeds of one setting: where things lie, what is printed, which port is free.
NO_SETTING = (
    *("seed", "save-dir", "user-dir", "restore-file", "finetune-from-model", "distributed-port", "device-id"),
    *("distributed-init-method", "log-file", "log-format", "log-interval", "log-layer-stats", "no-progress-bar"),
    *("tensorboard-logdir", "wandb-project"),
)


@dataclass(frozen=True)
class Spread:
    """A number over the seeds: its mean, its least and its greatest value."""

    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread | None:
        """Return the spread of the finite ones among the values, or None if there is none."""
        found = [value for value in values if value is not None and math.isfinite(value)]
        return cls(math.fsum(found) / len(found), min(found), max(found), len(found)) if found else None


@dataclass(frozen=True)
class Group:
    """The seeds of one setting.

    Attributes:
        title: the runs'; of a --save-dir, what the folders' names have in common.
        runs: in the order of their seeds.
        variant: counts the groups of this placement, which share a colour.
    """

    title: str
    runs: tuple[TrainedRun, ...]
    variant: int = 0

    @property
    def placement(self) -> str:
        """The placement of all runs."""
        return self.runs[0].placement

    @property
    def states(self) -> list[tuple[str, str]]:
        """What became of the runs: each state, and in words where a single one ended, or how many ended so."""
        if len(self.runs) == 1:
            return [(self.runs[0].state, state_of(self.runs[0]))]
        counts = Counter(run.state for run in self.runs)
        return [(state, f"{count} {state}") for state, count in counts.items()]

    def spread(self, value: Callable[[TrainedRun], float | None]) -> Spread | None:
        """Return a number's spread over the runs that have it."""
        return Spread.of([value(run) for run in self.runs])


def state_of(run: TrainedRun) -> str:
    """Return a run's state, with the update at which it ended early."""
    if run.state == "finished":
        return run.state
    return f"{run.state} at update {run.updates:,}" if run.updates else f"{run.state} before it logged"


def settings_of(run: TrainedRun) -> dict[str, str]:
    """Return the options that make a setting, as text."""
    return {name: _text(value) for name, value in run.options.items() if name not in NO_SETTING}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def grouped(runs: Sequence[TrainedRun]) -> list[Group]:
    """Return the runs' groups, in order of appearance.

    Two runs of one seed are never of one group, and so neither are runs whose settings are unknown.
    """
    found: dict[tuple[Any, ...], list[TrainedRun]] = {}
    for run in runs:
        setting = (run.title if run.command else "", *sorted(settings_of(run).items()))
        copies = (found.setdefault((*setting, number), []) for number in itertools.count())
        next(copy for copy in copies if run.seed not in [other.seed for other in copy]).append(run)
    members = [sorted(group, key=lambda run: run.seed) for group in found.values()]
    titles = [_title(group) for group in members]
    seen: Counter[str] = Counter()
    groups = []
    for title, group in zip(titles, members, strict=True):
        placement = group[0].placement
        unique = title if titles.count(title) == 1 else f"{title} ({group[0].folder.name})"
        groups.append(Group(unique, tuple(group), seen[placement]))
        seen[placement] += 1
    return groups


def _title(runs: Sequence[TrainedRun]) -> str:
    """Return what the runs' titles begin with, without the beginning of "seed 1"."""
    titles = [run.title for run in runs]
    if len({*titles}) == 1:
        return titles[0]
    same = itertools.takewhile(lambda letters: len({*letters}) == 1, zip(*titles, strict=False))
    start = "".join(letters[0] for letters in same)
    return start.rstrip("-_ ,.").removesuffix("seed").rstrip("-_ ,.") or titles[0]


def differing_options(groups: Sequence[Group]) -> dict[str, list[str | None]]:
    """Return the options in which groups differ, each with every group's value (None: not given).

    A log names every option and a command those that were given: what only one of them names is no difference.
    """
    settings = [settings_of(group.runs[0]) for group in groups]
    commands = [own for own, group in zip(settings, groups, strict=True) if group.runs[0].command]
    names = dict.fromkeys([*FIRST, *(name for own in settings for name in own)])
    values = {name: [own.get(name) for own in settings] for name in names}
    return {
        name: found
        for name, found in values.items()
        if len({*found} - {None}) > 1 or len({name in own for own in commands}) > 1
    }


def common_options(groups: Sequence[Group]) -> Mapping[str, str]:
    """Return the options that are the same in all groups that know them."""
    differ = differing_options(groups)
    return {name: value for group in groups for name, value in settings_of(group.runs[0]).items() if name not in differ}
