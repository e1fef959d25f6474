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

    The count goes on from what the model's state says, so a model that is loaded, now or later, goes on where it was
    saved.

    Returns:
        a handle whose ``remove()`` ends it.
    """
    done = told = updates_done(model)

    def after_step(*_: Any) -> None:
        # counted here, for in half precision the state could not tell one update from the next
        nonlocal done, told
        state = updates_done(model)
        done = 1 + (done if state == told else state)
        set_num_updates(model, done)
        told = updates_done(model)

    return optimizer.register_step_post_hook(after_step)


def updates_done(model: nn.Module) -> int:
    """Return how many updates a model's state says are done, as far as it still matters; 0 where nothing counts."""
    scheduled = (module for module in model.modules() if isinstance(module, Residual) and module.progress is not None)
    first = next(scheduled, None)
    return 0 if first is None else first.updates_done()
