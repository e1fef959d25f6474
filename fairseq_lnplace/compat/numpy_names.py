"""numpy ≥ 1.24 has no `np.int` and `np.float`, numpy 2 no `np.compat.long`: a few functions of fairseq 0.12.2 use them.

Reports: fairseq issue 4945. Can go when fairseq writes `int` and `float`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace

__all__ = ["add_names"]

NAMES = {"int": int, "float": float, "compat": SimpleNamespace(long=int)}


def add_names(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute the module and let its own `np`, not everybody's numpy, know the names that are missing."""
    execute(module)
    numpy = vars(module).get("np")
    missing = {name: value for name, value in NAMES.items() if numpy and not hasattr(numpy, name)}
    if missing:
        stand_in = ModuleType("numpy")
        vars(stand_in).update(missing, __getattr__=partial(getattr, numpy))
        vars(module)["np"] = stand_in
