"""Watching a method of a module from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

__all__ = ["Seen", "tapped"]

Seen = Callable[[tuple[Any, ...], dict[str, Any], Any], None]
"""What is told the arguments, those by name, and the result of a call."""


@contextmanager
def tapped(module: nn.Module, method: str, seen: Seen) -> Iterator[None]:
    """Let ``seen`` know of each call of a method, for a while."""
    original, before = getattr(module, method), vars(module).get(method)

    def spy(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        seen(args, kwargs, result)
        return result

    vars(module)[method] = spy  # before the class's own
    try:
        yield
    finally:
        if before is None:
            del vars(module)[method]
        else:
            vars(module)[method] = before
