"""`postln` and `preln_final` are stock fairseq's `transformer`: with the same weights, the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.modules import FairseqDropout
from helpers import batch, fill_in, stock_model, tiny_model, tiny_task
from torch import Tensor, nn

from fairseq_lnplace.errors import LnplaceError

# placement -> stock's --encoder-normalize-before and --decoder-normalize-before
STOCK = {"postln": False, "preln_final": True}
# what 0.12.2's encoder layers hold beside their parameters, without using it in training
GHOSTS = tuple(f"{part}_{kind}" for part in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias"))
PADDED = ((5, 3, 7), (4, 6, 2))
EQUAL_LENGTHS = ((4, 4), (5, 5))

Lengths = tuple[tuple[int, ...], tuple[int, ...]]
Twins = tuple[nn.Module, nn.Module]


def twins(placement: str, **options: Any) -> Twins:
    """Return our model and stock's in float64, ours with the weights of stock's."""
    ours, stock = tiny_model(placement, **options).double(), stock_model(STOCK[placement], **options)
    fill_in(stock)
    ours.load_state_dict(copied(stock), strict=True)
    return ours, stock


def copied(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the state dict, as from a file: fairseq upgrades it in place when it is loaded."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def without_ghosts(names: Any) -> set[str]:
    """Return the names that are no ghosts of stock's encoder layers."""
    ghosts = tuple(f"encoder.layers.{layer}.{ghost}" for layer in range(3) for ghost in GHOSTS)
    return {name for name in names if name not in ghosts}


def numbers(model: nn.Module, sample: dict[str, Any]) -> dict[str, Tensor]:
    """Return logits at real positions, label-smoothed loss and its gradients, by name."""
    criterion = LabelSmoothedCrossEntropyCriterion(tiny_task(), sentence_avg=True, label_smoothing=0.1)
    logits = model(**sample["net_input"])[0][sample["target"].ne(1)]
    loss = criterion(model, sample)[0] / len(logits)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), "loss": loss.detach(), **gradients}


@pytest.fixture
def softmax_in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fairseq's cross-attention and criterion, which always work in float32, work in the model's precision."""
    monkeypatch.setattr(utils, "softmax", lambda x, dim, onnx_trace=False: x.softmax(dim))
    monkeypatch.setattr(utils, "log_softmax", lambda x, dim, onnx_trace=False: x.log_softmax(dim))


@pytest.mark.usefixtures("softmax_in_double")
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("lengths", [PADDED, EQUAL_LENGTHS], ids=["padded", "equal lengths"])
@pytest.mark.parametrize("placement", STOCK)
def test_same_weights_same_logits_loss_and_gradients(placement: str, lengths: Lengths, training: bool) -> None:
    ours, stock = (numbers(model.train(training), batch(*lengths)) for model in twins(placement))
    assert ours.keys() == stock.keys()
    for name in stock:
        torch.testing.assert_close(ours[name], stock[name], rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("placement", STOCK)
def test_the_same_in_float32(placement: str) -> None:
    """As stock builds and trains it: freshly initialised, without any patch."""
    stock = stock_model(STOCK[placement])
    ours = tiny_model(placement)
    ours.load_state_dict(copied(stock), strict=True)
    pair = [numbers(model, batch()) for model in (ours, stock)]
    assert pair[0].keys() == pair[1].keys()
    for name in pair[1]:
        torch.testing.assert_close(pair[0][name], pair[1][name], rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.usefixtures("softmax_in_double")
@pytest.mark.parametrize("placement", STOCK)
def test_every_dropout_stands_where_stocks_does(placement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random masks cannot be compared: each dropout is replaced by a factor of its own probability."""

    def damp(self: Any, x: Tensor, inplace: bool = False) -> Tensor:
        return x * (1 - self.p) if self.training else x

    attend = F.scaled_dot_product_attention

    def attend_damped(
        q: Any, k: Any, v: Any, mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False
    ) -> Tensor:
        return attend(q, k, v, mask, 0.0, is_causal) * (1 - dropout_p)

    probabilities = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    models = twins(placement, **probabilities)
    for model in models:
        for kind in {type(module) for module in model.modules() if isinstance(module, FairseqDropout)}:
            monkeypatch.setattr(kind, "forward", damp)
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend_damped)
    monkeypatch.setattr(F, "dropout", lambda x, p=0.5, training=True, inplace=False: x * (1 - p) if training else x)

    sample = batch()
    real = sample["target"].ne(1)
    ours, stock = (model.train()(**sample["net_input"])[0][real] for model in models)
    plain = twins(placement)[0](**sample["net_input"])[0][real]
    torch.testing.assert_close(ours, stock, rtol=0, atol=1e-12)
    assert (ours - plain).abs().max() > 0.01


@pytest.mark.parametrize("placement", STOCK)
def test_state_dicts_have_stocks_names_and_shapes(placement: str) -> None:
    ours, stock = tiny_model(placement).state_dict(), stock_model(STOCK[placement]).state_dict()
    assert ours.keys() == without_ghosts(stock)
    assert all(ours[name].shape == stock[name].shape for name in ours)
    assert len(stock) - len(ours) == 8 * 3


@pytest.mark.usefixtures("softmax_in_double")
@pytest.mark.parametrize("placement", STOCK)
def test_checkpoints_load_both_ways(placement: str) -> None:
    ours, stock = fill_in(tiny_model(placement)), stock_model(STOCK[placement]).double()
    stock.load_state_dict(copied(ours), strict=True)
    again = tiny_model(placement).double()
    again.load_state_dict(copied(stock), strict=True)
    sample = batch()
    real = sample["target"].ne(1)
    # in evaluation and never trained since loading: where stock would take its fast path
    logits = [model.eval()(**sample["net_input"])[0][real] for model in (ours, stock, again)]
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-12)
    assert torch.equal(logits[0], logits[2])


def test_checkpoint_without_version_keeps_the_final_norm() -> None:
    ours, stock = twins("preln_final")
    fresh = tiny_model("preln_final").double()
    fresh.load_state_dict({k: v for k, v in copied(stock).items() if not k.endswith(".version")}, strict=True)
    sample = batch()
    assert torch.equal(fresh(**sample["net_input"])[0], ours(**sample["net_input"])[0])
    assert {"encoder.layer_norm.weight", "decoder.layer_norm.weight"} <= fresh.state_dict().keys()


def test_names_of_fairseq_before_0_7_load() -> None:
    """q, k, v in one matrix; norms by number; the sinusoids in the file."""
    ours, stock = twins("postln")
    old = {name: tensor for name, tensor in copied(stock).items() if name in without_ghosts(stock.state_dict())}
    norms = {
        "encoder": ("self_attn_layer_norm", "final_layer_norm"),
        "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    }
    for side, kept in norms.items():
        for name in [name for name in old if name.startswith(f"{side}.layers.")]:
            for number, norm in enumerate(kept):
                if f".{norm}." in name:
                    old[name.replace(norm, f"layer_norms.{number}")] = old.pop(name)
            if ".q_proj." in name:
                parts = [old.pop(name.replace(".q_proj.", f".{part}_proj.")) for part in "qkv"]
                old[name.replace(".q_proj.", ".in_proj_")] = torch.cat(parts)
        old[f"{side}.embed_positions.weights"] = torch.zeros(1030, 8)
    assert any("in_proj" in name for name in old)
    assert any("layer_norms.2" in name for name in old)
    assert not any("q_proj" in name or "final_layer_norm" in name for name in old)
    fresh = tiny_model("postln").double()
    fresh.load_state_dict(old, strict=True)
    sample = batch()
    assert torch.equal(fresh(**sample["net_input"])[0], ours(**sample["net_input"])[0])


@pytest.mark.parametrize(
    ("placement", "other"), [("postln", True), ("preln_final", False), ("preln", False), ("b2t", False)]
)
def test_stock_checkpoint_of_another_placement_is_refused(placement: str, other: bool) -> None:
    before = copied(model := tiny_model(placement))
    with pytest.raises(LnplaceError, match=f"trained as '{placement}.*' *, but is trained as"):
        model.load_state_dict(stock_model(other).state_dict(), strict=True)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
