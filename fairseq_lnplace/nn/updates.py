"""Placements whose equation changes with the updates of a training (BranchNorm), without a trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fairseq_lnplace.layers.residual import Residual

__all__ = ["count_updates", "set_num_updates"]


def set_num_updates(model: nn.Module, num_updates: int) -> None:
    """Tell a model that ``num_updates`` updates are done, and the next one is being computed."""
    for module in model.modules():
        if isinstance(module, Residual):
            module.set_num_updates(num_updates)


def count_updates(model: nn.Module, optimizer: torch.optim.Optimizer) -> RemovableHandle:
    """Let a model follow its optimizer: each ``optimizer.step()`` is one more update.

    The count goes on from what the model's state says, so a model that was loaded goes on where it was saved.

    Returns:
        a handle whose ``remove()`` ends it.
    """
    done = updates_done(model)

    def after_step(*_: Any) -> None:
        nonlocal done
        done += 1
        set_num_updates(model, done)

    return optimizer.register_step_post_hook(after_step)


def updates_done(model: nn.Module) -> int:
    """Return how many updates a model's state says are done, as far as it still matters; 0 where nothing counts."""
    counts = [module.updates_done() for module in model.modules() if isinstance(module, Residual)]
    return max(counts, default=0)
