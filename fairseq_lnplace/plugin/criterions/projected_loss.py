"""The label-smoothed loss from the features that are projected to logits, with no matrix of logits in memory.

The gradient is computed along with the loss, block by block, while a block of logits is in the processor's cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_lnplace.layers.linear import product, weight_gradient
from fairseq_lnplace.plugin.criterions.smoothed_loss import share_and_bonus

__all__ = ["projected_loss"]

# Features are projected so many at a time: with fewer, matrix products are slower.
_ROWS = 512


class _ProjectedLoss(torch.autograd.Function):
    """See `projected_loss`."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        vocabulary = len(weight)
        share, bonus = share_and_bonus(smoothing, vocabulary)
        for_features, for_weight = ctx.needs_input_grad[:2]
        features_grad = torch.empty_like(features) if for_features else None
        weight_grad = torch.zeros_like(weight) if for_weight else None
        all_features, all_weights = features.sum(dim=0), weight.sum(dim=0)
        nll, smooth = features.new_zeros(()), -(all_features @ all_weights)  # the sum of all logits
        # d loss / d logits = softmax - share - bonus·[right type]: the softmax's norm and the share, which are the same
        # for a whole row or for all, are applied to the products with it, which are smaller.
        for start in range(0, len(features), _ROWS):
            block, right = features[start : start + _ROWS], target[start : start + _ROWS].unsqueeze(1)
            z = product(block, weight)
            of_right, largest = z.gather(1, right), z.amax(dim=1, keepdim=True)
            norm = z.sub_(largest).exp_().sum(dim=1, keepdim=True)
            log_norm = largest + norm.log()
            nll += (log_norm - of_right).sum()
            smooth += vocabulary * log_norm.sum()
            if for_features or for_weight:
                z.scatter_add_(1, right, -bonus * norm)
            if features_grad is not None:
                torch.div(product(z, weight.t()), norm, out=features_grad[start : start + _ROWS])
            if weight_grad is not None:
                weight_grad += weight_gradient(z, block / norm)
        if features_grad is not None:
            features_grad.sub_(share * all_weights)
        if weight_grad is not None:
            weight_grad.sub_(share * all_features)
        ctx.save_for_backward(features_grad, weight_grad)
        ctx.mark_non_differentiable(nll)
        return bonus * nll + share * smooth, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        features_grad, weight_grad = (None if each is None else each * grad for each in ctx.saved_tensors)
        return features_grad, weight_grad, None, None


def projected_loss(features: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the `smoothed_loss` of the logits ``features`` · ``weight``ᵀ.

    For float32 and float64 on the CPU: in half precision a gradient that does not know the loss's scale yet would lose
    its small parts.

    Args:
        features: N x C.
        weight: V x C.
        target: N, the right types.
        smoothing: probability taken from the right type and shared by the others, in [0, 1].

    Returns:
        The loss, which alone carries gradients, and the negative log-likelihood: two scalars.
    """
    if not torch.is_grad_enabled():  # which alone would not tell `_ProjectedLoss`
        features, weight = features.detach(), weight.detach()
    loss, nll = _ProjectedLoss.apply(features, weight, target, smoothing)  # type: ignore[no-untyped-call]
    return loss, nll
