"""``--optimizer adam_fused``: fairseq's ``adam``, computed by torch's fused kernel instead of a loop over parameters.

It is the same optimizer to within rounding, keeps the same state, and bears the same name in checkpoints: a run begun
with either continues with the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import Adam, FairseqAdam
from torch.optim.adamw import adamw

from fairseq_lnplace.plugin.optimizers.options import AdamOptions

_HALF = (torch.float16, torch.bfloat16)


class FusedAdam(Adam):  # type: ignore[misc]
    """fairseq's Adam with another ``step``; state and options are the parent's."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient; return the closure's value.

        Half-precision parameters (``--memory-efficient-fp16``), whose state is float32, go through fairseq's loop:
        the kernel wants one type.
        """
        if any(p.dtype in _HALF for group in self.param_groups for p in group["params"]):
            loss: float | None = super().step(closure)
            return loss
        if closure is not None:
            with torch.enable_grad():
                closure_loss = closure()
        else:
            closure_loss = None
        for group in self.param_groups:
            for t, params in self._by_step(group["params"]).items():
                self._update(params, t, group)
        return closure_loss

    def _by_step(self, params: Iterable[torch.Tensor]) -> dict[int, list[torch.Tensor]]:
        """Start the state of new parameters, count this step, and group those with a gradient by their count."""
        by_step = defaultdict(list)
        for p in params:
            if p.grad is None:
                continue
            state = self.state[p]
            if not state:
                state |= {"step": 0, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            state["step"] += 1
            by_step[state["step"]].append(p)
        return by_step

    def _update(self, params: list[torch.Tensor], t: int, group: dict[str, Any]) -> None:
        """Make step ``t`` (from 1) of parameters that share it."""
        beta1, beta2 = group["betas"]
        # fairseq adds eps to the root of the raw average, torch to that of the corrected one.
        eps = group["eps"] / (1 - beta2**t) ** 0.5
        steps = torch.full((len(params),), float(t - 1), device=params[0].device)  # the kernel counts up by itself
        adamw(
            params,
            [p.grad for p in params if p.grad is not None],
            [self.state[p]["exp_avg"] for p in params],
            [self.state[p]["exp_avg_sq"] for p in params],
            [],
            list(steps.unbind()),
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=eps,
            maximize=False,
        )


@register_optimizer("adam_fused", dataclass=AdamOptions)
class FairseqAdamFused(FairseqAdam):  # type: ignore[misc]
    """fairseq's ``adam`` on the fused kernel."""

    def __init__(self, cfg: AdamOptions, params: Iterable[torch.nn.Parameter]) -> None:
        FairseqOptimizer.__init__(self, cfg)  # FairseqAdam's would build its own Adam
        self._optimizer = FusedAdam(params, **self.optimizer_config)


# On resume fairseq compares class names: this one lets `adam` and `adam_fused` continue each other's runs.
FairseqAdamFused.__name__ = FairseqAdam.__name__
