"""``lnplace bench train``: updates of fairseq's own trainer, and whether loss and gradients agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from fairseq.trainer import Trainer

from fairseq_lnplace import placements
from fairseq_lnplace.bench.data import Sample, batches
from fairseq_lnplace.bench.flops import training_flops
from fairseq_lnplace.bench.processes import Work, apart
from fairseq_lnplace.bench.setting import Setting
from fairseq_lnplace.bench.sides import Side, share_weights
from fairseq_lnplace.bench.timing import compared, in_turn, matmul_peak

__all__ = ["bench_placements", "bench_train"]


def training(side: Side, setting: Setting) -> Work:
    """Return a round of a side's updates."""
    trainer = side.trainer()
    samples = batches(trainer.task, "train", setting.max_tokens, setting.batches)
    return lambda: [trainer.train_step([sample]) for sample in samples]


def bench_train(setting: Setting) -> list[dict[str, Any]]:
    """Return a row for each side, the baseline first, each side in a process of its own.

    A row holds :func:`.compared`'s figures, target tokens a second, the parameters, the share of the machine's peak
    that the model's operations reach, and :func:`agreement`'s differences where the baseline has the same equation.
    """
    with setting.sides() as sides:
        with apart({side.name: partial(training, side, setting) for side in sides}, setting.clock) as works:
            seconds = in_turn(works, setting.rounds)
        return rows(setting, sides, seconds)


def rows(setting: Setting, sides: Sequence[Side], seconds: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Return :func:`bench_train`'s rows."""
    trainers = {side.name: side.trainer() for side in sides}
    first = trainers[sides[0].name]
    samples = batches(first.task, "train", setting.max_tokens, setting.batches)
    same = share_weights([trainer.model for trainer in trainers.values()])
    differences = agreement([side for side, equal in zip(sides, same, strict=True) if equal], samples)
    dictionary = first.task.target_dictionary
    ours = trainers[sides[1].name].cfg.model
    flops = training_flops(ours, len(dictionary), samples, dictionary.pad())
    peak = matmul_peak(setting.clock)
    tokens = sum(sample["ntokens"] for sample in samples)
    return [
        {
            "side": name,
            **figures,
            "tokens_per_second": tokens / figures["seconds"],
            "share_of_peak": flops / figures["seconds"] / peak,
            "parameters": sum(p.numel() for p in trainers[name].model.parameters()),
            **differences.get(name, {}),
        }
        for name, figures in compared(seconds, sides[0].name).items()
    ]


def bench_placements(setting: Setting) -> list[dict[str, Any]]:
    """Return :func:`bench_train`'s rows for every placement, in the first architecture's size, against Pre-LN.

    They share a process: so many would not fit into a laptop's memory, and all are ours.
    """
    arch = setting.archs[0]
    known = max((name for name in placements.names() if f"_{name}_" in f"{arch}_"), key=len, default="")
    archs = {name: arch.replace(known, name, 1) for name in placements.names()}
    baseline = archs.pop("preln_final")
    extra = (*setting.extra, *["--compile"] * setting.compiled)  # the baseline's, too
    setting = replace(setting, archs=tuple(archs.values()), against=baseline, compiled=False, extra=extra)
    with setting.sides() as sides:
        works = {side.name: partial(setting.clock.seconds, training(side, setting)) for side in sides}
        seconds = in_turn(works, setting.rounds)
        del works  # and the models
        return rows(setting, sides, seconds)


def agreement(sides: Sequence[Side], samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Return how far each of some sides of one equation is from the first, without dropout, from the same weights.

    ``loss_difference`` is the largest over the batches, in nats a token; ``gradient_difference`` the largest distance
    of the gradients over the norm of the first one's.
    """
    trainers = [side.without_dropout().trainer() for side in sides]
    share_weights([trainer.model for trainer in trainers])
    result = {side.name: {"loss_difference": 0.0, "gradient_difference": 0.0} for side in sides}
    for sample in samples:
        loss, gradient = loss_and_gradient(trainers[0], sample)
        for trainer, differences in zip(trainers[1:], list(result.values())[1:], strict=True):
            other, other_gradient = loss_and_gradient(trainer, sample)
            apart = float((other_gradient - gradient).norm() / gradient.norm())
            differences["loss_difference"] = max(differences["loss_difference"], abs(other - loss))
            differences["gradient_difference"] = max(differences["gradient_difference"], apart)
    return result


def loss_and_gradient(trainer: Trainer, sample: Sample) -> tuple[float, torch.Tensor]:
    """Return the loss in nats a token, and its gradient by all parameters as one vector, in float32."""
    sample, _ = trainer._prepare_sample(sample)
    trainer.model.train()
    trainer.zero_grad()
    loss, size, _ = trainer.criterion(trainer.model, sample)
    loss.backward()
    parameters = sorted(trainer.model.named_parameters())
    return float(loss.detach()) / size, torch.cat(
        [p.grad.flatten().float() for _, p in parameters if p.grad is not None]
    ) / size
