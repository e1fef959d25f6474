"""Memory that is freed on the CPU stays with the process, for the next step, which asks for as much again."""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_freed_memory"]

# glibc's names for mallopt
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Have glibc give nothing back to the system that it has taken from its heap, where it is glibc.

    Else each update and each step of a search has the system hand out, and clear, tens of thousands of pages again.
    Of one piece it takes at most 32 MiB from its heap. What the user says (MALLOC_TRIM_THRESHOLD_ and others) stands.
    """
    said = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another library's heap, and another system's
        return
    if not said:
        set_option(M_MMAP_THRESHOLD, 2**25)
        set_option(M_TRIM_THRESHOLD, 2**31 - 1)
