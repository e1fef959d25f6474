"""Processes of their own for the sides, as a user has them: no side stretches another's heap or fills its caches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

from fairseq_lnplace.bench.timing import Clock

__all__ = ["Work", "apart", "in_fresh_process"]

T = TypeVar("T")
Work = Callable[[], object]

_work: Work  # of this process


def in_fresh_process(function: Callable[..., T], *args: Any) -> T:
    """Return the function's result from a process that has done nothing before; both have to be such as can be sent."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(quietly, function, *args).result()


def quietly(function: Callable[..., T], *args: Any) -> T:
    """Return the function's result, without fairseq's remarks, of which the first process has made its own."""
    logging.disable(logging.WARNING)
    return function(*args)


@contextmanager
def apart(builds: Mapping[str, Callable[[], Work]], clock: Clock) -> Iterator[dict[str, Callable[[], float]]]:
    """Give, by name, what has a process of its own do its work, and returns the seconds.

    Args:
        builds: what builds a work, in its process; it has to be such as can be sent there.
        clock: measures the seconds.
    """
    with ExitStack() as stack:
        pools = {name: stack.enter_context(ProcessPoolExecutor(1, get_context("spawn"))) for name in builds}
        for built in [pools[name].submit(quietly, begin, build, clock.threads) for name, build in builds.items()]:
            built.result()
        yield {name: partial(seconds_in, pool, clock) for name, pool in pools.items()}


def begin(build: Callable[[], Work], threads: int) -> None:
    """Build the work of this process."""
    global _work
    torch.set_num_threads(threads)
    _work = build()


def seconds_in(pool: ProcessPoolExecutor, clock: Clock) -> float:
    """Return how long the work takes in the pool's process."""
    return pool.submit(seconds, clock).result()


def seconds(clock: Clock) -> float:
    """Return how long this process's work takes."""
    return clock.seconds(_work)
