"""``--log-layer-stats N``: norms of gradients, activations and updates by layer, in every Nth update of a training.

All of them go to ``layer_stats.jsonl`` in ``--save-dir``, and those of whole layers to fairseq's metrics, that is to
the console, the JSON log, TensorBoard and W&B, as ``gnorm_enc1``, ``act_enc1``, ``update_enc1`` and so on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq.logging import metrics

from fairseq_lnplace.diagnostics.measured_update import MeasuredUpdate
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.files import new_file

__all__ = ["FILE", "Row", "install", "read_layer_stats"]

FILE = "layer_stats.jsonl"
BACKENDS = ("c10d", "pytorch_ddp", "legacy_ddp", "no_c10d")  # whose gradients are whole on every rank
PRIORITY = 20_000  # after everything that fairseq logs


@dataclass(frozen=True)
class Row:
    """One place in one update. Norms are Euclidean, over all parameters of the place.

    Attributes:
        updates: the number of the update, from 1; fairseq's ``num_updates`` after it.
        side: encoder or decoder; None for what belongs to neither.
        layer: from 1, as the model was trained; None outside of the layers.
        part: SA, CA, FF or scale (what they share) of a layer; embedding, final_norm, output, ... outside. A parameter
            that several places share counts once, where it comes first in the model.
        gradient: the norm of the gradient of the loss a token (or what else the criterion divides by), before it is
            clipped. The squares of an update's rows sum to the square of fairseq's ``gnorm``.
        activation: E[‖x‖²/d] of the stream x, of d features, that leaves the part's residual connection (FF's is the
            layer's), the embedding for the first layer, or the final norm; as it is in training, with dropout, over
            the real positions of all the update's batches on all ranks. None where no stream leaves, or none passed.
        update: the norm of the change of the weights.
        weight: the norm of the weights before it.
    """

    updates: int
    side: str | None
    layer: int | None
    part: str
    gradient: float
    activation: float | None
    update: float
    weight: float


def read_layer_stats(path: Path) -> list[Row]:
    """Return the rows of a training in the order of its updates, but for a last line that is cut off; none if no file.

    Raises:
        LnplaceError: a line is no row.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], start=1):
        try:
            rows.append(Row(**json.loads(line)))
        except (TypeError, ValueError):
            raise LnplaceError(f"{path} is damaged: its line {number} is no row of layer statistics") from None
    return rows


def append(path: Path, rows: Sequence[Row]) -> None:
    """Write rows at the end of the file."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(asdict(row)) + "\n" for row in rows))


def go_back(path: Path, updates: int) -> None:
    """Drop the rows of this update and later ones: an interrupted training made them before it went back to here."""
    earlier = [row for row in read_layer_stats(path) if row.updates < updates]
    with new_file(path) as written:
        append(written, earlier)


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
