"""The label-smoothed loss from logits, with one vocabulary-sized matrix in memory instead of fairseq's four."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Rows are taken in blocks of about this many logits, so that what is computed from them in float32 stays small:
# in the processor's cache, or within 128 MB where a kernel's start costs more than the memory.
_BLOCK = {"cpu": 2**18, "cuda": 2**25}


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors of N rows, of which the first holds the logits, into the same blocks of rows."""
    logits = tensors[0]
    rows = max(1, _BLOCK.get(logits.device.type, _BLOCK["cuda"]) // logits.size(1))
    return zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True)


def _accurate(logits: Tensor) -> Tensor:
    """Return the logits in at least float32."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def share_and_bonus(smoothing: float, vocabulary: int) -> tuple[float, float]:
    """Return the probability of each wrong type, and what the right one has on top of that."""
    share = smoothing / (vocabulary - 1)
    return share, 1.0 - smoothing - share


class _SmoothedLoss(torch.autograd.Function):
    """See `smoothed_loss`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        vocabulary = logits.size(1)
        ctx.share, ctx.bonus = share_and_bonus(smoothing, vocabulary)
        zero = _accurate(logits.new_zeros(()))
        nll, smooth, normalizers = zero, zero, [zero.new_empty(0)]
        for block, right in _blocks(logits, target):
            z = _accurate(block)
            log_norm = z.logsumexp(dim=1)
            normalizers.append(log_norm)
            nll = nll + (log_norm - z.gather(1, right.unsqueeze(1)).squeeze(1)).sum()
            smooth = smooth + (vocabulary * log_norm - z.sum(dim=1)).sum()
        ctx.save_for_backward(logits, target, torch.cat(normalizers))
        ctx.mark_non_differentiable(nll)
        return ctx.bonus * nll + ctx.share * smooth, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        """d loss / d logits = softmax - share - bonus·[right type], written over the logits."""
        logits, target, normalizers = ctx.saved_tensors
        for block, right, log_norm in _blocks(logits, target, normalizers):
            z = _accurate(block)  # the block itself if that is accurate enough, else a copy
            z.sub_(log_norm.unsqueeze(1)).exp_().sub_(ctx.share)
            z.scatter_add_(1, right.unsqueeze(1), z.new_full((len(right), 1), -ctx.bonus))
            # Scaled before it is rounded to half precision: that is what fp16's loss scale is for.
            z.mul_(grad)
            if z is not block:
                block.copy_(z)
        return logits, None, None


def smoothed_loss(logits: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return fairseq's label-smoothed loss and the plain negative log-likelihood, each summed over N positions.

    With V types, s = ``smoothing`` / (V-1) and p the softmax, a position whose right type is y costs
    -(1 - smoothing) log p[y] - s·Σ log p[v] over v ≠ y, in nats. The sums are taken in float32 at least.

    Args:
        logits: N x V. The backward pass leaves its gradient there: it is not to be read afterwards.
        target: N, the right types.
        smoothing: probability taken from the right type and shared by the others, in [0, 1].

    Returns:
        The loss, which alone carries gradients, and the negative log-likelihood: two scalars.
    """
    loss, nll = _SmoothedLoss.apply(logits, target, smoothing)  # type: ignore[no-untyped-call]
    return loss, nll
