"""What a plugin cannot tell fairseq's trainer: to measure updates, and to say in which layer a NaN came up first.

Where a gradient is not finite the trainer repeats the update inside its NanDetector. That one ends with StopIteration
on today's torch, for its hooks on the backward know no module that returns a dictionary, as encoders do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

__all__ = ["watch_layers"]


def watch_layers(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute `fairseq.trainer`; let it heed `--log-layer-stats`, and search our models for NaN in our own way."""
    execute(module)
    init, usual_detector = module.Trainer.__init__, module.NanDetector
    trainers: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by the id of the model that each trains

    @wraps(init)
    def init_and_watch(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if is_ours(self.get_model()):
            trainers[id(self.get_model())] = self
        if every := getattr(self.cfg.model, "log_layer_stats", None):
            from fairseq_lnplace.diagnostics.layer_stats import install

            install(self, every)

    def detector(model: Any) -> Any:
        trainer = trainers.get(id(model))
        if trainer is None:
            return usual_detector(model, backward=False)
        from fairseq_lnplace.diagnostics.first_not_finite import FirstNotFinite

        return FirstNotFinite(trainer)

    module.Trainer.__init__ = init_and_watch
    vars(module)["NanDetector"] = detector


def is_ours(model: Any) -> bool:
    """Say whether a model is of this package, which is not imported for the question."""
    methods = sys.modules.get("fairseq_lnplace.models._method")
    return methods is not None and isinstance(model, methods.MethodModel)
