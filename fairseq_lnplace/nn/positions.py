"""Positions as fixed sines and cosines (Vaswani et al. 2017, 1706.03762, section 3.5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["SinusoidalPositions", "numbers_of"]


class SinusoidalPositions(nn.Module):
    """What is added to the embedding of the position with a number p: sin(p w_k), then cos(p w_k), k < C/2.

    w_k = 10000^(-k / (C/2 - 1)), as fairseq has it; the row of number 0 is 0, for padding.

    Args:
        dim: the number of features C.
        rows: so many are computed at once; more come as they are asked for.
    """

    table: Tensor

    def __init__(self, dim: int, rows: int = 1026) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("table", rows_of(rows, dim), persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the rows of ``numbers`` (B x T), B x T x C."""
        if not torch.compiler.is_compiling() and numbers.numel() and (last := int(numbers.max())) >= len(self.table):
            self.table = rows_of(2 * last, self.dim).to(self.table)
        return self.table[numbers]


def rows_of(rows: int, dim: int) -> Tensor:
    """Return the table, rows x C, in float32."""
    half = dim // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(10000) / max(half - 1, 1)))
    angles = torch.arange(rows, dtype=torch.float).unsqueeze(1) * rates.unsqueeze(0)
    table = torch.cat([torch.sin(angles), torch.cos(angles)], 1)
    return nn.functional.pad(table, (0, dim % 2))


def numbers_of(tokens: Tensor, padding_idx: int | None, before: Tensor | int = 0) -> Tensor:
    """Return the position numbers of ``tokens`` (B x T).

    Real tokens count on from ``padding_idx`` + 1 (from 1 where there is no padding), as in fairseq, behind those
    ``before`` them (B x 1 or a number); padding has ``padding_idx``.
    """
    real = torch.ones_like(tokens) if padding_idx is None else tokens.ne(padding_idx).long()
    return (real.cumsum(1) + before) * real + (padding_idx or 0)
