"""What functions of fairseq 0.12.2 use of numpy that is no longer there.

numpy ≥ 1.24 has no `np.int` and `np.float`, numpy 2 no `np.compat.long`, and today's `np.percentile` takes as `method`
what was its `interpolation` (--num-batch-buckets). Reports: fairseq issue 4945. Can go when fairseq writes `int`,
`float` and `method`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

__all__ = ["add_names"]

NAMES = {"int": int, "float": float, "compat": SimpleNamespace(long=int)}


def add_names(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute the module and let its own `np`, not everybody's numpy, know what is missing."""
    execute(module)
    numpy = vars(module).get("np")
    if numpy is None:
        return
    missing: dict[str, Any] = {name: value for name, value in NAMES.items() if not hasattr(numpy, name)}
    if "interpolation" not in inspect.signature(numpy.percentile).parameters:
        missing["percentile"] = partial(percentile, numpy.percentile)
    if missing:
        stand_in = ModuleType("numpy")
        vars(stand_in).update(missing, __getattr__=partial(getattr, numpy))
        vars(module)["np"] = stand_in


def percentile(todays: Callable[..., Any], *args: Any, interpolation: str = "linear", **more: Any) -> Any:
    """Call `np.percentile` with its older argument."""
    return todays(*args, method=interpolation, **more)
