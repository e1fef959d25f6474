"""Training criteria; importing this package registers them with fairseq."""

from fairseq_lnplace.plugin.criterions import label_smoothed_cross_entropy_fused

__all__ = ["label_smoothed_cross_entropy_fused"]
