"""Dropout with a cheaper mask on the CPU."""

from typing import Any, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """Dropout whose masks cost a quarter, and whose saved tensors a quarter of the memory, on the CPU.

    torch draws one 32-bit number an element there; 16 bits are enough. The probability is rounded to a multiple of
    2^-16 and the scale is that of the rounded one, so that the expectation is exact.

    Args:
        p: the probability that an element is dropped.
        module_name: the class of module that it belongs to, by which fairseq's --retain-dropout-modules asks for it.
    """

    def __init__(self, p: float, module_name: str = "") -> None:
        super().__init__()
        self.p, self.module_name = p, module_name
        self.apply_during_inference = False

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` with its elements dropped, in training or where ``apply_during_inference`` says so."""
        if self.probability() == 0.0:
            return x
        if torch.jit.is_scripting() or x.device.type != "cpu":
            return F.dropout(x, self.p, True)
        return self.drop(x)

    def probability(self) -> float:
        """Return the probability that is in force now."""
        return self.p if self.training or self.apply_during_inference else 0.0

    @torch.jit.unused
    def drop(self, x: Tensor) -> Tensor:
        """Return ``x`` with its elements dropped."""
        dropped = min(round(self.p * 2**16), 2**16 - 1)  # of 2^16
        scale = 2**16 / (2**16 - dropped)
        if torch.compiler.is_compiling():  # there the product is fused with its neighbours, and so is its gradient
            kept: Tensor = x * keep_mask(x, dropped) * scale
            return kept
        return _Dropout.apply(x, dropped, scale)  # type: ignore[no-any-return, no-untyped-call]

    def extra_repr(self) -> str:
        """The probability, for printing the model."""
        return f"p={self.p}"


class _Dropout(torch.autograd.Function):
    """See :class:`Dropout`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int, scale: float) -> Tensor:
        keep, ctx.scale = drawn(x, dropped), scale
        ctx.save_for_backward(keep)
        return (x * keep).mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None, None]:
        """Drop the same elements of the gradient."""
        (keep,) = ctx.saved_tensors
        return (grad * keep).mul_(ctx.scale), None, None


def drawn(x: Tensor, dropped: int) -> Tensor:
    """Return which elements of ``x`` to keep, where ``dropped`` of 2^16 are dropped."""
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    return bits >= dropped - 2**15


# One operation that torch.compile leaves as it is: the random numbers of its own code are drawn one by one.
keep_mask = torch.library.custom_op(
    "lnplace::keep_mask", drawn, mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)


@keep_mask.register_fake
def _(x: Tensor, dropped: int) -> Tensor:
    return torch.empty(x.shape, dtype=torch.bool, device=x.device)
