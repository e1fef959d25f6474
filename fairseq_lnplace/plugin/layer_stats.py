"""``--log-layer-stats N``: norms of gradients, activations and updates by layer, in every Nth update of a training.

All of them go to ``layer_stats.jsonl`` in ``--save-dir``, and those of whole layers to fairseq's metrics, that is to
the console, the JSON log, TensorBoard and W&B, as ``gnorm_enc1``, ``act_enc1``, ``update_enc1`` and so on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairseq.logging import metrics

from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.measure.layer_stats import FILE, Row, append, go_back, read_layer_stats
from fairseq_lnplace.plugin.measured_update import MeasuredUpdate

__all__ = ["install"]

BACKENDS = ("c10d", "pytorch_ddp", "legacy_ddp", "no_c10d")  # whose gradients are whole on every rank
PRIORITY = 20_000  # after everything that fairseq logs


def install(trainer: Any, every: int) -> None:
    """Let fairseq's trainer measure one update in ``every``; the others are made as ever.

    Raises:
        LnplaceError: gradients are not whole on every rank, or the file of an earlier start is damaged.
    """
    cfg = trainer.cfg
    if cfg.optimization.use_bmuf:
        raise LnplaceError("`--log-layer-stats` must be left out with --use-bmuf, whose ranks have their own gradients")
    if (backend := cfg.distributed_training.ddp_backend) not in BACKENDS:
        raise LnplaceError(f"`--log-layer-stats` must be left out with --ddp-backend {backend}, which shards or delays")
    path, usual, begun = Path(cfg.checkpoint.save_dir) / FILE, trainer.train_step, False
    read_layer_stats(path)

    def train_step(samples: Sequence[Any], raise_oom: bool = False) -> Any:
        nonlocal begun
        updates = trainer.get_num_updates() + 1
        if updates % every:
            return usual(samples, raise_oom)
        trainer.train_step = usual  # which under --amp calls itself again after an overflow
        try:
            with MeasuredUpdate(trainer) as measured:
                logged = usual(samples, raise_oom)
        finally:
            trainer.train_step = train_step
        if trainer.get_num_updates() == updates:  # else it was left out: fp16 overflowed, or memory was out
            rows = [Row(updates, **asdict(place), **numbers) for place, numbers in measured.numbers().items()]
            log(rows)
            if trainer.is_data_parallel_master:
                if not begun:
                    go_back(path, updates)
                append(path, rows)
            begun = True
        return logged

    trainer.train_step = train_step


def log(rows: Sequence[Row]) -> None:
    """Hand each layer's norms to fairseq's metrics."""
    layers: dict[str, list[Row]] = {}
    for row in rows:
        if row.side and row.layer:
            layers.setdefault(f"{row.side[:3]}{row.layer}", []).append(row)
    values: dict[str, Callable[[list[Row]], float | None]] = {
        "gnorm": lambda parts: math.hypot(*(row.gradient for row in parts)),
        "act": lambda parts: next(row.activation for row in parts if row.part == "FF"),
        "update": lambda parts: math.hypot(*(row.update for row in parts)),
    }
    for name, value_of in values.items():
        for layer, parts in layers.items():
            if (value := value_of(parts)) is not None:
                metrics.log_scalar(f"{name}_{layer}", value, priority=PRIORITY, round=6)
