"""Positions as fixed sines and cosines (Vaswani et al. 2017, 1706.03762, section 3.5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["SinusoidalPositions", "counted"]


class SinusoidalPositions(nn.Module):
    """What is added to the embedding of the position with a number p: sin(p w_k), then cos(p w_k), k < C/2.

    w_k = 10000^(-k / (C/2 - 1)), and the first token has the number ``before`` + 1, as fairseq has it.

    Args:
        dim: the number of features C.
        before: the token that is padding, as fairseq counts on from it; 0 where there is none.
        rows: so many are computed at once; more come as they are asked for.
    """

    table: Tensor

    def __init__(self, dim: int, before: int = 0, rows: int = 1026) -> None:
        super().__init__()
        self.dim, self.before = dim, before
        self.register_buffer("table", self.rows(rows), persistent=False)

    def forward(self, count: Tensor, highest: int) -> Tensor:
        """Return what is added to tokens, B x T x C, by ``count`` (B x T): from 1 to ``highest``, 0 for padding."""
        if highest >= len(self.table):
            self.table = self.rows(2 * highest).to(self.table)
        return self.table[count]

    def rows(self, rows: int) -> Tensor:
        """Return the table, rows x C, in float32; the first row, of padding, is 0."""
        half = self.dim // 2
        rates = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(10000) / max(half - 1, 1)))
        numbers = torch.arange(self.before, self.before + rows, dtype=torch.float)
        angles = numbers.unsqueeze(1) * rates.unsqueeze(0)
        table = torch.cat([torch.sin(angles), torch.cos(angles)], 1)
        table[0] = 0.0
        return nn.functional.pad(table, (0, self.dim % 2))

    def extra_repr(self) -> str:
        """The number of features, for printing the model."""
        return f"{self.dim}"


def counted(tokens: Tensor, padding_idx: int | None, before: Tensor | int = 0) -> Tensor:
    """Return how many real tokens there are up to each (B x T), behind those ``before`` (B x 1 or a number).

    0 stands at padding.
    """
    real = torch.ones_like(tokens) if padding_idx is None else tokens.ne(padding_idx).long()
    return (real.cumsum(1) + before) * real
