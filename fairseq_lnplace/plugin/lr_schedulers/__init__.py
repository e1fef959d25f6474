"""Learning-rate schedules that need no warm-up; importing this package registers them with fairseq."""

from fairseq_lnplace.plugin.lr_schedulers import epoch_drop, inverse_sqrt_nowarmup

__all__ = ["epoch_drop", "inverse_sqrt_nowarmup"]
