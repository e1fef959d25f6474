"""``--lr-scheduler inverse_sqrt_nowarmup``: fairseq's ``inverse_sqrt`` for which no warm-up is a legal choice.

fairseq 0.12.2 divides by zero when ``--warmup-updates`` is 0. Here the learning rate is held until update K instead,
and K takes the place that the warm-up had in the decay. Three curves are called "inverse square root without
warm-up", and each has its option:

====================  =====================  ==========================================================
``--hold-updates K``  lr·min(1, √(K/t))      flat, then the decay that follows K updates of warm-up
``--hold-updates 0``  lr/√t                  decays at once (written as ``--warmup-updates 1`` elsewhere)
``--decay-form shifted``  lr·√(D/(D+t))      decays at once, slowly: D is ``--timescale`` (T-Fixup)
====================  =====================  ==========================================================
"""

# fairseq reads a dataclass's types at run time and knows only typing's spelling of them.
# ruff: noqa: UP006, UP035, UP045
import math
from dataclasses import dataclass, field
from typing import Any, List, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from fairseq_lnplace.errors import flag
from fairseq_lnplace.plugin.lr_schedulers.options import single_lr
from fairseq_lnplace.schedules.formulas import DEFAULT_HOLD, DEFAULT_TIMESCALE, inverse_sqrt
from fairseq_lnplace.schedules.options import check_inverse_sqrt


@dataclass
class InverseSqrtNoWarmupConfig(FairseqDataclass):  # type: ignore[misc]
    """The options; t counts updates, W is ``--warmup-updates`` and K the larger of W and ``--hold-updates``."""

    warmup_updates: int = field(
        default=0, metadata={"help": "W: rise in a straight line for the first W updates; 0 is no warm-up"}
    )
    warmup_init_lr: float = field(
        default=-1, metadata={"help": "where the warm-up starts (-1: at 0); without warm-up it plays no part"}
    )
    hold_updates: Optional[int] = field(
        default=None,
        metadata={
            "help": "H: hold --lr until update K = max(W, H), from then on lr*sqrt(K/t) "
            f"(default {DEFAULT_HOLD}; without warm-up 0 is lr/sqrt(t) from the first update on)"
        },
    )
    hold_epochs: Optional[int] = field(
        default=None,
        metadata={"help": "instead of --hold-updates: H is the number of updates done when this epoch ends"},
    )
    decay_form: str = field(
        default="held",
        metadata={"help": "held: lr*sqrt(K/t) from update K on; shifted: lr*sqrt(D/(D+t-W)) from update W on"},
    )
    timescale: Optional[int] = field(
        default=None, metadata={"help": f"D of --decay-form shifted (default {DEFAULT_TIMESCALE})"}
    )
    lr: List[float] = field(default=II("optimization.lr"))


def check(cfg: InverseSqrtNoWarmupConfig) -> None:
    """Raise LnplaceError if an option is out of range or two contradict each other."""
    single_lr(cfg.lr)
    check_inverse_sqrt(
        flag,
        warmup_updates=cfg.warmup_updates,
        decay_form=cfg.decay_form,
        timescale=cfg.timescale,
        hold_updates=cfg.hold_updates,
        hold_epochs=cfg.hold_epochs,
    )


@register_lr_scheduler("inverse_sqrt_nowarmup", dataclass=InverseSqrtNoWarmupConfig)
class InverseSqrtNoWarmup(FairseqLRScheduler):  # type: ignore[misc]
    """Inverse square root decay with or without warm-up; positive at every update when there is none.

    Raises:
        LnplaceError: an option is negative or no whole number, or two options contradict each other.
    """

    def __init__(self, cfg: InverseSqrtNoWarmupConfig, optimizer: FairseqOptimizer) -> None:
        check(cfg)
        super().__init__(cfg, optimizer)
        self.num_updates = 0
        # H; with --hold-epochs it is unknown until that epoch has ended, and --lr is held as long.
        self.hold: float = DEFAULT_HOLD if cfg.hold_updates is None else cfg.hold_updates
        if cfg.hold_epochs is not None:
            self.hold = math.inf
        self.step_update(0)

    def lr_at(self, t: int) -> float:
        """Return the learning rate with which update ``t`` + 1 is made, that is after ``t`` updates."""
        return inverse_sqrt(
            t,
            single_lr(self.cfg.lr),
            warmup_updates=self.cfg.warmup_updates,
            warmup_init_lr=self.cfg.warmup_init_lr,
            hold=self.hold,
            decay_form=self.cfg.decay_form,
            timescale=self.cfg.timescale,
        )

    def step_update(self, num_updates: int) -> float:
        """Set and return the learning rate after ``num_updates`` updates (not batches: ``--update-freq``)."""
        self.num_updates = num_updates
        self.optimizer.set_lr(self.lr_at(num_updates))
        return float(self.optimizer.get_lr())

    def step_begin_epoch(self, epoch: int) -> None:
        """Fix H at the first epoch (counted from 1) after ``--hold-epochs``.

        fairseq's call at an epoch's end will not do: it also comes when a run resumes in the middle of an epoch,
        and only after the checkpoint of the epoch's end is written.
        """
        if self.cfg.hold_epochs is not None and self.hold == math.inf and epoch > self.cfg.hold_epochs:
            self.hold = self.num_updates

    def state_dict(self) -> dict[str, Any]:
        """Return fairseq's state and, once ``--hold-epochs`` is over, when that was."""
        state: dict[str, Any] = super().state_dict()
        if self.cfg.hold_epochs is not None and self.hold != math.inf:
            state |= {"hold_epochs": self.cfg.hold_epochs, "hold_updates": self.hold}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over where the hold ended, unless ``--hold-epochs`` was changed since."""
        super().load_state_dict(state_dict)
        if self.cfg.hold_epochs is not None and state_dict.get("hold_epochs") == self.cfg.hold_epochs:
            self.hold = state_dict["hold_updates"]
