"""A sentence's result depends on the sentence alone: not on its batch, its padding, or what was loaded before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import batch, fill_in, stock_model, tiny_model
from torch import Tensor, nn

from fairseq_lnplace import placements

PAD, END = 1, 2
KINDS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in placements.names()),
    *(("postln", {"norm_type": kind}) for kind in ("rmsnorm", "scalenorm", "dyt", "derf", "batchnorm", "instancenorm")),
    ("preln_final", {"cross_self_attention": True}),
    ("dlcl", {"dlcl_form": "post"}),
    ("denseformer", {"denseformer_dilation": 2, "denseformer_period": 2}),
]
every_kind = pytest.mark.parametrize(
    ("placement", "options"),
    KINDS,
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value.items())),
)


def logits(model: nn.Module, source: Tensor, previous: Tensor) -> Tensor:
    return model(source, source.ne(PAD).sum(1), previous)[0]  # type: ignore[no-any-return]


def right_padded(tokens: Tensor) -> Tensor:
    return torch.stack([torch.cat([row[row.ne(PAD)], row[row.eq(PAD)]]) for row in tokens])


@every_kind
def test_a_sentence_alone_is_the_sentence_in_a_batch(placement: str, options: dict[str, Any]) -> None:
    model = fill_in(tiny_model(placement, **options)).eval()
    inputs = batch((5, 3, 7, 1), (4, 6, 2, 3))["net_input"]
    together = logits(model, inputs["src_tokens"], inputs["prev_output_tokens"])
    for source, previous, expected in zip(inputs["src_tokens"], inputs["prev_output_tokens"], together, strict=True):
        real = previous.ne(PAD)
        alone = logits(model, source[source.ne(PAD)][None], previous[real][None])[0]
        torch.testing.assert_close(alone, expected[real], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@every_kind
def test_more_padding_changes_nothing(placement: str, options: dict[str, Any], training: bool) -> None:
    """Neither outputs nor gradients; norms over several positions and Admin's measurement leave padding out too."""
    results = []
    inputs = batch()["net_input"]
    source, previous = inputs["src_tokens"], inputs["prev_output_tokens"]
    for left, right, after in ((0, 0, 0), (3, 0, 2), (0, 2, 5)):
        model = fill_in(tiny_model(placement, **options)).train(training)
        for module in model.modules():
            if hasattr(module, "done"):
                module.done.zero_()
        longer = F.pad(source if left else right_padded(source), (left, right), value=PAD)
        output = logits(model, longer, F.pad(previous, (0, after), value=PAD))[:, : previous.size(1)][previous.ne(PAD)]
        output.square().mean().backward()
        results.append([output.detach(), *(p.grad for p in model.parameters())])
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"cross_self_attention": True}], ids=str)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("placement", ["postln", "resi_dual", "realformer", "hybridnorm"])
def test_in_training_the_decoder_computes_real_positions_alone(
    placement: str, causal: bool, options: dict[str, Any]
) -> None:
    """It returns the shapes of evaluation, and the same values but at padding, where they are 0."""
    model = fill_in(tiny_model(placement, **options))
    inputs = batch()["net_input"]
    real = inputs["prev_output_tokens"].ne(PAD)
    model.decoder.need_states_in_training = True
    widths = []
    model.decoder.layers[0].fc1.register_forward_hook(lambda module, args, out: widths.append(tuple(out.shape[:-1])))
    results = []
    for training in (True, False):
        encoded = model.eval().encoder(inputs["src_tokens"], inputs["src_lengths"])
        model.decoder.train(training)
        results.append(
            model.decoder(inputs["prev_output_tokens"], encoded, full_context_alignment=not causal, alignment_layer=1)
        )
    assert widths == [(1, int(real.sum())), tuple(real.shape)]
    (mine, extra), (expected, expected_extra) = results
    assert not mine[~real].any()
    for ours, theirs in [(mine, expected), *zip(extra["inner_states"], expected_extra["inner_states"], strict=True)]:
        at = real if ours is mine else real.t()
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours[at], theirs[at], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(extra["attn"][0][real], expected_extra["attn"][0][real], rtol=1e-9, atol=1e-9)


@every_kind
def test_loading_and_training_leave_evaluation_as_it_is(placement: str, options: dict[str, Any]) -> None:
    """fairseq 0.12.2 replaces a layer's forward in evaluation, but only after a checkpoint is loaded."""
    model = fill_in(tiny_model(placement, **options)).eval()
    inputs = batch()["net_input"]
    with torch.no_grad():
        before = model(**inputs)[0]
        loaded = tiny_model(placement, **options).double().eval()
        loaded.load_state_dict(model.state_dict(), strict=True)
        assert torch.equal(loaded(**inputs)[0], before)
        frozen = {name: tensor.clone() for name, tensor in loaded.state_dict().items()}
        loaded.train()(**inputs)
        loaded.load_state_dict(frozen)  # batch norm's statistics move in training
        assert torch.equal(loaded.eval()(**inputs)[0], before)


def test_a_layer_that_attends_to_padding_is_seen() -> None:
    """The comparison of :func:`test_more_padding_changes_nothing` can fail."""
    model = fill_in(stock_model(False)).eval()
    attention = model.encoder.layers[0].self_attn
    forward = attention.forward
    attention.forward = lambda *args, key_padding_mask, **kwargs: forward(*args, key_padding_mask=None, **kwargs)
    inputs = batch()["net_input"]
    source, previous = inputs["src_tokens"], inputs["prev_output_tokens"]
    longer = logits(model, F.pad(source, (3, 0), value=PAD), previous)
    assert not torch.allclose(logits(model, source, previous), longer)
