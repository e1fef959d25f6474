"""What is computed again for the gradient: the same gradient, from fewer tensors kept, and only where it is safe."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import batch, tiny_model
from torch import Tensor

from fairseq_lnplace.layers import recomputed
from fairseq_lnplace.layers.norm import Norm
from fairseq_lnplace.layers.packing import packed, packing_of
from fairseq_lnplace.layers.recomputed import keeping_less, repeatable


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm", "scalenorm", "dyt", "derf"])
def test_a_norms_output_is_computed_again(kind: str) -> None:
    torch.manual_seed(0)
    norm, x, weight = Norm(kind, 4).double(), torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(5, 4).double()
    seen: list[Tensor] = []
    norm.normalized = lambda x, padding=None: seen.append(x) or Norm.normalized(norm, x, padding)  # type: ignore
    grads = {}
    for less in (False, True):
        leaf, matrix = x.clone().requires_grad_(), weight.clone().requires_grad_()
        y = norm(leaf)
        if less:
            with keeping_less():
                out = F.linear(y, matrix)
        else:
            out = F.linear(y, matrix)
        del y
        seen.clear()
        grads[less] = torch.autograd.grad(out.square().sum(), (leaf, matrix, *norm.parameters()))
        assert len(seen) == less
    torch.testing.assert_close(grads[True], grads[False], rtol=0.0, atol=0.0)


def test_what_is_packed_is_gathered_again() -> None:
    packing = packing_of(torch.tensor([[False, False], [False, True]]))
    x = torch.randn(2, 2, 4, requires_grad=True)
    weight = torch.randn(4, 4, requires_grad=True)
    y = packed(x, packing)
    with keeping_less():
        out = F.linear(y, weight)
    y.detach().zero_()  # nobody needs it any more
    (grad,) = torch.autograd.grad(out.sum(), weight)
    torch.testing.assert_close(grad, x.detach().flatten(0, 1)[:3].sum(0).expand(4, 4))


def test_what_several_need_is_computed_once_and_let_go() -> None:
    x, calls = torch.ones(2), []
    y = x * 2
    repeatable(y, lambda x: calls.append(1) or x * 2, x)
    weights = [torch.ones(2, requires_grad=True) for _ in range(3)]
    with keeping_less():
        out = sum(y * weight for weight in weights)
    record = y.again
    first, *others = torch.autograd.grad(out.sum(), weights, retain_graph=True)
    assert all(torch.equal(each, y) for each in (first, *others))
    assert (len(calls), record.result) == (1, None)
    again = torch.autograd.grad(out.sum(), weights)
    assert all(torch.equal(each, y) for each in again)
    assert record.result is None


def test_what_has_changed_is_kept() -> None:
    x = torch.ones(3)
    y = x * 2
    repeatable(y, lambda x: x * 2, x)
    y.add_(1)
    weight = torch.ones(3, requires_grad=True)
    with keeping_less():
        out = y * weight
    (grad,) = torch.autograd.grad(out.sum(), weight)
    assert grad.tolist() == [3, 3, 3]


def test_another_tensor_at_a_dead_ones_address_is_itself() -> None:
    x = torch.ones(3)
    storage = torch.zeros(3)
    y = storage.view(3)
    repeatable(y, lambda x: x, x)
    del y
    weight = torch.ones(3, requires_grad=True)
    with keeping_less():
        out = storage * weight
    (grad,) = torch.autograd.grad(out.sum(), weight)
    assert grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize("rows", [slice(0, 1), slice(1, 2)])
def test_a_part_is_itself(rows: slice) -> None:
    x = torch.arange(4.0).view(2, 2)
    y = x * 2
    repeatable(y, lambda x: x * 2, x)
    weight = torch.ones(2, requires_grad=True)
    with keeping_less():
        out = y[rows] * weight
    (grad,) = torch.autograd.grad(out.sum(), weight)
    assert grad.tolist() == y[rows].flatten().tolist()


def test_under_autocast_everything_is_kept() -> None:
    norm, x, weight = Norm("layernorm", 4), torch.randn(2, 4), torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), keeping_less():
        out = F.linear(norm(x.bfloat16()), weight).float()
    (grad,) = torch.autograd.grad(out.sum(), weight)
    torch.testing.assert_close(grad[0], norm(x).sum(0).detach(), rtol=0.05, atol=0.05)


def test_second_derivatives() -> None:
    norm, x = Norm("layernorm", 4).double(), torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)

    def through(x: Tensor, weight: Tensor) -> Tensor:
        with keeping_less():
            return F.linear(norm(x), weight).tanh()

    assert torch.autograd.gradgradcheck(through, (x, weight))


def test_torch_func_keeps_what_it_likes() -> None:
    norm, x = Norm("layernorm", 4), torch.randn(4)

    def through(x: Tensor) -> Tensor:
        with keeping_less():
            return F.linear(norm(x), torch.eye(4))

    expected = torch.autograd.functional.jacobian(lambda x: F.layer_norm(x, [4]), x)
    torch.testing.assert_close(torch.func.jacrev(through)(x), expected)


def gradients(model: Any) -> dict[str, Tensor]:
    model.zero_grad()
    model(**batch()["net_input"])[0].float().square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("placement", "norms"), [("postln", 11), ("preln_final", 13), ("normformer", 18)])
def test_a_models_gradients_are_the_same(placement: str, norms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3+2 layers: Post-LN's last norm ends the decoder, Pre-LN's encoder ends in one that the decoder reads."""
    model, again = tiny_model(placement), []
    pack = recomputed._pack
    monkeypatch.setattr(recomputed, "_pack", lambda tensor: [packed := pack(tensor), again.append(packed)][0])
    less = gradients(model)
    monkeypatch.setattr(recomputed, "_pack", lambda tensor: tensor)
    torch.testing.assert_close(less, gradients(model), rtol=0.0, atol=0.0)
    records = {each[0] for each in again if not isinstance(each, Tensor)}
    names = Counter(each.compute.func.__name__ for each in records)
    # attention's outputs of two decoder layers, and their first input
    assert names == {"normalized": norms, "gathered": 2 * 2 + 1}
