"""Optimizers beside fairseq's; importing this package registers them."""

from fairseq_lnplace.plugin.optimizers import adam_fused, radam

__all__ = ["adam_fused", "radam"]
