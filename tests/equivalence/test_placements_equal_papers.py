"""Every placement of the package against its paper's equation: the oracle of ``tests/reference.py``, in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import reference as oracle
import torch
from helpers import KINDS, SIZE, fill_in, tiny_model
from torch import Tensor, nn
from torch.testing import assert_close

from fairseq_lnplace import placements
from fairseq_lnplace.layers.streams import Batch, Streams

WIDTH, HIDDEN, HEADS = SIZE["embed_dim"], SIZE["ffn_embed_dim"], SIZE["attention_heads"]
PAD = 1
SOURCE = torch.tensor([[5, 6, 7, 8, 2], [PAD, PAD, 9, 10, 2]])  # padded on the left, as fairseq does
TARGET = torch.tensor([[2, 11, 12, 13], [2, 14, 5, PAD]])

REGISTERED = sorted(placements.names())
# kind of model -> side -> where the stack is
STACKS = {
    "translation": {"encoder": "encoder", "decoder": "decoder"},
    "lm": {"decoder": "decoder"},
    "bert": {"encoder": "encoder.sentence_encoder"},
}
ALL = pytest.mark.parametrize("kind", STACKS)

# Options of one method, each with a value that is not its default, and what the oracle calls it.
VARIANTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("realformer", {"realformer_mean": True}, {"realformer_mean": True}),
    ("resi_dual", {"resi_dual_scale": 0.05}, {"resi_dual_scale": 0.05}),
    ("mixln", {"mixln_post_fraction": 0.7}, {"mixln_post_fraction": 0.7}),
    ("branchnorm", {"branchnorm_updates": 10}, {"branchnorm_updates": 10, "updates_done": 3}),
    ("branchnorm", {"branchnorm_updates": 4}, {"branchnorm_updates": 4, "updates_done": 9}),
    ("layerscale", {"layerscale_init": 0.3}, {"layerscale_init": 0.3}),
    ("dlcl", {"dlcl_form": "post"}, {"dlcl_form": "post"}),
    *(
        ("denseformer", options, options)
        for options in (
            {"denseformer_dilation": 2},
            {"denseformer_period": 2},
            {"denseformer_dilation": 2, "denseformer_period": 2},
            {"denseformer_period": 3},  # deeper than the decoder, in which nothing is averaged
        )
    ),
    ("normformer", {"normformer_resscale": True}, {"normformer_resscale": True}),
    ("periln", {"periln_form": "plain_embedding"}, {"periln_form": "plain_embedding"}),
    ("hybridnorm", {"hybridnorm_form": "star"}, {"hybridnorm_form": "star"}),
    ("hybridnorm", {"hybridnorm_form": "full_width"}, {"hybridnorm_form": "full_width"}),
    ("keel", {"keel_form": "uniform"}, {"keel_form": "uniform"}),
]
CASES = [(method, {}, {}) for method in REGISTERED] + VARIANTS
NAMES = [method + "".join(f"-{name}={value}" for name, value in options.items()) for method, options, _ in CASES]


@dataclass
class Comparison:
    """A filled-in model of ours, and copies of its weights for the oracle."""

    method: str
    kind: str
    model: nn.Module
    config: oracle.Config
    copies: dict[str, dict[str, Tensor]]  # by side

    @classmethod
    def of(cls, method: str, kind: str, options: dict[str, Any], config: dict[str, Any]) -> Comparison:
        """Build both; the values are all different from those of a fresh model."""
        # BERT's gelu is computed in float32 by fairseq: too coarse here, and tested by itself
        exact = {"activation_fn": "relu"} if kind == "bert" else {}
        model = fill_in(tiny_model(method, kind, **exact, **options))
        model.set_num_updates(config.get("updates_done", 0))
        return cls.with_weights_of(model, method, kind, config)

    @classmethod
    def with_weights_of(cls, model: nn.Module, method: str, kind: str, config: dict[str, Any]) -> Comparison:
        """Copy the weights of a model as they are."""
        settings = oracle.Config(HEADS, *depths(kind), **config)
        copies = {side: stack.state_dict() for side, stack in stacks(model, kind).items()}
        copies = {side: {n: t.detach().clone() for n, t in state.items()} for side, state in copies.items()}
        for side, stack in stacks(model, kind).items():
            for name, _ in stack.named_parameters():
                copies[side][name].requires_grad_()
        return cls(method, kind, model, settings, copies)

    def embed(self, side: str) -> Tensor:
        """Return √d E[token] + position (BERT: E[token] + position); the positions are fairseq's own."""
        tokens = self.tokens[side]
        scale = 1.0 if self.kind == "bert" else WIDTH**0.5
        with torch.no_grad():
            positions = stacks(self.model, self.kind)[side].embed_positions(tokens)
        return scale * self.copies[side]["embed_tokens.weight"][tokens] + positions

    @property
    def tokens(self) -> dict[str, Tensor]:
        """What each stack reads, B x T."""
        return {"encoder": SOURCE, "decoder": TARGET}

    @property
    def real(self) -> Tensor:
        """Where the features are of a token, B x T."""
        return (SOURCE if self.kind == "bert" else TARGET).ne(PAD)

    def ours(self) -> Tensor:
        """Return the model's features at real tokens, N x C."""
        if self.kind == "translation":
            features = self.model(SOURCE, SOURCE.ne(PAD).sum(1), TARGET, features_only=True)[0]
        else:
            features = self.model(SOURCE if self.kind == "bert" else TARGET, features_only=True)[0]
        return features[self.real]

    def theirs(self) -> Tensor:
        """Return the oracle's features at real tokens, N x C."""
        memory: Tensor | None = None
        for side, state in self.copies.items():
            x, padding = self.embed(side), self.tokens[side].eq(PAD)
            if side == "encoder":
                features = memory = oracle.encoder_stack(self.method, state, x, padding, self.config)
            else:
                features = oracle.decoder_stack(self.method, state, x, memory, SOURCE.eq(PAD), self.config, padding)
        return features[self.real]


def stacks(model: nn.Module, kind: str) -> dict[str, nn.Module]:
    """Return the model's stacks by side."""
    return {side: model.get_submodule(place) for side, place in STACKS[kind].items()}


def depths(kind: str) -> tuple[int, int]:
    """Return the tiny model's numbers of encoder and decoder layers, 0 for a missing stack."""
    layers = KINDS[kind][2]
    return layers.get("encoder", 0), layers.get("decoder", 0)


def test_every_placement_has_an_oracle() -> None:
    assert REGISTERED == oracle.METHODS


@ALL
@pytest.mark.parametrize(("method", "options", "config"), CASES, ids=NAMES)
def test_output_and_gradients_in_training_and_output_in_evaluation(
    method: str, options: dict[str, Any], config: dict[str, Any], kind: str
) -> None:
    both = Comparison.of(method, kind, options, config)
    ours, theirs = both.ours(), both.theirs()
    assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    both.model.eval()
    assert_close(both.ours(), theirs, rtol=1e-9, atol=1e-9)
    probe = torch.linspace(-1, 2, ours.numel(), dtype=torch.float64).view_as(ours).sin()
    for features in ours, theirs:
        (features * probe).sum().backward()
    for side, stack in stacks(both.model, kind).items():
        for name, parameter in stack.named_parameters():
            if name in ("output_projection.weight", "embed_positions.weight"):
                continue
            copy = both.copies[side][name]
            assert parameter.grad is not None, name
            expected = torch.zeros_like(copy) if copy.grad is None else copy.grad
            if name == "embed_tokens.weight":
                expected[PAD] = 0  # fairseq never trains the padding's embedding
            assert_close(parameter.grad, expected, rtol=1e-8, atol=1e-9, msg=f"the gradient of {side}.{name} differs")


def test_bert_s_activation_is_gelu() -> None:
    model = fill_in(tiny_model("postln", "bert"))
    both = Comparison.with_weights_of(model, "postln", "bert", {"activation": "gelu"})
    assert_close(both.ours(), both.theirs(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize(("method", "options", "config"), CASES, ids=NAMES)
def test_every_layer(method: str, options: dict[str, Any], config: dict[str, Any], side: str) -> None:
    """Each layer alone, fed with what it is fed in our model."""
    both = Comparison.of(method, "translation", options, config)
    seen: list[tuple[Streams, Batch, Streams]] = []
    for layer in getattr(both.model, side).layers:
        layer.register_forward_hook(lambda module, inputs, outputs: seen.append((*inputs, outputs)))
    both.ours()
    tokens, memory = (SOURCE, None) if side == "encoder" else (TARGET, seen[0][1].memory)
    memory_padding = SOURCE.eq(PAD) if side == "decoder" else None
    stack = oracle.Stack(side, both.copies[side], both.config, tokens.eq(PAD), memory, memory_padding)
    assert len(seen) == stack.depth
    real = tokens.ne(PAD)
    positions = (lambda x: x[0]) if side == "decoder" else (lambda x: x[real])  # in training decoders leave out padding

    def sequences(x: Tensor) -> Tensor:
        return torch.zeros(*real.shape, x.size(2), dtype=x.dtype).index_put((real,), positions(x))

    for layer, (inputs, _, outputs) in zip(stack.layers, seen, strict=True):
        x = sequences(inputs.x)
        if method == "resi_dual":
            expected, second = oracle.resi_dual_layer(layer, x, sequences(inputs.second))
            assert_close(positions(outputs.second), second[real], rtol=1e-9, atol=1e-9)
        elif method in ("dlcl", "denseformer"):
            host = oracle.postln_layer if both.config.dlcl_form == "post" else oracle.preln_layer
            expected = host(layer, x)
        else:
            expected = oracle.LAYERS[method](layer, x)
        assert_close(positions(outputs.x), expected[real], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm_type", ["rmsnorm", "scalenorm", "dyt", "derf", "batchnorm", "instancenorm"])
@pytest.mark.parametrize(("method", "options", "config"), CASES, ids=NAMES)
def test_norm_types(method: str, options: dict[str, Any], config: dict[str, Any], norm_type: str) -> None:
    """Batch and instance norm stand in the encoder alone: LayerNorm is the decoder's."""
    norm = {"norm_type": norm_type}
    both = Comparison.of(method, "translation", options | norm, config | norm)
    source, target, memory_padding = both.embed("encoder"), both.embed("decoder"), SOURCE.eq(PAD)
    memory = oracle.encoder_stack(method, both.copies["encoder"], source, memory_padding, both.config)
    below = replace(both.config, norm_type="layernorm") if norm_type in ("batchnorm", "instancenorm") else both.config
    theirs = oracle.decoder_stack(method, both.copies["decoder"], target, memory, memory_padding, below)
    assert_close(both.ours(), theirs[both.real], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm_type", ["layernorm", "rmsnorm", "scalenorm", "dyt", "derf"])
@ALL
@pytest.mark.parametrize(("method", "options", "config"), CASES, ids=NAMES)
def test_names_and_shapes(
    method: str, options: dict[str, Any], config: dict[str, Any], kind: str, norm_type: str
) -> None:
    """A stack has these parameters, and Admin's starts, and no others."""
    model = tiny_model(method, kind, norm_type=norm_type, **options)
    reference = oracle.Config(HEADS, *depths(kind), norm_type=norm_type, **config)
    outside = ("embed_tokens.weight", "output_projection.weight", "embed_positions.weight")
    for side, stack in stacks(model, kind).items():
        found = {n: tuple(p.shape) for n, p in stack.named_parameters() if n not in outside}
        found |= {n: tuple(b.shape) for n, b in stack.named_buffers() if n.endswith("profiled_skip")}
        cross = side == "decoder" and kind == "translation"
        assert found == oracle.parameters(method, side, reference, WIDTH, HIDDEN, cross)


@ALL
@pytest.mark.parametrize(("method", "options", "config"), CASES, ids=NAMES)
def test_fresh_scales_are_the_published_ones(
    method: str, options: dict[str, Any], config: dict[str, Any], kind: str
) -> None:
    """Stored differences start at 0, norms at the identity, biases at 0."""
    for stack in stacks(tiny_model(method, kind, **options), kind).values():
        for name, parameter in stack.named_parameters():
            if name.endswith(("_scale", "bias", "history.weight")):
                assert not parameter.any(), name
            elif parameter.dim() == 1:
                assert parameter.eq(1).all(), name


SPREADS = [(method, {}, {}) for method in REGISTERED]
SPREADS += [("dsinit", {"dsinit_exponent": 0.25}, {"exponent": 0.25})]
SPREADS += [("b2t", {"b2t_rescaled_init": True}, {"b2t_rescaled": True})]
SPREADS += [("deepnorm", {"deepnorm_form": "torchscale"}, {"code": True})]
SPREADS += [(method, {f"{method}_form": "authors"}, {"code": True}) for method in ("tfixup", "admin")]


@pytest.mark.parametrize("init", ["xavier", "xavier_normal"])
@ALL
@pytest.mark.parametrize(("method", "options", "given"), SPREADS)
def test_initial_spread(method: str, options: dict[str, Any], given: dict[str, Any], kind: str, init: str) -> None:
    """The standard deviation of every matrix, by role and depth; 4096 and 8192 numbers each give it to about 1 %."""
    sizes = {"embed_dim": 64, "ffn_embed_dim": 128}
    given_sizes = {f"{side}_{name}": value for side in STACKS[kind] for name, value in sizes.items()}
    model = tiny_model(method, kind, init=init, **given_sizes, **options)
    N, M = depths(kind)
    for side, stack in stacks(model, kind).items():
        for index, layer in enumerate(stack.layers):
            for name, parameter in layer.named_parameters():
                if parameter.dim() == 2:
                    role = name.removesuffix(".weight").removesuffix("_proj")
                    gain = oracle.gain(method, side, role, index + 1, N or None, M or None, **given)
                    expected = oracle.expected_std(gain, parameter.shape[1], parameter.shape[0])
                    assert parameter.std().item() == pytest.approx(expected, rel=0.04), name
                    assert abs(parameter.mean().item()) < 0.06 * expected, name
                    outliers = parameter.abs() > 3**0.5 * expected * (1 + 1e-6)
                    assert outliers.any() == (init == "xavier_normal"), name


HALF = 0.70710678
# Of N = M = 6: 7776^(-1/16) = 0.571252, times torchscale's 1.15 is 0.656940, times the paper's 0.87 is 0.496989.
FORMS_OF_CODE = [
    ("deepnorm", "torchscale", "encoder.v out fc1 fc2", 0.656940 / 0.496989),
    ("tfixup", "authors", "encoder.q k; decoder.q k; cross.q k", HALF),
    ("admin", "authors", "encoder.q k v", HALF),
]


@pytest.mark.parametrize(("method", "form", "changed", "factor"), FORMS_OF_CODE)
def test_what_the_code_initialises_differently(method: str, form: str, changed: str, factor: float) -> None:
    """The same random numbers, times the factor where it holds and as they are elsewhere."""
    expected = {
        f"{place}.{role}": factor
        for place, roles in (part.split(".") for part in changed.split("; "))
        for role in roles.split()
    }
    sizes = {"encoder_layers": 6, "decoder_layers": 6}
    paper = dict(tiny_model(method, **sizes).named_parameters())
    for name, parameter in tiny_model(method, **sizes, **{f"{method}_form": form}).named_parameters():
        place = "cross" if ".encoder_attn." in name else name.split(".")[0]
        role = name.removesuffix(".weight").removesuffix("_proj").rpartition(".")[2]
        ratio = expected.get(f"{place}.{role}", 1.0) if parameter.dim() == 2 and ".layers." in name else 1.0
        assert_close(parameter, ratio * paper[name], rtol=2e-5, atol=0, msg=name)


def test_deepnorm_s_gain_in_torchscale() -> None:
    """Golden values of 1.15 (N⁴ M)^(-1/16) for M = 6; the decoder and a single stack are as in the paper."""
    for N, gain in ((6, 0.656940), (18, 0.499166)):
        assert oracle.gain("deepnorm", "encoder", "fc1", 1, N, 6, code=True) == pytest.approx(gain, abs=6e-7)
    assert oracle.gain("deepnorm", "decoder", "fc1", 1, 6, 6, code=True) == pytest.approx(72**-0.25)
    assert oracle.gain("deepnorm", "encoder", "fc1", 1, 6, None, code=True) == pytest.approx(48**-0.25)


@ALL
@pytest.mark.parametrize("method", REGISTERED)
def test_initial_spread_of_embeddings(method: str, kind: str) -> None:
    """N(0, 1/d), BERT N(0, 0.02²), times T-Fixup's factor; the padding's embedding is 0."""
    N, M = depths(kind)
    model = tiny_model(method, kind, **{f"{side}_embed_dim": 256 for side in STACKS[kind]})
    for side, stack in stacks(model, kind).items():
        weight = stack.embed_tokens.weight
        assert not weight[PAD].any()
        base = 0.02 if kind == "bert" else 256**-0.5
        expected = base * oracle.gain(method, side, "embedding", 1, N or None, M or None)
        kept = torch.cat([weight[:PAD], weight[PAD + 1 :]])
        assert kept.std().item() == pytest.approx(expected, rel=0.06)


def test_t_fixup_scales_adaptive_embeddings() -> None:
    """Each band is an embedding and a matrix of its own; the factor is on the embeddings."""
    bands = {"adaptive_input": True, "adaptive_input_cutoff": "4,8", "adaptive_input_factor": 2}
    ours, plain = (tiny_model(name, "lm", **bands).decoder.embed_tokens for name in ("tfixup", "postln"))
    for (name, mine), usual in zip(ours.named_parameters(), plain.parameters(), strict=True):
        gain = oracle.gain("tfixup", "decoder", "embedding", 1, None, 3) if name.endswith("0.weight") else 1.0
        assert_close(mine, gain * usual)


@pytest.mark.parametrize("options", [{}, {"denseformer_dilation": 2, "denseformer_period": 2}])
@ALL
def test_denseformer_starts_as_pre_ln(kind: str, options: dict[str, Any]) -> None:
    """Bit for bit, outputs and gradients."""
    results = []
    for method, given in (("denseformer", options), ("preln_final", {})):
        model = tiny_model(method, kind, **given)
        features = Comparison.with_weights_of(model, method, kind, {}).ours()
        (features * torch.linspace(-1, 2, features.numel()).view_as(features).sin()).sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if not name.endswith("history.weight")}
        results.append((features, gradients))
    (ours, our_gradients), (plain, plain_gradients) = results
    assert torch.equal(ours, plain)
    assert our_gradients.keys() == plain_gradients.keys()
    for name, gradient in plain_gradients.items():
        assert gradient is None or torch.equal(our_gradients[name], gradient), name


@pytest.mark.parametrize(("layers", "dilation", "period", "weights"), [(6, 1, 1, 27), (12, 1, 1, 90), (12, 4, 5, 5)])
def test_denseformer_s_number_of_weights(layers: int, dilation: int, period: int, weights: int) -> None:
    """Golden values of L(L+3)/2; of dilation 4 and period 5, by hand: layer 5 sums 5, 1; layer 10 sums 10, 6, 2."""
    options = {"denseformer_dilation": dilation, "denseformer_period": period}
    model = tiny_model("denseformer", "lm", decoder_layers=layers, **options)
    assert model.decoder.history.weight.shape == (weights,)


@ALL
def test_admin_measures_its_profile_in_the_first_training_forward(kind: str) -> None:
    model = tiny_model("admin", kind, activation_fn="relu").double()
    both = Comparison.with_weights_of(model, "admin", kind, {})
    starts = [b for name, b in model.named_buffers() if name.endswith("profiled_skip")]
    model.eval()
    both.ours()
    assert all(start.item() == 1 for start in starts)  # only training measures
    model.train()
    both.ours()
    memory, memory_padding = None, None
    for side, state in both.copies.items():
        x, padding = both.embed(side), both.tokens[side].eq(PAD)
        stack = oracle.Stack(side, state, both.config, padding, memory, memory_padding)
        expected = oracle.admin_profile(stack, x)
        measured = dict(stacks(model, kind)[side].named_buffers())
        names = [
            f"layers.{layer.number - 1}.{P}_layer_norm.profiled_skip"
            for layer in stack.layers
            for P, _ in layer.branches
        ]
        assert [measured[name].item() for name in names] == pytest.approx(expected, rel=1e-9)
        state |= {name: measured[name].clone() for name in names}
        if side == "encoder":
            memory, memory_padding = oracle.encoder_stack("admin", state, x, padding, both.config), padding
    assert_close(both.ours(), both.theirs())  # now with the measured starts; a second forward measures nothing
    assert_close(both.ours(), both.theirs())
