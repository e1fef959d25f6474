"""numpy ≥ 1.24 has no `np.int` and `np.float`, which a few functions of fairseq 0.12.2 still use.

Reports: fairseq issue 4945. Can go when fairseq writes `int` and `float`.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from functools import partial
from types import ModuleType

__all__ = ["add_names"]


def add_names(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute the module and let its own `np`, not everybody's numpy, know the names that are missing."""
    execute(module)
    numpy = vars(module).get("np")
    missing = [name for name in ("int", "float") if numpy and not hasattr(numpy, name)]
    if missing:
        stand_in = ModuleType("numpy")
        vars(stand_in).update({name: getattr(builtins, name) for name in missing}, __getattr__=partial(getattr, numpy))
        vars(module)["np"] = stand_in
