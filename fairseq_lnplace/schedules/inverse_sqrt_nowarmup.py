"""Inverse square root decay, with or without warm-up, as a torch scheduler."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fairseq_lnplace.schedules.formulas import DEFAULT_HOLD, DEFAULT_TIMESCALE, inverse_sqrt
from fairseq_lnplace.schedules.options import check_inverse_sqrt

__all__ = ["InverseSqrtNoWarmup"]


class InverseSqrtNoWarmup(LRScheduler):
    """Inverse square root decay for which no warm-up is a legal choice; call ``step()`` once an optimizer update.

    With t the updates made, lr a parameter group's ``initial_lr``, W = ``warmup_updates`` and K = max(W,
    ``hold_updates``), the learning rate is:

    - a straight line from ``warmup_init_lr`` to lr while t < W;
    - ``decay_form="held"``: lr·min(1, √(K/t)); the K of 0 is read as 1, thus lr/√t;
    - ``decay_form="shifted"``: lr·√(D/(D + t - W)) with D = ``timescale``.

    The numbers are those of ``--lr-scheduler inverse_sqrt_nowarmup`` in fairseq, bit for bit. Its ``--hold-epochs`` is
    not here, as torch's schedulers know no epochs: give the updates that so many epochs have as ``hold_updates``.

    Sources: fairseq's ``inverse_sqrt`` (``held``, after Vaswani et al. 2017, 1706.03762); T-Fixup (``shifted``, Huang
    et al. 2020).

    Args:
        optimizer: whose learning rates to set; each parameter group's own is its peak.
        warmup_updates: W, in updates; 0 is no warm-up.
        warmup_init_lr: every group's learning rate at update 0; a negative one is 0. Without warm-up it plays no part.
        hold_updates: in updates, of ``held`` only; None is 4000.
        decay_form: ``held`` or ``shifted``.
        timescale: D, in updates, of ``shifted`` only; None is 4000.
        last_epoch: the updates made, less 1, to go on with an optimizer whose groups have their ``initial_lr``; -1 is
            the start. (The name is torch's.)

    Raises:
        LnplaceError: an option is out of range, or given with the other decay form.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        warmup_updates: int = 0,
        warmup_init_lr: float = -1,
        hold_updates: int | None = None,
        decay_form: str = "held",
        timescale: int | None = None,
        last_epoch: int = -1,
    ) -> None:
        check_inverse_sqrt(
            str,
            warmup_updates=warmup_updates,
            decay_form=decay_form,
            timescale=timescale,
            hold_updates=hold_updates,
        )
        self.warmup_updates = warmup_updates
        self.warmup_init_lr = warmup_init_lr
        self.hold_updates = DEFAULT_HOLD if hold_updates is None else hold_updates
        self.decay_form = decay_form
        self.timescale = DEFAULT_TIMESCALE if timescale is None else timescale
        super().__init__(optimizer, last_epoch)  # last, since it sets the first learning rate

    def get_lr(self) -> list[float | Tensor]:
        """Return the groups' learning rates for the next update."""
        return [
            inverse_sqrt(
                self.last_epoch,
                float(peak),
                warmup_updates=self.warmup_updates,
                warmup_init_lr=self.warmup_init_lr,
                hold=self.hold_updates,
                decay_form=self.decay_form,
                timescale=self.timescale,
            )
            for peak in self.base_lrs
        ]
