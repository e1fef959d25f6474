"""A schedule's learning rates, taken from the very scheduler that training would use."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY, LR_SCHEDULER_REGISTRY

from fairseq_lnplace.errors import LnplaceError, must_be

__all__ = ["add_schedule_options", "curve", "schedule_names"]


class _OneWeight(FairseqOptimizer):  # type: ignore[misc]
    """The smallest optimizer that a scheduler can set a learning rate on."""

    def __init__(self) -> None:
        super().__init__(None)
        self._optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)


def schedule_names() -> list[str]:
    """Return the names of the registered schedules, sorted."""
    return sorted(LR_SCHEDULER_DATACLASS_REGISTRY)


def add_schedule_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the schedule called ``name``, as ``fairseq-train`` takes them.

    Raises:
        LnplaceError: fairseq knows no such schedule.
    """
    if name not in LR_SCHEDULER_DATACLASS_REGISTRY:
        raise must_be("schedule", f"one of {', '.join(schedule_names())}", name)
    group: Any = parser.add_argument_group(f"options of {name}")
    gen_parser_from_dataclass(group, LR_SCHEDULER_DATACLASS_REGISTRY[name]())


def curve(name: str, options: argparse.Namespace, updates: int, updates_per_epoch: int) -> list[float]:
    """Return the learning rate at updates 0 to ``updates``, that of index t being used after t updates.

    Args:
        name: a registered schedule.
        options: ``lr``, a list, and what a parser with `add_schedule_options` returned.
        updates: the last update; also what fairseq's schedules read as ``--max-update``.
        updates_per_epoch: optimizer updates in each epoch.

    Raises:
        LnplaceError: the schedule does not take these options.
    """
    cfg = LR_SCHEDULER_DATACLASS_REGISTRY[name]()
    training = {"${optimization.lr}": options.lr, "${optimization.max_update}": updates}
    for field, default in vars(cfg).items():
        given = getattr(options, field, None)
        setattr(cfg, field, training.get(default, default) if given is None else given)
    optimizer = _OneWeight()
    try:
        scheduler = LR_SCHEDULER_REGISTRY[name](cfg, optimizer)
        rates = []
        for t in range(updates + 1):
            if t % updates_per_epoch == 0:
                scheduler.step_begin_epoch(t // updates_per_epoch + 1)
            scheduler.step_update(t)
            rates.append(float(optimizer.get_lr()))
    except LnplaceError:
        raise
    except Exception as error:  # fairseq's schedules fail in many ways, its inverse_sqrt in a division by zero
        raise LnplaceError(f"The schedule {name} does not take these options ({error})") from error
    return rates
