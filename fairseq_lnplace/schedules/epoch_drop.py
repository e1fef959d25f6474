"""A constant learning rate that drops after given epochs, as a torch scheduler."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fairseq_lnplace.schedules.formulas import dropped
from fairseq_lnplace.schedules.options import check_epoch_drop

__all__ = ["EpochDrop"]


class EpochDrop(LRScheduler):
    """Constant, but multiplied once after each of ``drop_epochs``; call ``step()`` once an epoch, at its end.

    The learning rate of epoch e, counted from 1, is lr·f^n: lr a parameter group's ``initial_lr``, f the
    ``drop_factor`` and n how many of ``drop_epochs`` are less than e. The numbers are those of ``--lr-scheduler
    epoch_drop`` in fairseq, bit for bit.

    Source: the runs without warm-up on IWSLT14 of Xiong et al. 2020 (2002.04745), "decay the learning rate at the 8-th
    epoch by 0.1".

    Args:
        optimizer: whose learning rates to set; each parameter group's own is where it starts.
        drop_epochs: epochs, counted from 1, after whose end the learning rate drops; one that is given twice drops it
            once.
        drop_factor: what each drop multiplies the learning rate by.
        last_epoch: the epochs over, less 1, to go on with an optimizer whose groups have their ``initial_lr``; -1 is
            the start.

    Raises:
        LnplaceError: an epoch is no whole number of at least 1, or the factor is not positive.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        drop_epochs: Iterable[int] = (8,),
        drop_factor: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.drop_epochs = tuple(drop_epochs)
        self.drop_factor = drop_factor
        check_epoch_drop(str, drop_epochs=self.drop_epochs, drop_factor=drop_factor)
        super().__init__(optimizer, last_epoch)  # last, since it sets the first learning rate

    def get_lr(self) -> list[float | Tensor]:
        """Return the groups' learning rates for the next epoch."""
        epoch = self.last_epoch + 1  # torch counts from 0
        return [dropped(epoch, float(start), self.drop_factor, self.drop_epochs) for start in self.base_lrs]
