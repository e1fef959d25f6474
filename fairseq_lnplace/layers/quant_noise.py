"""Linear maps that are trained under the noise of a later product quantisation."""

import torch
from torch import Tensor, nn

from fairseq_lnplace.layers.linear import Linear, product


class NoisyLinear(nn.Linear):
    """A linear map that drops random blocks of its weights in training (Fan et al. 2020, 2004.07320).

    fairseq's own hook writes the noise into the weight for good, so that each forward destroys a share of it. Here the
    weight stays, and its gradient passes straight through the noise, as in the paper.

    Args:
        in_features, out_features, bias: as of ``nn.Linear``.
        p: the probability that a block is dropped; the others grow by 1 / (1 - p).
        block_size: the number of neighbouring weights of a row that make a block; divides ``in_features``.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool, p: float, block_size: int) -> None:
        super().__init__(in_features, out_features, bias)
        self.p, self.block_size = p, block_size

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` (... x in_features) to ... x out_features."""
        return product(x, self.noisy_weight() if self.training else self.weight, self.bias)

    def noisy_weight(self) -> Tensor:
        """Return the weight with its noise, out_features x in_features."""
        weight = self.weight
        blocks = weight.detach().view(self.out_features, -1, self.block_size)
        kept = torch.rand(blocks.shape[:2], device=blocks.device).ge(self.p).unsqueeze(-1)
        return weight + (blocks * kept / (1 - self.p) - blocks).view_as(weight)


def linear(in_features: int, out_features: int, p: float, block_size: int, bias: bool = True) -> nn.Linear:
    """Return a linear map, under quantisation noise where ``p`` is above 0; see :class:`NoisyLinear`."""
    if p > 0:
        return NoisyLinear(in_features, out_features, bias, p=p, block_size=block_size)
    return Linear(in_features, out_features, bias)
