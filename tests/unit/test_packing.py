"""Sequences without their padding, and with it again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fairseq_lnplace.layers.packing import packed, packing_of, spread, unpacked

PADDING = torch.tensor([[False, False, True], [True, False, False]])


def test_padding_is_left_out_and_becomes_zero() -> None:
    x = torch.arange(1.0, 13.0).view(2, 3, 2)
    packing = packing_of(PADDING)
    assert packing is not None
    real = packed(x, packing)
    assert real.tolist() == [[[1, 2], [3, 4], [9, 10], [11, 12]]]
    assert unpacked(real, packing).tolist() == [[[1, 2], [3, 4], [0, 0]], [[0, 0], [9, 10], [11, 12]]]


def test_without_padding_nothing_is_done() -> None:
    x = torch.randn(2, 3, 2)
    packing = packing_of(torch.zeros(2, 3, dtype=torch.bool))
    assert packing is None
    assert packed(x, packing) is x
    assert unpacked(x, packing) is x


def test_gradients() -> None:
    packing = packing_of(PADDING)
    x = torch.randn(1, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: unpacked(x, packing) ** 2, x)
    assert torch.autograd.gradgradcheck(lambda x: unpacked(x, packing) ** 2, x)
    assert torch.autograd.gradcheck(lambda x: packed(unpacked(x, packing), packing) ** 2, x)


def test_of_what_is_unpacked_nothing_is_kept_for_the_gradient() -> None:
    packing = packing_of(PADDING)
    x = torch.randn(1, 4, 2, requires_grad=True)
    kept: list[Tensor] = []
    with saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        unpacked(x, packing)
    assert {tensor.dtype for tensor in kept} == {torch.int64}


@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.func.jacfwd])
def test_torch_func_can_go_through(transform: type) -> None:
    packing = packing_of(PADDING)
    assert packing is not None
    x = torch.randn(1, 4, 2, dtype=torch.float64)
    expected = transform(lambda x: spread(x, packing.positions, 6).view(2, 3, 2))(x)
    torch.testing.assert_close(transform(lambda x: unpacked(x, packing))(x), expected)
