"""``--optimizer radam``: torch's RAdam (Liu et al., 2019, arXiv 1908.03265) behind fairseq's interface.

Its options are those of ``adam``; weight decay is decoupled, as in fairseq's ``adam`` and in the authors' own code.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam

from fairseq_lnplace.plugin.optimizers.options import AdamOptions


@register_optimizer("radam", dataclass=AdamOptions)
class FairseqRAdam(FairseqAdam):  # type: ignore[misc]
    """Adam whose step is damped while few gradients have been seen, so that it needs no warm-up of its own."""

    def __init__(self, cfg: AdamOptions, params: Iterable[torch.nn.Parameter]) -> None:
        FairseqOptimizer.__init__(self, cfg)  # FairseqAdam's would build an Adam
        self._optimizer = torch.optim.RAdam(params, decoupled_weight_decay=True, **self.optimizer_config)

    @property
    def supports_flat_params(self) -> bool:
        """Every weight is updated by itself, so fp16 training may lay them all into one vector."""
        return True
