"""Python ≥ 3.11 refuses a dataclass default that cannot be hashed, which fairseq's and old hydra's configurations use.

Seen as "ValueError: mutable default <class 'fairseq.dataclass.configs.CommonConfig'> for field common is not allowed"
(fairseq issue 5012, open). Can go when fairseq uses `default_factory`; until then `default` must stay readable, since
fairseq's Hydra set-up reads it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["allow_instances"]


def allow_instances(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute the module; if Python refuses one of its defaults, once more with classes whose instances hash."""
    try:
        execute(module)
        return
    except ValueError as error:
        if "mutable default" not in str(error):
            raise
    # A module's `class` statements go through its own `__builtins__`, so nothing outside of it is touched.
    vars(module)["__builtins__"] = {**vars(builtins), "__build_class__": _build_hashable_class}
    try:
        execute(module)
    finally:
        vars(module)["__builtins__"] = vars(builtins)


def _build_hashable_class(body: Callable[[], None], name: str, *bases: Any, **keywords: Any) -> type:
    """Build a class as the `class` statement does; a class without bases, and what inherits from it, can be hashed."""
    cls: type = builtins.__build_class__(body, name, *bases, **keywords)
    if not bases and "__new__" not in vars(cls):
        cls.__new__ = staticmethod(_new)  # type: ignore[assignment]
    return cls


def _new(cls: type, *_args: Any, **_keywords: Any) -> Any:
    """Make an instance; the first of a class gives it the identity hash that `@dataclass` took away."""
    if cls.__hash__ is None:
        cls.__hash__ = object.__hash__
    return object.__new__(cls)
