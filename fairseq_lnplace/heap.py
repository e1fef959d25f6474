"""Memory that is freed on the CPU stays with the process, for the next step, which asks for as much again."""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_freed_memory"]

# glibc's names for mallopt
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# what a user may say in their place, in GLIBC_TUNABLES and, as MALLOC_NAME_, in a variable each
SAID = ("trim_threshold", "top_pad", "mmap_threshold", "mmap_max")


def keep_freed_memory() -> None:
    """Have glibc give up to 2 GiB that it took from its heap, and that were freed, not back to the system.

    Else each update and each step of a search has the system hand out, and clear, tens of thousands of pages again.
    Pieces above 32 MiB never come from the heap. Elsewhere than with glibc, or where the user says something of the
    matter, nothing is done.
    """
    said = any(f"MALLOC_{name.upper()}_" in os.environ for name in SAID)
    said = said or any(f"malloc.{name}" in os.environ.get("GLIBC_TUNABLES", "") for name in SAID)
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another heap, another system's linker, Windows
        return
    if not said:
        set_option(M_MMAP_THRESHOLD, 2**25)
        set_option(M_TRIM_THRESHOLD, 2**31 - 1)
