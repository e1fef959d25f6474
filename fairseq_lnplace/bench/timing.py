"""Timing several sides in turn, so that whatever else the machine does befalls all of them alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import track

from fairseq_lnplace.layers.linear import product

__all__ = ["Clock", "compared", "in_turn", "matmul_peak", "progress"]

T = TypeVar("T")


def progress(steps: Sequence[T], what: str) -> Iterable[T]:
    """Return the steps; a terminal shows how many are done."""
    return track(steps, what, transient=True, console=Console(stderr=True), disable=not sys.stderr.isatty())


@dataclass(frozen=True)
class Clock:
    """Seconds: of the process on one CPU thread, where other processes then count for nothing; else of the wall."""

    device: torch.device
    threads: int

    @property
    def name(self) -> str:
        """Which of the two it is."""
        return "CPU time" if self.device.type == "cpu" and self.threads == 1 else "wall time"

    def seconds(self, work: Callable[[], object]) -> float:
        """Return how long ``work`` takes, to the end of what it started on the GPU."""
        now = time.process_time if self.name == "CPU time" else time.perf_counter
        self.synchronise()
        start = now()
        work()
        self.synchronise()
        return now() - start

    def synchronise(self) -> None:
        """Wait for what was started on the GPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def in_turn(works: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Return the seconds that each work says it took, round by round: A B C A B C …; the first rounds only warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in progress(range(warm_up + rounds), "measuring"):
        for name, work in works.items():
            taken = work()
            if number >= warm_up:
                seconds[name].append(taken)
    return seconds


def compared(seconds: Mapping[str, Sequence[float]], baseline: str) -> dict[str, dict[str, Any]]:
    """Return, for each side, its median, the spread of its rounds, and its speed as a multiple of the baseline's.

    ``spread`` is the distance of the quartiles over the median. ``speed`` is the median over the rounds of the
    baseline's time over the side's in the same round; ``speed_range`` its least and largest.
    """
    result = {}
    for name, taken in seconds.items():
        speeds = [theirs / ours for theirs, ours in zip(seconds[baseline], taken, strict=True)]
        low, _, high = quantiles(taken, n=4, method="inclusive") if len(taken) > 1 else [taken[0]] * 3
        result[name] = {
            "seconds": median(taken),
            "spread": (high - low) / median(taken),
            "speed": median(speeds),
            "speed_range": [min(speeds), max(speeds)],
        }
    return result


def matmul_peak(clock: Clock, dtype: torch.dtype = torch.float32) -> float:
    """Return the floating-point operations a second of the fastest of some large matrix products on this machine."""
    best = 0.0
    for size in (512, 1024) if clock.device.type == "cpu" else (4096, 8192):
        a = torch.rand(size, size, dtype=dtype, device=clock.device)
        seconds = [clock.seconds(partial(product, a, a)) for _ in range(9)]
        best = max(best, 2 * size**3 / min(seconds))
    return best
