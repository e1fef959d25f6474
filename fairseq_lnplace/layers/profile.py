"""Admin's measurement of the skip scales (Liu et al. 2020, 2004.08249, section 4.2)."""

from typing import TYPE_CHECKING, Optional

import torch
from torch import Tensor, nn

from fairseq_lnplace.layers.norm import all_reduce_sum


class Profile(nn.Module):
    """Sets the skip scales w_i of one stack during its first training forwards.

    In the order of execution w_1 = 1 and w_{i+1}^2 = w_i^2 Var(x_i) + Var(F_i), where Var is the scalar variance over
    the features of all real positions, on all ranks. Over several batches w_i^2 is the mean. The number of batches
    done is a buffer, so that a checkpoint that was trained is never measured again.

    Args:
        batches: the number of training forwards to measure.
    """

    if TYPE_CHECKING:
        done: Tensor

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches = batches
        self.register_buffer("done", torch.zeros(1))  # a float, since fairseq's EMA averages every entry
        self._running: Optional[Tensor] = None

    def start(self) -> bool:
        """Begin a forward of the stack; return whether it is measured: it trains, and batches are left."""
        measuring = self.training and int(self.done) < self.batches
        self._running = torch.ones(1, dtype=torch.float64, device=self.done.device) if measuring else None
        return measuring

    def finish(self) -> None:
        """End the forward of the stack."""
        if self._running is not None:
            self.done += 1
        self._running = None

    @torch.no_grad()
    def measure(self, skip: Tensor, x: Tensor, branch: Tensor, padding: Optional[Tensor]) -> None:
        """Set ``skip`` (shape (1,)) from what came before, and add this sub-layer to the running variance.

        Recomputation by activation checkpointing comes after :meth:`finish` and so measures nothing.
        """
        if self._running is None:
            return
        done = self.done.double()
        mean_square = (done * skip.double().square() + self._running) / (done + 1)
        skip.copy_(mean_square.sqrt())
        self._running = mean_square * variance(x, padding) + variance(branch, padding)


def variance(x: Tensor, padding: Optional[Tensor]) -> Tensor:
    """Return the variance over all elements of ``x`` (B x T x C) at real positions, on all ranks; shape (1,)."""
    h = x.double()
    if padding is not None:
        h = h[~padding]
    sums = torch.stack([torch.full_like(h.sum(), h.numel()), h.sum(), h.square().sum()])
    count, total, square = all_reduce_sum(sums).unbind()
    return (square / count - (total / count).square()).reshape(1)
