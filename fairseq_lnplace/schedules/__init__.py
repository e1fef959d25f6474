"""Learning-rate schedules that need no warm-up, for any ``torch.optim.Optimizer``; nothing here imports fairseq."""

from __future__ import annotations

from fairseq_lnplace.schedules.epoch_drop import EpochDrop
from fairseq_lnplace.schedules.inverse_sqrt_nowarmup import InverseSqrtNoWarmup

__all__ = ["EpochDrop", "InverseSqrtNoWarmup"]
