"""Every placement: the models of `fairseq_lnplace.nn` are those inside fairseq with the same weights, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from every_placement import ALL, PAD, built
from helpers import KINDS, SIZE, batch, fill_in, tiny_task
from torch import Tensor, nn

import fairseq_lnplace.nn as lnn
from fairseq_lnplace import placements

EVERY = pytest.mark.parametrize(("kind", "placement"), ALL)
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("realformer", {"realformer_mean": True}),
    ("resi_dual", {"resi_dual_scale": 0.05}),
    ("b2t", {"b2t_rescaled_init": True}),
    ("mixln", {"mixln_post_fraction": 0.7}),
    ("branchnorm", {"branchnorm_updates": 10}),
    ("dsinit", {"dsinit_exponent": 0.25}),
    ("layerscale", {"layerscale_init": 0.3}),
    ("dlcl", {"dlcl_form": "post"}),
    ("denseformer", {"denseformer_dilation": 2, "denseformer_period": 2}),
    ("normformer", {"normformer_resscale": True}),
    ("periln", {"periln_form": "plain_embedding"}),
    ("hybridnorm", {"hybridnorm_form": "star"}),
    ("hybridnorm", {"hybridnorm_form": "full_width"}),
    ("keel", {"keel_form": "uniform"}),
]
SAMPLE = batch()


def words() -> int:
    return len(tiny_task().source_dictionary)


def ours_of(placement: str, kind: str, **settings: Any) -> Any:
    """Return the model of `fairseq_lnplace.nn` of the tiny sizes of tests/helpers.py."""
    depths = KINDS[kind][2]
    settings = {"dropout": 0.0, "dim_feedforward": SIZE["ffn_embed_dim"], "placement": placement, **settings}
    width, heads = SIZE["embed_dim"], SIZE["attention_heads"]
    if kind == "bert":
        return lnn.Encoder(width, heads, depths["encoder"], activation=fairseqs_gelu, **settings)
    settings |= {"d_model": width, "nhead": heads, "padding_idx": PAD}
    if kind == "lm":
        return lnn.LanguageModel(words(), num_layers=depths["decoder"], tie_output=False, **settings)
    depth = {f"num_{side}_layers": layers for side, layers in depths.items()}
    return lnn.Transformer(words(), tie_output=False, **depth, **settings)


def fairseqs_gelu(x: Tensor) -> Tensor:
    """Return what fairseq's `gelu` does: in float32, whatever the type."""
    return nn.functional.gelu(x.float()).type_as(x)


def twins(placement: str, kind: str, options: dict[str, Any] | None = None, **settings: Any) -> tuple[Any, Any]:
    """Return a fairseq model, filled with numbers of its own, in float32 and evaluation, and ours of its weights."""
    options = options or {}
    theirs = fill_in(built(placement, kind, **options)).float().eval()
    if kind == "translation":
        theirs.decoder.need_attn = False  # as when it translates: attention weights take another way to round
    ours = ours_of(placement, kind, options=options, **settings).eval()
    state = {
        name: tensor
        for name, tensor in theirs.state_dict().items()
        if not name.endswith(("version", "_float_tensor", "placement_version"))
    }
    if kind == "bert":
        inside = ("layers.", "layer_norm.", "history.", "profile.", "embedding_norm.")
        state = {name.removeprefix("encoder.sentence_encoder."): tensor for name, tensor in state.items()}
        state = {name: tensor for name, tensor in state.items() if name.startswith(inside)}
    ours.load_state_dict(state, strict=True)
    return theirs, ours


def their_output(model: Any, kind: str, sample: dict[str, Any]) -> Tensor:
    """Return the logits; of BERT the features."""
    inputs = sample["net_input"]
    if kind == "translation":
        return model(**inputs)[0]  # type: ignore[no-any-return]
    if kind == "lm":
        return model(inputs["prev_output_tokens"])[0]  # type: ignore[no-any-return]
    return model.encoder.sentence_encoder(inputs["src_tokens"])["encoder_out"][0].transpose(0, 1)  # type: ignore[no-any-return]


def our_output(model: Any, theirs: Any, kind: str, sample: dict[str, Any]) -> Tensor:
    """Return the same of ours; BERT's embeddings, which are no part of ours, are fairseq's."""
    inputs = sample["net_input"]
    if kind == "translation":
        return model(inputs["src_tokens"], inputs["prev_output_tokens"])  # type: ignore[no-any-return]
    if kind == "lm":
        return model(inputs["prev_output_tokens"])  # type: ignore[no-any-return]
    padding = inputs["src_tokens"].eq(PAD)
    x = theirs.encoder.sentence_encoder.forward_embedding(inputs["src_tokens"])[0]
    x = x.masked_fill(padding.unsqueeze(-1), 0.0)
    return model(x, key_padding_mask=padding if padding.any() else None)  # type: ignore[no-any-return]


SAMPLES = {
    "padded": SAMPLE,
    "whole": batch((4, 4), (3, 3)),
    "long": batch((30, 2), (1, 40)),
    "targets padded on the left": {
        **SAMPLE,
        "net_input": {
            **SAMPLE["net_input"],
            "prev_output_tokens": torch.tensor([[PAD, PAD, 2, 5], [2, 6, 7, 8], [PAD, 2, 9, 5]]),
        },
    },
}


@EVERY
def test_evaluation_bit_for_bit(kind: str, placement: str) -> None:
    """At padding, too; a left-padded query that sees no token at all is the one that has no number to compare."""
    theirs, ours = twins(placement, kind)
    for name, sample in SAMPLES.items():
        with torch.no_grad():
            expected, output = their_output(theirs, kind, sample), our_output(ours, theirs, kind, sample)
        assert expected.isfinite().all(), name
        assert torch.equal(output, expected), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("placement", "options"), VARIANTS, ids=lambda value: str(value))
def test_variants_bit_for_bit(placement: str, options: dict[str, Any], kind: str) -> None:
    theirs, ours = twins(placement, kind, options)
    expected = their_output(theirs, kind, SAMPLE)
    assert torch.equal(our_output(ours, theirs, kind, SAMPLE), expected)
    if placement not in ("b2t", "dsinit"):  # whose options are about the initialisation
        _, usual = twins(placement, kind)
        assert not torch.equal(our_output(usual, theirs, kind, SAMPLE), expected)


@pytest.mark.parametrize("norm_type", ["rmsnorm", "scalenorm", "dyt", "derf", "batchnorm", "instancenorm"])
@pytest.mark.parametrize("placement", placements.names())
def test_norm_types_bit_for_bit(placement: str, norm_type: str) -> None:
    """Of BERT, whose encoder takes them all; running statistics included."""
    theirs = fill_in(built(placement, "bert", norm_type=norm_type)).float()
    ours = ours_of(placement, "bert", norm_type=norm_type)
    lnn.load_weights(ours, theirs)
    for model in (theirs, ours):
        model.train()
    expected, output = their_output(theirs, "bert", SAMPLE), our_output(ours, theirs, "bert", SAMPLE)
    assert torch.equal(output, expected)
    theirs.eval()
    ours.eval()
    assert torch.equal(our_output(ours, theirs, "bert", SAMPLE), their_output(theirs, "bert", SAMPLE))


@EVERY
def test_gradients_of_training(kind: str, placement: str) -> None:
    """fairseq's decoders leave padding out of the layers in training, so not a bit is to be the same, but a number."""
    theirs, ours = (model.double().train() for model in twins(placement, kind))
    real = SAMPLE["target"].ne(PAD) if kind != "bert" else SAMPLE["net_input"]["src_tokens"].ne(PAD)
    losses = []
    for output in (their_output(theirs, kind, SAMPLE), our_output(ours, theirs, kind, SAMPLE)):
        losses.append(output[real].log_softmax(-1)[:, :5].square().mean())
        losses[-1].backward()
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=0)
    expected = {name.removeprefix("encoder.sentence_encoder."): p.grad for name, p in theirs.named_parameters()}
    compared = 0
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-6, atol=1e-8, msg=name)
        compared += parameter.grad is not None
    assert compared > 20


@pytest.mark.parametrize(("kind", "placement"), [each for each in ALL if each[0] != "bert"])
def test_a_fresh_model_is_scaled_as_inside_fairseq(kind: str, placement: str) -> None:
    """Random numbers come in another order; the sizes of all matrices and embeddings, and all other starts, agree."""
    theirs, ours = built(placement, kind), ours_of(placement, kind)
    for name, tensor in ours.state_dict().items():
        expected = theirs.state_dict()[name]
        if tensor.dim() == 2 and "history" not in name:
            ratio = tensor.square().mean().sqrt() / expected.square().mean().sqrt()
            assert 0.6 < ratio < 1.6, name
        else:
            assert torch.equal(tensor, expected), name


@pytest.mark.parametrize("kind", KINDS)
def test_admin_measures_the_same(kind: str) -> None:
    """In the first training forward, of real positions alone, at the end or the start of a row."""
    theirs = built("admin", kind)
    ours = ours_of("admin", kind)
    lnn.load_weights(ours, theirs)
    sample = SAMPLES["padded"]
    theirs.train()
    ours.train()
    their_output(theirs, kind, sample)
    our_output(ours, theirs, kind, sample)
    expected = {name.removeprefix("encoder.sentence_encoder."): t for name, t in theirs.named_buffers()}
    measured = {name: tensor for name, tensor in ours.named_buffers() if name.endswith(("profiled_skip", "done"))}
    assert len({tensor.item() for tensor in measured.values()}) > 5
    for name, tensor in measured.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=0, msg=name)


# ---------------------------------------------------------------------------------------------- load_weights


@pytest.mark.parametrize("placement", ["postln", "admin", "branchnorm", "resi_dual", "dlcl"])
@pytest.mark.parametrize("kind", KINDS)
def test_load_weights_takes_a_model_inside_fairseq(kind: str, placement: str) -> None:
    theirs, expected = twins(placement, kind)
    ours = ours_of(placement, kind)
    lnn.load_weights(ours, theirs)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name


def test_load_weights_refuses_another_method_or_depth() -> None:
    theirs = built("deepnorm", "lm")
    cases = {
        "`placement` must be deepnorm, as the source's, but is postln": ours_of("postln", "lm"),
        "`norm_type` must be layernorm, as the source's, but is rmsnorm": ours_of(
            "deepnorm", "lm", norm_type="rmsnorm"
        ),
        "`layer_norm_eps` must be 1e-05, as the source's": ours_of("deepnorm", "lm", layer_norm_eps=1e-6),
        "`source` must be a model with encoder, but is one without": ours_of("deepnorm", "bert"),
        "`depth` must be": lnn.LanguageModel(words(), d_model=8, nhead=2, num_layers=2, placement="deepnorm"),
    }
    for sentence, ours in cases.items():
        with pytest.raises(ValueError, match="must be") as caught:
            lnn.load_weights(ours, theirs)
        assert str(caught.value).startswith(sentence)
    branchnorm = built("branchnorm", "lm", branchnorm_updates=9)
    with pytest.raises(ValueError, match=r"^`options` must be"):
        lnn.load_weights(ours_of("branchnorm", "lm"), branchnorm)
    learned = built("deepnorm", "lm", decoder_learned_pos=True)
    with pytest.raises(ValueError, match=r"^`source's embed_positions\.weight` must be left out"):
        lnn.load_weights(ours_of("deepnorm", "lm"), learned)
