"""Processes of their own for the sides, as a user has them: no side stretches another's heap or fills its caches."""

from __future__ import annotations

import logging
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, TypeVar

import torch

from fairseq_lnplace.bench.timing import Clock
from fairseq_lnplace.errors import LnplaceError

__all__ = ["Work", "apart", "in_fresh_process"]

T = TypeVar("T")
Work = Callable[[], object]

_work: Work  # of this process


def in_fresh_process(threads: int, function: Callable[..., T], *args: Any) -> T:
    """Return the function's result from a process that has done nothing before, with so many threads of torch.

    Function and arguments have to be such as can be sent there.

    Raises:
        LnplaceError: the function raises it, or the system ends the process.
    """
    with process(threads) as pool:
        return answer(pool, function, *args)


@contextmanager
def apart(builds: Mapping[str, Callable[[], Work]], clock: Clock) -> Iterator[dict[str, Callable[[], float]]]:
    """Give, by name, what has a process of its own do its work, and returns the seconds.

    Args:
        builds: what builds a work, in its process; it has to be such as can be sent there.
        clock: measures the seconds.

    Raises:
        LnplaceError: a build raises it, or the system ends a process.
    """
    with ExitStack() as stack:
        pools = {name: stack.enter_context(process(clock.threads)) for name in builds}
        for name, build in builds.items():
            answer(pools[name], begin, build)
        yield {name: partial(answer, pool, seconds, clock) for name, pool in pools.items()}


def process(threads: int) -> ProcessPoolExecutor:
    """Return a process that will start when it is asked for something."""
    return ProcessPoolExecutor(1, get_context("spawn"), set_up, (threads,))


def set_up(threads: int) -> None:
    """Let this process end with the one that started it, whatever becomes of that, and at Ctrl-C without a word."""
    logging.disable(logging.INFO)
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    Thread(target=follow, daemon=True).start()


def answer(pool: ProcessPoolExecutor, function: Callable[..., T], *args: Any) -> T:
    """Return the function's result from the pool's process."""
    try:
        return pool.submit(told, function, *args).result()
    except BrokenProcessPool as error:
        raise LnplaceError(
            "The system ended the process that was measured; as a rule memory did not suffice"
        ) from error


def told(function: Callable[..., T], *args: Any) -> T:
    """Return the function's result; any error but ours is told in words, as not every one can be sent."""
    try:
        return function(*args)
    except LnplaceError:
        raise
    except Exception as error:
        raise RuntimeError("".join(traceback.format_exception(error))) from None


def begin(build: Callable[[], Work]) -> None:
    """Build the work of this process."""
    global _work
    _work = build()


def seconds(clock: Clock) -> float:
    """Return how long this process's work takes."""
    return clock.seconds(_work)
