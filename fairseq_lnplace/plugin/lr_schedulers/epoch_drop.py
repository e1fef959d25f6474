"""``--lr-scheduler epoch_drop``: a constant learning rate that drops after given epochs.

The paper's Pre-LN runs without warm-up on IWSLT14 use it ("decay the learning rate at the 8-th epoch by 0.1").
fairseq's own ``fixed --force-anneal`` shrinks again at every later epoch; this one shrinks once.
"""

# fairseq reads a dataclass's types at run time and knows only typing's spelling of them.
# ruff: noqa: UP006, UP035
from dataclasses import dataclass, field
from typing import List

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from fairseq_lnplace.errors import flag
from fairseq_lnplace.plugin.lr_schedulers.options import single_lr
from fairseq_lnplace.schedules.formulas import dropped
from fairseq_lnplace.schedules.options import check_epoch_drop


@dataclass
class EpochDropConfig(FairseqDataclass):  # type: ignore[misc]
    """The options of ``epoch_drop``."""

    drop_epochs: List[int] = field(
        default_factory=lambda: [8],
        metadata={"help": "epochs, separated by commas, after whose end the learning rate drops, once each"},
    )
    drop_factor: float = field(default=0.1, metadata={"help": "what each drop multiplies the learning rate by"})
    lr: List[float] = field(default=II("optimization.lr"))


@register_lr_scheduler("epoch_drop", dataclass=EpochDropConfig)
class EpochDrop(FairseqLRScheduler):  # type: ignore[misc]
    """Constant within an epoch; it needs no state, since fairseq names the epoch when a run resumes.

    Raises:
        LnplaceError: an epoch is below 1, or the factor is not positive.
    """

    def __init__(self, cfg: EpochDropConfig, optimizer: FairseqOptimizer) -> None:
        check_epoch_drop(flag, drop_epochs=cfg.drop_epochs, drop_factor=cfg.drop_factor)
        single_lr(cfg.lr)
        super().__init__(cfg, optimizer)
        self.step_begin_epoch(1)

    def step_begin_epoch(self, epoch: int) -> None:
        """Set the learning rate of ``epoch``, counted from 1."""
        self.optimizer.set_lr(
            dropped(epoch, single_lr(self.cfg.lr), self.cfg.drop_factor, drop_epochs=self.cfg.drop_epochs)
        )
