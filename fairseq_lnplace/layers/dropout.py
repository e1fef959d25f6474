"""Dropout with a cheaper mask on the CPU."""

from typing import Any, Tuple

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor


class Dropout(FairseqDropout):  # type: ignore[misc]
    """fairseq's dropout; on the CPU its masks cost a quarter and its saved tensors a quarter of the memory.

    torch draws one 32-bit number an element there; 16 bits are enough. The probability is rounded to a multiple of
    2^-16 and the scale is that of the rounded one, so that the expectation is exact.
    """

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Return ``x`` with its elements dropped, in training or where fairseq's --retain-dropout says so."""
        if self.p == 0.0 or not (self.training or self.apply_during_inference):
            return x
        if torch.jit.is_scripting() or x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.p, True, inplace)
        return self.drop(x)

    @torch.jit.unused
    def drop(self, x: Tensor) -> Tensor:
        """Return ``x`` with its elements dropped."""
        return _Dropout.apply(x, self.p)  # type: ignore[no-any-return, no-untyped-call]


class _Dropout(torch.autograd.Function):
    """See :class:`Dropout`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        keep, ctx.scale = keep_mask(x, p)
        ctx.save_for_backward(keep)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None]:
        """Drop the same elements of the gradient."""
        (keep,) = ctx.saved_tensors
        return (grad * keep).mul_(ctx.scale), None


def keep_mask(x: Tensor, p: float) -> Tuple[Tensor, float]:
    """Return which elements of ``x`` to keep, and the scale that keeps their expectation."""
    dropped = min(round(p * 2**16), 2**16 - 1)  # of 2^16
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    return bits >= dropped - 2**15, 2**16 / (2**16 - dropped)
