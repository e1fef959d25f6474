"""A side of a benchmark: stock fairseq or one of our architectures, built as fairseq-train builds it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from fairseq.tasks import setup_task
from fairseq.trainer import Trainer
from torch import nn

from fairseq_lnplace import placements
from fairseq_lnplace.errors import flag, must_be
from fairseq_lnplace.plugin.models.translation import MODEL, resolve
from fairseq_lnplace.plugin.training_args import training_args

__all__ = ["STOCK", "Side", "share_weights", "sides_of", "size_options"]

STOCK = "stock"
NO_DROPOUT = ("--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0")
OURS = ("--criterion", "label_smoothed_cross_entropy_fused", "--optimizer", "adam_fused")
THEIRS = ("--criterion", "label_smoothed_cross_entropy", "--optimizer", "adam")
SAME = (
    *("--label-smoothing", "0.1", "--share-all-embeddings", "--dropout", "0.1"),
    *("--lr", "1e-4", "--adam-betas", "(0.9, 0.98)", "--seed", "1"),
)
STACKS = ("encoder", "decoder")
SIZES = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads")


@dataclass(frozen=True)
class Side:
    """A side; it can be sent to another process and built there.

    Attributes:
        name: what the tables call it.
        data: the prepared folder.
        argv: the options of fairseq-train.
    """

    name: str
    data: Path
    argv: tuple[str, ...]

    def args(self) -> Namespace:
        """Return the options as fairseq-train parses them, the architecture's filled in.

        Raises:
            LnplaceError: fairseq-train does not take them.
        """
        return training_args([str(self.data), *self.argv])

    def trainer(self) -> Trainer:
        """Return fairseq's trainer with a new model; the random numbers start anew."""
        cfg = convert_namespace_to_omegaconf(self.args())
        torch.manual_seed(cfg.common.seed)
        task = setup_task(cfg.task)
        return Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))

    def without_dropout(self) -> Side:
        """Return the same side without dropout."""
        return replace(self, argv=(*self.argv, *NO_DROPOUT))


def sides_of(
    archs: Sequence[str], against: str, data: Path, extra: Sequence[str] = (), compiled: bool = False
) -> list[Side]:
    """Return the baseline and the sides to compare with it, all of the same options.

    Args:
        archs: our architectures.
        against: "stock", for fairseq's `transformer` of the first architecture's sizes, or one of ours.
        data: the prepared folder.
        extra: further options of fairseq-train for every side.
        compiled: whether ``archs`` run under --compile, too: a further side for each.

    Raises:
        LnplaceError: an architecture is not a translation model of ours, two sides are the same, or fairseq-train does
            not take an option.
    """
    for arch in (*archs, *(() if against == STOCK else (against,))):
        if ARCH_MODEL_NAME_REGISTRY.get(arch) != MODEL:
            raise must_be("--arch", "an architecture of transformer_lnplace, such as transformer_postln_tiny", arch)
    if len({against, *archs}) <= len(archs):
        raise must_be("--arch", "given once for each architecture, and not the baseline's", ", ".join(archs))
    ways: dict[str, tuple[str, ...]] = {"": ()} | ({" compiled": ("--compile",)} if compiled else {})
    ours = [
        Side(arch + way, data, ("--arch", arch, *OURS, *SAME, *more, *extra))
        for arch in archs
        for way, more in ways.items()
    ]
    args = ours[0].args()  # before any work: the options are fairseq-train's
    if against != STOCK:
        return [Side(against, data, ("--arch", against, *OURS, *SAME, *extra)), *ours]
    sizes = stock_sizes(args)
    return [Side(STOCK, data, ("--arch", "transformer", *THEIRS, *SAME, *extra, *sizes)), *ours]


def stock_sizes(args: Namespace) -> list[str]:
    """Return the options that make stock's `transformer` as large as ours, with its norms where ours has most."""
    resolve(args)
    before = placements.get(args.placement).layer.self_attention.in_norm
    return size_options(vars(args)) + [f"--{stack}-normalize-before" for stack in STACKS if before]


def size_options(model: Mapping[str, Any]) -> list[str]:
    """Return the options of fairseq-train that give a model's size; ``model`` holds them by name."""
    names = [f"{stack}_{size}" for stack in STACKS for size in SIZES]
    return [word for name in names for word in (flag(name), str(model[name]))]


def share_weights(models: Sequence[nn.Module]) -> list[bool]:
    """Give every model the first one's weights where it has the same equation; return which have."""
    same = [equation(model) == equation(models[0]) for model in models]
    for model, equal in zip(models[1:], same[1:], strict=True):
        if equal:
            model.load_state_dict(models[0].state_dict())
    return same


def equation(model: Any) -> str:
    """Return what decides the equation of a model of ours or of stock's."""
    if not hasattr(model, "method"):
        return "postln" if model.decoder.layer_norm is None else "preln_final"
    return model.method.placement.name if model.method.is_stock else model.method.description()  # type: ignore[no-any-return]
