"""Sequences without their padding, for everything that treats each position by itself."""

from typing import NamedTuple

import torch
from torch import Tensor


class Packing(NamedTuple):
    """Where the N real positions of B x T stand.

    Attributes:
        positions: N, their numbers in the order of B x T.
        sentences: B.
        length: T.
    """

    positions: Tensor
    sentences: int
    length: int


def packing_of(padding: Tensor) -> Packing:
    """Return where there is no padding (B x T, True at padding)."""
    positions = torch.logical_not(padding).flatten().nonzero().squeeze(1)
    return Packing(positions, padding.size(0), padding.size(1))


def packed(x: Tensor, packing: Packing) -> Tensor:
    """Return the real positions of ``x`` (B x T x C) as one sentence, 1 x N x C."""
    return x.flatten(0, 1).index_select(0, packing.positions).unsqueeze(0)


def unpacked(x: Tensor, packing: Packing) -> Tensor:
    """Return ``x`` (1 x N x C) as B x T x C, 0 at padding."""
    rows = x.new_zeros(packing.sentences * packing.length, x.size(2)).index_copy(0, packing.positions, x[0])
    return rows.view(packing.sentences, packing.length, x.size(2))
