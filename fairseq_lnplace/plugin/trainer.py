"""What a plugin cannot tell fairseq's trainer: to measure updates, and to say in which layer a NaN came up first.

Where a gradient is not finite the trainer repeats the update inside its NanDetector. That one ends with StopIteration
on today's torch, for its hooks on the backward know no module that returns a dictionary, as encoders do.
"""

from __future__ import annotations

from functools import wraps
from typing import Any
from weakref import WeakValueDictionary

from fairseq import trainer

from fairseq_lnplace.errors import flag, must_be
from fairseq_lnplace.plugin.first_not_finite import FirstNotFinite
from fairseq_lnplace.plugin.layer_stats import install
from fairseq_lnplace.plugin.models.config import check_blocks
from fairseq_lnplace.plugin.models.method import MethodModel

__all__ = ["watch_layers"]


def watch_layers() -> None:
    """Let `fairseq.trainer` heed `--log-layer-stats`, and search our models for NaN in our own way; once."""
    init, usual_detector = trainer.Trainer.__init__, trainer.NanDetector
    if hasattr(init, "__wrapped__"):
        return
    trainers: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by the id of the model that each trains

    @wraps(init)
    def init_and_watch(self: Any, cfg: Any, task: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        check_options(cfg)
        positions = model.max_positions()
        if isinstance(model, MethodModel) and isinstance(positions, int):
            check_blocks(task, positions, "max_positions" if "max_positions" in cfg.model else "max_target_positions")
        init(self, cfg, task, model, *args, **kwargs)
        if isinstance(self.get_model(), MethodModel):
            trainers[id(self.get_model())] = self
        if every := getattr(self.cfg.model, "log_layer_stats", None):
            install(self, every)

    def detector(model: Any) -> Any:
        training = trainers.get(id(model))
        return usual_detector(model, backward=False) if training is None else FirstNotFinite(training)

    trainer.Trainer.__init__ = init_and_watch
    trainer.NanDetector = detector


def check_options(cfg: Any) -> None:
    """Raise LnplaceError for batches of nothing, which let fairseq end in a traceback."""
    sizes = [("max_tokens", cfg.dataset.max_tokens), ("batch_size", cfg.dataset.batch_size)]
    for name, size in (*sizes, *(("update_freq", each) for each in cfg.optimization.update_freq)):
        if size is not None and size < 1:
            raise must_be(flag(name), "at least 1", size)
