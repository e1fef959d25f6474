"""Norms of queries and keys beside any placement, against attention written out in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers import KINDS, SIZE, fill_in, sample_of, tiny_model
from torch import Tensor

from fairseq_lnplace import nn, placements
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.layers.streams import Batch, Streams
from fairseq_lnplace.placements.qk_norm import QK_NORMS

HEADS, WIDTH = SIZE["attention_heads"], SIZE["embed_dim"]
HEAD = WIDTH // HEADS
WITHOUT_OWN = [name for name in placements.names() if name != "hybridnorm"]


def attention(module: Any, x: Tensor, source: Tensor, kind: str) -> Tensor:
    """Return W_o concat_h softmax(g q̂·k̂) v, or softmax(N(q)·N(k)/√D) v, for x (T x C) and a source (S x C)."""
    state = module.state_dict()
    q, k, v = (
        (each @ state[f"{role}_proj.weight"].T + state[f"{role}_proj.bias"]).view(-1, HEADS, HEAD)
        for role, each in zip("qkv", (x, source, source), strict=True)
    )

    def normed(y: Tensor, role: str) -> Tensor:
        if kind == "l2":
            return y / y.square().sum(-1, keepdim=True).sqrt()
        centred = y - y.mean(-1, keepdim=True) if kind == "layernorm" else y
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * state[f"{role}_norm.weight"]

    q, k = normed(q, "q"), normed(k, "k")
    factor = math.log2(72**2 - 72) + state["qk_scale"] if kind == "l2" else 1 / math.sqrt(HEAD)
    heads = [(factor * q[:, h] @ k[:, h].T).softmax(-1) @ v[:, h] for h in range(HEADS)]
    return torch.cat(heads, 1) @ state["out_proj.weight"].T + state["out_proj.bias"]


@pytest.mark.parametrize("kind", QK_NORMS)
def test_both_attentions_are_the_papers(kind: str) -> None:
    model: Any = fill_in(tiny_model("postln", qk_norm=kind)).eval()
    x, memory = torch.randn(2, 1, 4, WIDTH, dtype=torch.float64)
    layer = model.decoder.layers[0]
    for module, source in ((layer.self_attn, x), (layer.encoder_attn, memory)):
        ours = module(x, Streams(x), Batch(memory=memory)).output[0]
        torch.testing.assert_close(ours, attention(module, x[0], source[0], kind), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("length", "start"), [(72, 12.31967212), (79, 12.58918297)])
def test_the_factor_starts_as_published(length: int, start: float) -> None:
    layer = nn.EncoderLayer(8, 2, qk_norm="l2", qk_norm_length=length)
    assert layer.self_attn.qk_start + float(layer.self_attn.qk_scale) == pytest.approx(start, abs=1e-8)


@pytest.mark.parametrize("kind", QK_NORMS)
@pytest.mark.parametrize("placement", WITHOUT_OWN)
def test_step_by_step_is_the_whole(placement: str, kind: str) -> None:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"d_model": 8, "nhead": 2, "num_layers": 2, "dim_feedforward": 12}
    model = fill_in(nn.LanguageModel(20, placement=placement, qk_norm=kind, **sizes)).eval()
    tokens = torch.randint(20, (2, 5))
    cache, found = None, []
    for position in range(5):
        logits, cache = model.step(tokens[:, position : position + 1], cache)
        found.append(logits)
    torch.testing.assert_close(torch.cat(found, 1), model(tokens), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", QK_NORMS)
@pytest.mark.parametrize("model_kind", KINDS)
def test_every_kind_of_model_learns_with_them(model_kind: str, kind: str) -> None:
    model = tiny_model("deepnorm", model_kind, qk_norm=kind)
    model(**sample_of(model_kind)["net_input"])[0].logsumexp(-1).sum().backward()
    own = [parameter for name, parameter in model.named_parameters() if "q_norm" in name or "qk_scale" in name]
    assert own
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in own)


@pytest.mark.parametrize("kind", ["rmsnorm", "l2"])
def test_they_hold_in_half_precision(kind: str) -> None:
    model = nn.LanguageModel(20, d_model=8, nhead=2, num_layers=2, qk_norm=kind, dtype=torch.bfloat16).eval()
    assert model(torch.randint(20, (2, 5))).isfinite().all()


def test_a_checkpoint_knows_them() -> None:
    plain, with_norm = tiny_model("preln_final"), tiny_model("preln_final", qk_norm="l2")
    with pytest.raises(LnplaceError, match=r"trained as 'preln_final .*qk_norm=l2 qk_scale=12\.3197', but is"):
        with_norm.load_state_dict(plain.state_dict())
    with pytest.raises(LnplaceError, match=r"trained as 'preln_final', but is trained as 'preln_final .*qk_norm=l2"):
        plain.load_state_dict(with_norm.state_dict())
    same = tiny_model("preln_final", qk_norm="l2")
    same.load_state_dict(with_norm.state_dict())
    other = nn.Encoder(8, 2, 3, qk_norm="rmsnorm")
    with pytest.raises(LnplaceError, match="`qk_norm` must be None, as the source's, but is rmsnorm"):
        nn.load_weights(other, nn.Encoder(8, 2, 3))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"qk_norm": "l1"}, "`--qk-norm` must be layernorm or rmsnorm or l2, but is l1"),
        ({"qk_norm_length": 5}, "`--qk-norm-length` must go with --qk-norm l2, but --qk-norm is left out"),
        (
            {"qk_norm": "rmsnorm", "qk_norm_length": 5},
            "`--qk-norm-length` must be at least 2, and for --qk-norm l2 alone",
        ),
        ({"qk_norm": "l2", "qk_norm_length": 1}, "`--qk-norm-length` must be at least 2"),
    ],
)
def test_mistakes_are_told(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LnplaceError) as found:
        tiny_model("preln_final", **given)
    assert str(found.value).startswith(sentence)
    with pytest.raises(LnplaceError) as found:
        nn.EncoderLayer(8, 2, **given)
    assert str(found.value).startswith(
        sentence.replace("--qk-norm-length", "qk_norm_length").replace("--qk-norm", "qk_norm")
    )


def test_hybridnorm_has_its_own() -> None:
    with pytest.raises(LnplaceError, match="`--qk-norm` must be left out with hybridnorm, which normalises"):
        tiny_model("hybridnorm", qk_norm="l2")
