"""Products by oneDNN: torch's values and gradients, wherever it is taken, and torch's own operation elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from helpers import batch, tiny_model, tiny_task
from torch import Tensor, nn
from torch.autograd import forward_ad

from fairseq_lnplace.layers import linear
from fairseq_lnplace.layers.linear import Linear, onednn_is_faster, product
from fairseq_lnplace.plugin.criterions.label_smoothed_cross_entropy_fused import LabelSmoothedCrossEntropyFused

TAKEN: list[tuple[int, int, int]] = []  # M, N and K of each product


@pytest.fixture(autouse=True)
def onednn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let oneDNN take products of every size, on every CPU, and note in TAKEN where it does."""
    original = linear.onednn

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        TAKEN.append((len(x), len(weight), x.size(1)))
        return original(x, weight, bias)

    monkeypatch.setattr(linear, "WORTH_IT", 0)
    monkeypatch.setattr(linear, "FEWEST_ROWS", 0)
    monkeypatch.setattr(linear, "ONEDNN_IS_FASTER", True)
    monkeypatch.setattr(linear, "onednn", noted)
    yield
    TAKEN.clear()


@pytest.mark.parametrize(
    ("capability", "maker", "taken"),
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "", True),
        ("AVX512", "GenuineIntel", False),
        ("AVX2", "AuthenticAMD", False),
        ("DEFAULT", "", False),
    ],
)
def test_onednn_is_taken_where_it_is_faster(capability: str, maker: str, taken: bool) -> None:
    assert onednn_is_faster(capability, f"processor : 0\nvendor_id : {maker}\n") == taken


LAYOUTS = {
    "dense": lambda x: x,
    "transposed": lambda x: x.transpose(0, -2).contiguous().transpose(0, -2),
    "columns": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "with gaps": lambda x: torch.cat([x, x], -1)[..., : x.size(-1)],
    "every other": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "one row for all": lambda x: x[:1].expand_as(x),
    "one number for all": lambda x: x.flatten()[:1].expand_as(x),
    "one row": lambda x: x[:1],
}


@pytest.mark.parametrize("piece", [3, 1024])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(4, 3), (5, 4, 3)])
@pytest.mark.parametrize("of", ["x", "weight", "bias", "gradient"])
def test_values_and_gradients_are_those_of_the_formula(
    of: str, shape: tuple[int, ...], layout: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """y = x Wᵀ + b, dx = g W, dW = gᵀ x and db = Σ g, in float64; however a tensor lies in memory."""
    monkeypatch.setattr(linear, "PIECE", piece)
    torch.manual_seed(0)
    laid = LAYOUTS[layout]
    x = laid(torch.randn(shape)) if of == "x" else torch.randn(shape)
    weight = torch.randn(6, 3)
    weight = laid(weight) if of == "weight" and layout != "one row" else weight
    bias = torch.randn(6, 1)
    bias = (laid(bias) if of == "bias" and layout != "one row" else bias)[:, 0]
    leaves = [each.detach().requires_grad_() for each in (x, weight, bias)]
    y = product(*leaves)
    grad = torch.randn(y.shape)
    grad = laid(grad) if of == "gradient" and layout != "one row" else grad
    gradients = torch.autograd.grad(y, leaves, grad)
    rows, of_rows = x.double().reshape(-1, 3), grad.double().reshape(-1, 6)
    expected = (of_rows @ weight.double()).view(x.shape), of_rows.t() @ rows, of_rows.sum(0)
    torch.testing.assert_close(y.double().reshape(-1, 6), rows @ weight.double().t() + bias.double(), rtol=0, atol=1e-5)
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-5)
    assert len(TAKEN) >= 3


def test_however_many_rows_there_are_the_shapes_are_few() -> None:
    """oneDNN keeps what it makes for each."""
    weight = torch.randn(6, 3, requires_grad=True)
    for rows in range(64, 3000, 37):
        product(torch.randn(rows, 3, requires_grad=True), weight).sum().backward()
    in_training = {*TAKEN}
    assert len(in_training) == 3 * 4  # 256, 512, 768 and 1,024 rows, in the value and in two gradients
    with torch.no_grad():
        for rows in range(64, 3000, 37):
            product(torch.randn(rows, 3), weight)
    assert len({*TAKEN} - in_training) == 16 - 4


def test_a_single_vector_and_no_bias() -> None:
    x, weight = torch.randn(3, requires_grad=True), torch.randn(6, 3, requires_grad=True)
    y = product(x, weight)
    torch.testing.assert_close(y, weight @ x)
    for_x, for_weight = torch.autograd.grad(y.sum(), (x, weight))
    torch.testing.assert_close(for_x, weight.sum(0))
    torch.testing.assert_close(for_weight, x.expand(6, 3))


def test_a_gradient_has_a_gradient() -> None:
    """f = Σ (x Wᵀ)³ / 3 has the gradient (x Wᵀ)² W by x, whose sum has the gradient 2 (x Wᵀ ∘ s) W, s = Σ W by rows."""
    x, weight = torch.randn(4, 3, requires_grad=True), torch.randn(6, 3)
    y = product(x, weight)
    (first,) = torch.autograd.grad((y**3).sum() / 3, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    exact = x.detach().double() @ weight.double().t()
    torch.testing.assert_close(
        second.double(), 2 * (exact * weight.double().sum(1)) @ weight.double(), rtol=0, atol=1e-4
    )


class Elsewhere(Tensor):
    """A tensor of a class of its own, as quantised weights are."""


def test_torchs_own_operation_takes_the_rest() -> None:
    map_, x = Linear(3, 6), torch.randn(4, 3)
    expected = (x.double() @ map_.weight.double().t() + map_.bias.double()).float()
    assert map_.double()(x.double()).dtype == torch.float64
    map_ = map_.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert map_(x).dtype == torch.bfloat16
    torch.testing.assert_close(torch.func.vmap(map_)(x), expected)
    tangent = torch.ones(4, 3)
    torch.testing.assert_close(torch.func.jvp(map_, (x,), (tangent,))[1], tangent @ map_.weight.t())
    with forward_ad.dual_level():
        slope = forward_ad.unpack_dual(map_(forward_ad.make_dual(x, tangent))).tangent
    torch.testing.assert_close(slope, tangent @ map_.weight.t())
    torch.testing.assert_close(torch.jit.trace(map_, x, check_trace=False)(x), expected)
    torch.testing.assert_close(torch.jit.script(map_)(x), expected)
    assert isinstance(map_(x.as_subclass(Elsewhere)), Elsewhere)
    assert "aten.linear" in str(torch.export.export(map_, (x,)).graph)
    assert not TAKEN
    with torch.no_grad():
        torch.testing.assert_close(map_(x), expected)
    assert len(TAKEN) == 1


def test_a_map_of_the_same_parameters() -> None:
    plain, calls = nn.Linear(3, 6), []
    before = torch.get_rng_state()
    same = Linear.of(plain)
    assert torch.equal(torch.get_rng_state(), before)
    assert same.weight is plain.weight
    assert same.bias is plain.bias
    same.register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(same(torch.ones(2, 3)), plain(torch.ones(2, 3)))
    assert calls
    assert Linear.of(nn.Linear(3, 6, bias=False)).bias is None


@pytest.mark.parametrize("placement", ["postln", "preln_final", "resi_dual"])
def test_a_models_loss_and_gradients_do_not_depend_on_who_takes_the_products(
    placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sample = tiny_model(placement, share_all_embeddings=True).float(), batch((5, 3), (4, 2))
    criterion = LabelSmoothedCrossEntropyFused(tiny_task(), sentence_avg=True, label_smoothing=0.1)
    losses, gradients = [], []
    for faster in (False, True):
        monkeypatch.setattr(linear, "ONEDNN_IS_FASTER", faster)
        model.zero_grad()
        loss = criterion(model.train(), sample)[0]
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        assert bool(TAKEN) == faster
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-5)
