"""What stands in a norm's place: DyT and Derf as they start, in half precision, under weight decay and saved."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.layers.norm import CAUSAL_NORM_TYPES, Norm

every_squash = pytest.mark.parametrize("kind", ["dyt", "derf"])


def filled(kind: str) -> Norm:
    """Return one with values that are not its start."""
    norm = Norm(kind, 8)
    with torch.no_grad():
        for seed, parameter in enumerate(norm.parameters()):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            parameter.add_(noise / 4)
    return norm


def values() -> Tensor:
    return torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize(("kind", "at_1"), [("dyt", 0.46211716), ("derf", 0.52049988)])
@pytest.mark.parametrize("eps", [1e-5, 1.0])
def test_a_fresh_one_is_as_published(kind: str, at_1: float, eps: float) -> None:
    """It is odd and asks nothing of the other features, nor of eps."""
    y = Norm(kind, 4, eps).double()(torch.tensor([1.0, 0.0, -1.0, 100.0], dtype=torch.float64))
    assert_close(y, torch.tensor([at_1, 0.0, -at_1, 1.0], dtype=torch.float64), rtol=0, atol=5e-9)


@every_squash
def test_names_in_a_state_dict(kind: str) -> None:
    """The same of no other norm, so that none is loaded for another."""
    own = {"weight": (8,), "bias": (8,), "alpha": (1,)} | ({"shift": (1,)} if kind == "derf" else {})
    norm = filled(kind)
    assert {name: tuple(tensor.shape) for name, tensor in norm.state_dict().items()} == own
    again = Norm(kind, 8)
    again.load_state_dict(norm.state_dict())
    assert torch.equal(again(values()), norm(values()))
    for other in {*CAUSAL_NORM_TYPES} - {kind}:
        with pytest.raises(RuntimeError, match=r"Missing key|Unexpected key"):
            Norm(other, 8).load_state_dict(norm.state_dict())


@every_squash
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(kind: str, dtype: torch.dtype) -> None:
    """A stream of half precision stays so, a widened one too; what tanh and erf are taken of is never rounded."""
    norm = filled(kind).to(dtype)
    x = values().to(dtype)
    exact = Norm(kind, 8).double()
    exact.load_state_dict(norm.state_dict())
    y = norm(x)
    assert y.dtype == dtype
    assert_close(y.double(), exact(x.double()), rtol=0, atol=2 * torch.finfo(dtype).eps)
    wide = norm(x.float())
    assert wide.dtype == torch.float32
    assert_close(wide.double(), exact(x.double()), rtol=1e-5, atol=1e-6)


@every_squash
def test_weight_decay_pulls_towards_the_published_start(kind: str) -> None:
    norm = filled(kind)
    with torch.no_grad():
        for _ in range(200):
            for parameter in (norm.alpha, norm.shift):
                if parameter is not None:
                    parameter.mul_(0.9)  # what decay does to all parameters
    fresh = Norm(kind, 8)
    fresh.weight, fresh.bias = norm.weight, norm.bias
    assert_close(norm(values()), fresh(values()), rtol=0, atol=1e-7)


@every_squash
def test_everything_in_it_is_trained(kind: str) -> None:
    norm, x = filled(kind).double(), values().double().requires_grad_()
    own = dict(norm.named_parameters())

    def output(x: Tensor, *parameters: Tensor) -> Tensor:
        given = dict(zip(own, parameters, strict=True))
        return torch.func.functional_call(norm, given, (x,))  # type: ignore[no-any-return]

    norm(x).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.all() for parameter in own.values())
    assert torch.autograd.gradcheck(output, (x, *own.values()))


@every_squash
def test_torchscript(kind: str) -> None:
    norm = filled(kind)
    assert torch.equal(torch.jit.script(norm)(values()), norm(values()))


def test_an_unknown_one_is_refused() -> None:
    with pytest.raises(LnplaceError, match=r"`--norm-type` must be layernorm or .* derf or .*, but is dynamic"):
        Norm("dynamic", 8)
