"""Sequences without their padding, for everything that treats each position by itself."""

from functools import partial
from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from fairseq_lnplace.layers.recomputed import is_wanted, repeatable


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


def packing_of(padding: Tensor) -> Optional[Packing]:
    """Return where there is no padding (B x T, True at padding); None where there is none anywhere."""
    positions = torch.logical_not(padding).flatten().nonzero().squeeze(1)
    if positions.numel() == padding.numel():
        return None
    return Packing(positions, padding.size(0), padding.size(1))


def packed(x: Tensor, packing: Optional[Packing]) -> Tensor:
    """Return the real positions of ``x`` (B x T x C) as one sentence, 1 x N x C; without a packing ``x`` itself."""
    if packing is None:
        return x
    y = gathered(x, packing)
    if not torch.jit.is_scripting():
        repeatable(y, partial(gathered, packing=packing), x)
    return y


def gathered(x: Tensor, packing: Packing) -> Tensor:
    """Return the real positions of ``x``."""
    return x.reshape(1, -1, x.size(2)).index_select(1, packing.positions)  # no view, whose base torch.compile watches


def unpacked(x: Tensor, packing: Optional[Packing]) -> Tensor:
    """Return ``x`` (1 x N x C) as B x T x C, 0 at padding; without a packing ``x`` itself."""
    if packing is None:
        return x
    if torch.jit.is_scripting():
        y = spread(x, packing.positions, packing.sentences * packing.length)
    else:
        y = spread_keeping_less(x, packing)
    return y.view(packing.sentences, packing.length, x.size(2))


def spread(x: Tensor, positions: Tensor, rows: int) -> Tensor:
    """Return ``x`` (1 x N x C) at its ``positions`` among so many rows, which are 0 elsewhere."""
    return x.new_zeros(1, rows, x.size(2)).index_copy_(1, positions, x)


@torch.jit.unused
def spread_keeping_less(x: Tensor, packing: Packing) -> Tensor:
    """Return what :func:`spread` does."""
    function = _Spread.apply if is_wanted() else spread
    return function(x, packing.positions, packing.sentences * packing.length)


class _Spread(torch.autograd.Function):
    """:func:`spread`; for the gradient torch would keep ``x``, of which it wants no more than the shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(positions)
        return spread(x, positions, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None, None]:
        """Return the gradient at the real positions."""
        (positions,) = ctx.saved_tensors
        return grad.index_select(1, positions), None, None
