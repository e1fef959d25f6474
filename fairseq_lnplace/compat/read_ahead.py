"""Ends the thread that reads batches ahead before the interpreter ends: else a finished training may exit with 134.

Training that stops at `--max-update` leaves fairseq's daemon thread in the midst of a batch. Up to Python 3.13 the
interpreter, at its end, unwinds such a thread's stack, and C++ aborts the process where a frame of torch's lies on it:
"terminate called without an active exception".
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

__all__ = ["end_readers"]

# How long the process waits for batches in the making, in seconds: a batch that takes longer is not worth a hang.
PATIENCE = 10.0


def end_readers(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute `fairseq.data.iterators`, and have its threads end first when the process ends."""
    execute(module)

    def end() -> None:
        readers = [thread for thread in threading.enumerate() if isinstance(thread, module.BackgroundConsumer)]
        for reader in readers:
            reader._max_len = 0  # reached after the batch at hand
        deadline = time.monotonic() + PATIENCE
        for reader in readers:
            while reader.is_alive() and time.monotonic() < deadline:
                with suppress(queue.Empty):  # makes room: the thread may wait for it, to put its batch in
                    reader._queue.get(timeout=0.01)

    # Called before the exit functions of torch's DataLoader, imported earlier: its workers still answer the thread.
    atexit.register(end)
