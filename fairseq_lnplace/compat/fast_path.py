"""0.12.2's encoder layer has a fast path, taken after a checkpoint is loaded, that today's torch ends with an error.

Seen as "RuntimeError: Mask Type should be defined" in fairseq-generate with any stock Post-LN model. It calls a private
function of torch whose arguments have changed since; the layer's own code computes the same. fairseq's main branch
dropped the fast path in August 2022, so nothing is left to do there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

__all__ = ["switch_off"]


def switch_off(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute `fairseq.modules.transformer_layer` and have no layer take the fast path."""
    execute(module)
    layer = module.TransformerEncoderLayerBase
    init = layer.__init__

    @wraps(init)
    def init_without_fast_path(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if hasattr(self, "can_use_fastpath"):
            self.can_use_fastpath = False

    layer.__init__ = init_without_fast_path
