"""The oracle itself: constants against the published values, equations against torch and the known reductions."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import reference as oracle
import torch
from reference import METHODS, Config, State, Tensor, decoder_stack, encoder_stack
from torch.testing import assert_close

WIDTH, HIDDEN, BATCH, LENGTH = 8, 12, 2, 5
CONFIG = Config()
# Every method as it is by default, and its other forms where they have other equations.
FORMS = [(method, CONFIG) for method in METHODS] + [
    ("dlcl", Config(dlcl_form="post")),
    ("denseformer", Config(denseformer_dilation=2, denseformer_period=2)),
    ("normformer", Config(normformer_resscale=True)),
    ("periln", Config(periln_form="plain_embedding")),
    ("hybridnorm", Config(hybridnorm_form="star")),
    ("hybridnorm", Config(hybridnorm_form="full_width")),
    ("keel", Config(keel_form="uniform")),
    *(("preln_final", Config(norm_type=kind)) for kind in ("dyt", "derf")),
]
FORM_NAMES = [
    *METHODS,
    "dlcl-post",
    "denseformer-2x2",
    "normformer-resscale",
    "periln-plain",
    "hybridnorm-star",
    "hybridnorm-wide",
    "keel-uniform",
    "preln_final-dyt",
    "preln_final-derf",
]


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_state(method: str, side: str, config: Config = CONFIG, cross: bool = False) -> State:
    """Return weights of order 1/√d for matrices and around 1 for norms, none at its start value."""
    state = {}
    for seed, (name, shape) in enumerate(oracle.parameters(method, side, config, WIDTH, HIDDEN, cross).items()):
        state[name] = 0.4 * values(*shape, seed=seed)
        if "norm" in name and name.endswith("weight"):
            state[name] += 1
    return state


def encode(
    method: str, config: Config = CONFIG, state: State | None = None, padding: Tensor | None = None, seed: int = 99
) -> Tensor:
    state = random_state(method, "encoder", config) if state is None else state
    return encoder_stack(method, state, values(BATCH, LENGTH, WIDTH, seed=seed), padding, config)


def without(method: str, *names: str, state: State | None = None, config: Config = CONFIG) -> Tensor:
    """Return the output with the norms of these names left out."""
    return encode(method, replace(config, without=frozenset(names)), state or random_state(method, "encoder", config))


def set_all(state: State, ending: str, value: float) -> State:
    """Return the state with every parameter whose name ends so set to the value; at least one must."""
    assert any(name.endswith(ending) for name in state)
    return {name: torch.full_like(t, value) if name.endswith(ending) else t for name, t in state.items()}


# ---------------------------------------------------------------------------------------------- golden constants


def close(*numbers: float) -> object:
    """Return what equals the numbers to the places printed in the golden file."""
    return pytest.approx(numbers, abs=5.1e-3 if max(numbers) > 6 else 5.1e-4 if len(numbers) == 1 else 5.1e-5)


def golden(name: str) -> list[list[float]]:
    """Return a table of published constants."""
    tables = json.loads((Path(__file__).parents[1] / "golden" / "constants.json").read_text(encoding="utf-8"))
    return tables[name]["rows"]


@pytest.mark.parametrize(("N", "M", "e_alpha", "e_beta", "d_alpha", "d_beta"), golden("deepnorm"))
def test_deepnorm_of_two_stacks(N: int, M: int, e_alpha: float, e_beta: float, d_alpha: float, d_beta: float) -> None:
    assert oracle.deepnorm("encoder", N, M) == close(e_alpha, e_beta)
    assert oracle.deepnorm("decoder", N, M) == close(d_alpha, d_beta)


@pytest.mark.parametrize(("L", "alpha", "beta"), golden("deepnorm_single"))
def test_deepnorm_of_one_stack(L: int, alpha: float, beta: float) -> None:
    assert oracle.deepnorm("encoder", L, 0) == close(alpha, beta)
    assert oracle.deepnorm("decoder", 0, L) == close(alpha, beta)


@pytest.mark.parametrize(("n", "omega"), golden("admin_analytic"))
def test_admin_analytic(n: int, omega: float) -> None:
    assert (oracle.constants("admin_analytic", n // 2, 1).skip["encoder"],) == close(omega)
    assert (oracle.constants("admin_analytic", None, n // 2).skip["decoder"],) == close(omega)
    if n % 3 == 0:
        assert (oracle.constants("admin_analytic", 1, n // 3).skip["decoder"],) == close(omega)


@pytest.mark.parametrize(("N", "M", "encoder", "decoder"), golden("subln"))
def test_subln_of_two_stacks(N: int, M: int, encoder: float, decoder: float) -> None:
    gains = tuple(oracle.gain("subln", side, "fc1", 1, N, M) for side in ("encoder", "decoder"))
    assert gains == close(encoder, decoder)


@pytest.mark.parametrize(("L", "gamma"), golden("subln_single"))
def test_subln_of_one_stack(L: int, gamma: float) -> None:
    gains = oracle.gain("subln", "encoder", "fc1", 1, L, None), oracle.gain("subln", "decoder", "fc1", 1, None, L)
    assert gains == close(gamma, gamma)


@pytest.mark.parametrize(("N", "M", "encoder", "decoder", "embedding"), golden("tfixup"))
def test_tfixup(N: int, M: int, encoder: float, decoder: float, embedding: float) -> None:
    gains = tuple(oracle.gain("tfixup", side, "fc2", 1, N, M) for side in ("encoder", "decoder"))
    factors = tuple(oracle.gain("tfixup", side, "embedding", 1, N, M) for side in ("encoder", "decoder"))
    assert gains == close(encoder, decoder)
    assert factors == close(embedding, embedding)


def test_other_constants() -> None:
    assert oracle.constants("keel", 6, 6).skip == {"encoder": 12, "decoder": 18}
    assert oracle.constants("keel", None, 6).skip == {"decoder": 12}
    assert oracle.constants("rezero", 6, 6).branch == {"encoder": 0, "decoder": 0}
    assert oracle.constants("layerscale", 18, 24).branch == {"encoder": 0.1, "decoder": 1e-5}
    assert oracle.constants("layerscale", 25, None).branch == {"encoder": 1e-6}
    assert oracle.constants("postln", 6, 6) == oracle.Constants()


def test_gains_touch_the_right_matrices_only() -> None:
    """Only DS-Init and B2T's code scale q and k; Sub-LN leaves cross-attention alone."""
    for method in METHODS:
        scaled = {role for role in oracle.ROLES if oracle.gain(method, "decoder", role, 2, 6, 6) != 1}
        qk = {role for role in oracle.ROLES if role.endswith((".q", ".k"))}
        cross = {role for role in oracle.ROLES if role.startswith("encoder_attn")}
        expected = {
            "deepnorm": set(oracle.ROLES) - qk,
            "tfixup": set(oracle.ROLES) - qk,
            "subln": set(oracle.ROLES) - qk - cross,
            "dsinit": set(oracle.ROLES),
        }
        assert scaled == expected.get(method, set()), method
    assert oracle.gain("dsinit", "decoder", "fc1", 4, 6, 6) == 0.5
    assert oracle.gain("dsinit", "decoder", "fc1", 16, 6, 6, exponent=0.25) == 0.5
    assert oracle.gain("b2t", "encoder", "self_attn.q", 1, 16, 4, b2t_rescaled=True) == 0.25


def test_expected_std_is_torch_s_xavier() -> None:
    weight = torch.empty(2048, 512, dtype=torch.float64)
    torch.nn.init.xavier_uniform_(weight, gain=0.7, generator=torch.Generator().manual_seed(1))
    assert oracle.expected_std(0.7, 512, 2048) == pytest.approx(weight.std().item(), rel=5e-3)


# --------------------------------------------------------------------------------------- equations against torch


def torch_layer(cls: type, norm_first: bool, state: State, i: int) -> torch.nn.Module:
    """Return torch's own layer with the weights of layer i."""
    layer = cls(WIDTH, CONFIG.heads, HIDDEN, dropout=0.0, batch_first=True, norm_first=norm_first).double()
    own = {"self_attn": "self_attn", "multihead_attn": "encoder_attn"}
    norms = ["self_attn", "encoder_attn", "final"] if hasattr(layer, "multihead_attn") else ["self_attn", "final"]
    weights = {}
    for kind in "weight", "bias":
        for theirs, ours in own.items():
            if hasattr(layer, theirs):
                parts = [state[f"layers.{i}.{ours}.{role}_proj.{kind}"] for role in "qkv"]
                weights[f"{theirs}.in_proj_{kind}"] = torch.cat(parts)
                weights[f"{theirs}.out_proj.{kind}"] = state[f"layers.{i}.{ours}.out_proj.{kind}"]
        for number, P in enumerate(norms, start=1):
            weights[f"norm{number}.{kind}"] = state[f"layers.{i}.{P}_layer_norm.{kind}"]
        for number in 1, 2:
            weights[f"linear{number}.{kind}"] = state[f"layers.{i}.fc{number}.{kind}"]
    layer.load_state_dict(weights)
    return layer


@pytest.mark.parametrize(("method", "norm_first"), [("postln", False), ("preln", True)])
def test_plain_stacks_equal_torch_s(method: str, norm_first: bool) -> None:
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    x, y = values(BATCH, LENGTH, WIDTH, seed=1), values(BATCH, 4, WIDTH, seed=2)
    encoder, decoder = random_state(method, "encoder"), random_state(method, "decoder", cross=True)
    memory = theirs = x
    for i in range(CONFIG.encoder_layers):
        memory = torch_layer(torch.nn.TransformerEncoderLayer, norm_first, encoder, i)(
            memory, src_key_padding_mask=padding
        )
    real = ~padding
    assert_close(encoder_stack(method, encoder, x, padding, CONFIG)[real], memory[real])
    future = torch.ones(4, 4, dtype=torch.bool).triu(1)
    theirs = y
    for i in range(CONFIG.decoder_layers):
        layer = torch_layer(torch.nn.TransformerDecoderLayer, norm_first, decoder, i)
        theirs = layer(theirs, memory, tgt_mask=future, memory_key_padding_mask=padding)
    assert_close(decoder_stack(method, decoder, y, memory, padding, CONFIG), theirs)


def test_norms_equal_torch_s() -> None:
    x, weight, bias = values(BATCH, LENGTH, WIDTH), values(WIDTH, seed=1), values(WIDTH, seed=2)
    functional = torch.nn.functional
    channels = x.transpose(1, 2)
    expected = {
        "layernorm": functional.layer_norm(x, (WIDTH,), weight, bias),
        "rmsnorm": functional.rms_norm(x, (WIDTH,), weight, 1e-5),
        "scalenorm": functional.normalize(x, dim=-1) * weight,
        "batchnorm": functional.batch_norm(channels, None, None, weight, bias, training=True).transpose(1, 2),
        "instancenorm": functional.instance_norm(channels, weight=weight, bias=bias).transpose(1, 2),
    }
    for kind, y in expected.items():
        assert_close(oracle.normalise(kind, x, weight, bias, 1e-5, None), y)


@pytest.mark.parametrize(("kind", "at_1"), [("dyt", 0.46211716), ("derf", 0.52049988)])
def test_what_stands_in_a_norms_place(kind: str, at_1: float) -> None:
    """The golden values are those of a fresh one at 1; elsewhere, Python's own functions."""
    one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    s = zero if kind == "derf" else None
    assert oracle.squash(kind, one, one, zero, zero, s).item() == pytest.approx(at_1, abs=5e-9)
    g, b, alpha, x = (values(1, seed=seed) for seed in range(4))
    inner = (0.5 + alpha.item()) * x.item()
    expected = math.tanh(inner) if s is None else math.erf(inner - 0.25)
    y = oracle.squash(kind, x, g, b, alpha, None if s is None else s - 0.25)
    assert y.item() == pytest.approx(g.item() * expected + b.item(), rel=1e-12)


# ----------------------------------------------------------------------------------- what holds for every method


every_form = pytest.mark.parametrize(("method", "form"), FORMS, ids=FORM_NAMES)


@every_form
def test_every_parameter_has_a_gradient_and_changes_the_output(method: str, form: Config) -> None:
    """No name in `parameters` is idle; Admin's start is a buffer, but would count, too."""
    for cross in False, True:
        memory = values(BATCH, 3, WIDTH, seed=5) if cross else None
        config = form if cross else replace(form, encoder_layers=0)
        state = {k: t.requires_grad_() for k, t in random_state(method, "decoder", config, cross).items()}
        x = values(BATCH, LENGTH, WIDTH, seed=6)
        decoder_stack(method, state, x, memory, None, config).square().sum().backward()
        for name, tensor in state.items():
            gradient = tensor.grad
            assert gradient is not None, name
            if name == "history.weight" and method == "dlcl":
                assert gradient.tril().ne(0).sum() == gradient.ne(0).sum() > 0
            elif not name.endswith("k_norm.bias" if method == "hybridnorm" else "k_proj.bias"):  # shared by all keys
                assert gradient.abs().max() > 1e-9, name


@every_form
def test_decoder_does_not_see_the_future(method: str, form: Config) -> None:
    state, memory = random_state(method, "decoder", form, cross=True), values(BATCH, 3, WIDTH, seed=5)
    x = values(BATCH, LENGTH, WIDTH, seed=6)
    y = decoder_stack(method, state, x, memory, None, form)
    changed = x.clone()
    changed[:, 3:] += values(BATCH, LENGTH - 3, WIDTH, seed=7)
    z = decoder_stack(method, state, changed, memory, None, form)
    assert_close(y[:, :3], z[:, :3])
    assert not torch.allclose(y[:, 3:], z[:, 3:])
    open_ended = decoder_stack(method, state, changed, memory, None, replace(form, causal=False))
    assert not torch.allclose(open_ended[:, :3], z[:, :3])


@every_form
def test_padding_changes_nothing(method: str, form: Config) -> None:
    state = random_state(method, "encoder", form)
    x = values(BATCH, LENGTH, WIDTH, seed=7)
    padding = torch.tensor([[True, True, False, False, False]] * BATCH)
    y = encoder_stack(method, state, x, padding, form)[:, 2:]
    assert_close(y, encoder_stack(method, state, x[:, 2:], None, form))
    decoder, target = random_state(method, "decoder", form, cross=True), values(BATCH, 2, WIDTH, seed=8)
    padded = decoder_stack(method, decoder, target, torch.cat([x[:, :2], y], 1), padding, form)
    assert_close(padded, decoder_stack(method, decoder, target, y, None, form))


@pytest.mark.parametrize("method", ["preln_final", "hybridnorm"])
@pytest.mark.parametrize("norm_type", ["batchnorm", "instancenorm"])
def test_norms_over_tokens_leave_padding_out(norm_type: str, method: str) -> None:
    config = replace(CONFIG, norm_type=norm_type)
    state, x = random_state(method, "encoder", config), values(BATCH, LENGTH, WIDTH, seed=7)
    padding = torch.tensor([[False, False, False, True, True]] * BATCH)
    y = encoder_stack(method, state, x, padding, config)[:, :3]
    assert_close(y, encoder_stack(method, state, x[:, :3], None, config))


# ------------------------------------------------------------------------------------------------ the reductions


def test_scaled_post_ln_reduces_to_post_ln_and_to_each_other() -> None:
    admin = random_state("admin", "encoder")
    plain = {name: t for name, t in admin.items() if "skip_scale" not in name and "profiled_skip" not in name}
    alpha, omega = oracle.deepnorm("encoder", 3, 3)[0], oracle.admin_analytic("encoder", 3, 3)
    expected = encode("postln", state=plain)
    assert_close(encode("admin", state=set_all(set_all(admin, "profiled_skip", 0.25), "skip_scale", 0.75)), expected)
    assert_close(encode("branchnorm", replace(CONFIG, branchnorm_updates=10, updates_done=9), plain), expected)
    assert_close(encode("branchnorm", replace(CONFIG, branchnorm_updates=10, updates_done=50), plain), expected)
    assert not torch.allclose(
        encode("branchnorm", replace(CONFIG, branchnorm_updates=10, updates_done=8), plain), expected
    )
    assert_close(encode("dsinit", state=plain), expected)
    deepnorm = encode("deepnorm", state=plain)
    assert_close(encode("admin", state=set_all(set_all(admin, "profiled_skip", alpha), "skip_scale", 0)), deepnorm)
    assert_close(encode("admin_analytic", state=set_all(admin, "skip_scale", alpha - omega)), deepnorm)
    uniform = replace(CONFIG, keel_form="uniform")
    keel = random_state("keel", "encoder", uniform)
    outer = {name.replace("second_add_norm.", ""): tensor for name, tensor in keel.items() if "second_add_norm" in name}
    six = set_all(set_all(admin | keel | outer, "profiled_skip", 6), "skip_scale", 0)
    inputs = "self_attn_layer_norm", "final_layer_norm"
    assert_close(without("keel", *inputs, state=keel, config=uniform), encode("admin", state=six))


@pytest.mark.parametrize("cross", [False, True])
def test_keel_starts_with_a_pre_ln_layer(cross: bool) -> None:
    """Of one layer it is Pre-LN; of three, Pre-LN below and the uniform layers, with the same constant, above."""
    memory = values(BATCH, 3, WIDTH, seed=5) if cross else None
    config = CONFIG if cross else replace(CONFIG, encoder_layers=0)
    state, x = random_state("keel", "decoder", config, cross), values(BATCH, LENGTH, WIDTH, seed=6)
    assert not any(name.startswith("layers.0.") and "second_add_norm" in name for name in state)
    one = replace(config, decoder_layers=1)
    first = decoder_stack("keel", state, x, memory, None, one)
    assert_close(first, decoder_stack("preln", state, x, memory, None, one))
    upper = {f"layers.{int(n[7]) - 1}{n[8:]}": t for n, t in state.items() if not n.startswith("layers.0.")}
    stack = oracle.Stack("decoder", upper, replace(config, keel_form="uniform"), memory=memory)
    for layer in stack.layers[:2]:  # of a stack that is three deep: the constant is 9, or 6 without cross-attention
        assert layer.skip_constant("keel") == (9 if cross else 6)
        first = oracle.keel_layer(layer, first)
    assert_close(decoder_stack("keel", state, x, memory, None, config), first)


def test_keel_s_gradient_through_the_skips_does_not_vanish() -> None:
    """The supplement's golden values of (S/√(S² + 1))^S: what S norms leave of a gradient along the skips."""
    for S, product in ((12, 0.95932760), (24, 0.97939987)):
        alpha = oracle.constants("keel", S // 2, None).skip["encoder"]
        assert (alpha / math.sqrt(alpha**2 + 1)) ** S == pytest.approx(product, abs=6e-9)


def test_admin_s_profile_follows_the_variances() -> None:
    """ω_1 = 1, ω_{i+1}² = Var(ω_i x) + Var(F_i), with the values written out for one layer by torch's own variance."""
    config = replace(CONFIG, encoder_layers=1)
    state = set_all(random_state("admin", "encoder", config), "skip_scale", 0)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    x = values(BATCH, LENGTH, WIDTH, seed=3)
    attended = oracle.Layer(oracle.Stack("encoder", state, config, padding), 1).branches[0][1](x)
    expected = x[~padding].var(correction=0) + attended[~padding].var(correction=0)
    assert oracle.admin_profile(oracle.Stack("encoder", state, config, padding), x) == pytest.approx(
        [1, expected.sqrt().item()]
    )


def test_admin_s_profile_grows_with_every_branch() -> None:
    """After a plain norm Var(x) is 1, so every further square is the last one plus the branch's variance."""
    state = random_state("admin", "encoder")
    for name, tensor in state.items():
        if "layer_norm" in name:
            state[name] = torch.full_like(tensor, float(name.endswith("norm.weight")))
    profile = oracle.admin_profile(oracle.Stack("encoder", state, CONFIG), values(BATCH, LENGTH, WIDTH))
    assert len(profile) == 6
    assert profile[0] == 1
    assert all(later > earlier for earlier, later in pairwise(profile[1:]))


def test_scaling_the_skip_is_scaling_the_branch_by_the_inverse() -> None:
    """LN(αx + F) = LN(x + F/α) but for eps, which is made small here."""
    config = replace(CONFIG, eps=1e-14)
    alpha = oracle.deepnorm("encoder", 3, 3)[0]
    state = random_state("postln", "encoder")
    x = values(BATCH, LENGTH, WIDTH, seed=99)
    layer = oracle.Layer(oracle.Stack("encoder", state, config), 1)
    expected = x
    for P, F in layer.branches:
        expected = layer.norm(f"{P}_layer_norm", expected + F(expected) / alpha)
    assert_close(oracle.deepnorm_layer(layer, x), expected, rtol=1e-10, atol=1e-10)


def test_resi_dual_without_second_stream_is_post_ln() -> None:
    state = random_state("resi_dual", "encoder")
    silent = {name: torch.zeros_like(t) if name.startswith("layer_norm.") else t for name, t in state.items()}
    assert_close(encode("resi_dual", state=silent), encode("postln", state=state))


def test_resi_dual_output_does_not_depend_on_the_stream_s_scale() -> None:
    y, z = (encode("resi_dual", replace(CONFIG, resi_dual_scale=s)) for s in (1.0, 0.05))
    assert_close(y, z, rtol=0, atol=1e-3)
    assert not torch.equal(y, z)


def test_resi_dual_second_stream_is_the_sum_of_input_and_branches() -> None:
    config = replace(CONFIG, resi_dual_scale=0.05)
    stack, x = oracle.Stack("encoder", random_state("resi_dual", "encoder"), config), values(BATCH, LENGTH, WIDTH)
    total, stream = x, x
    for layer in stack.layers:
        for P, F in layer.branches:
            total, stream = total + F(stream), layer.norm(f"{P}_layer_norm", stream + F(stream))
    assert_close(oracle.resi_dual_streams(stack, x), (stream, 0.05 * total))


def test_b2t_without_its_layer_s_input_is_post_ln() -> None:
    config = replace(CONFIG, encoder_layers=1)
    state, nothing = random_state("b2t", "encoder", config), torch.zeros(1, 1, WIDTH, dtype=torch.float64)
    y, z = (encoder_stack(method, state, nothing, None, config) for method in ("b2t", "postln"))
    assert_close(y, z)
    layer, x = oracle.Layer(oracle.Stack("encoder", state, config), 1), values(BATCH, LENGTH, WIDTH)
    attended = layer.norm("self_attn_layer_norm", x + layer.attention("self_attn", x)[0])
    expected = layer.norm("final_layer_norm", x + attended + layer.feed_forward(attended))
    assert_close(oracle.b2t_layer(layer, x), expected)


def test_closed_branches_leave_the_embedding() -> None:
    x = values(BATCH, LENGTH, WIDTH, seed=99)
    assert_close(encode("rezero", state=set_all(random_state("rezero", "encoder"), "layer_scale", 0)), x)
    scale = set_all(random_state("layerscale", "encoder"), "branch_scale", -0.1)
    final = oracle.Stack("encoder", scale, CONFIG).norm("layer_norm", x)
    assert_close(encode("layerscale", state=scale), final)
    swin = set_all(set_all(random_state("respostnorm", "encoder"), "out_norm.weight", 0), "out_norm.bias", 0)
    assert_close(encode("respostnorm", state=swin), oracle.Stack("encoder", swin, CONFIG).norm("layer_norm", x))


def test_open_branches_are_plain() -> None:
    rezero = set_all(random_state("rezero", "encoder"), "layer_scale", 1)
    assert_close(encode("rezero", state=rezero), encode("tfixup", state=rezero))
    layerscale = set_all(random_state("layerscale", "encoder"), "branch_scale", 0.9)
    assert_close(encode("layerscale", state=layerscale), encode("preln_final", state=layerscale))
    gpas = set_all(random_state("gpas", "encoder"), "layer_scale", 0)
    assert_close(encode("gpas", state=gpas), encode("preln_final", state=gpas))


def test_gpas_scales_forward_and_not_backward() -> None:
    """With branches of constant output the stream is x(1 − SiLU(g))ⁿ + …, and its gradient for x still 1."""
    config = replace(CONFIG, encoder_layers=1)
    state = {name: torch.zeros_like(t) for name, t in random_state("gpas", "encoder", config).items()}
    state["layers.0.layer_scale"] += 0.7
    x = values(1, 2, WIDTH).requires_grad_()
    y = oracle.gpas_layer(oracle.Layer(oracle.Stack("encoder", state, config), 1), x)
    silu = 0.7 / (1 + math.exp(-0.7))
    assert_close(y, x * (1 - silu) ** 2)
    y.sum().backward()
    assert_close(x.grad, torch.ones_like(x))


def test_realformer_without_earlier_scores_is_post_ln() -> None:
    one = replace(CONFIG, encoder_layers=1)
    state = random_state("realformer", "encoder")
    assert_close(encode("realformer", one, state), encode("postln", one, state))
    assert_close(encode("realformer", replace(one, realformer_mean=True), state), encode("postln", one, state))
    no_q = {name: torch.zeros_like(t) for name, t in state.items() if ".q_proj." in name and "layers.2" not in name}
    silent = state | no_q
    assert_close(encode("realformer", state=silent), encode("postln", state=silent))
    assert not torch.allclose(encode("realformer", state=state), encode("postln", state=state))
    assert not torch.allclose(encode("realformer", replace(CONFIG, realformer_mean=True)), encode("realformer"))


def test_mixln_ends_are_pre_ln_and_post_ln() -> None:
    state = random_state("mixln", "encoder")
    assert_close(encode("mixln", replace(CONFIG, mixln_post_fraction=0.0), state), encode("preln_final", state=state))
    post = oracle.Stack("encoder", state, CONFIG).norm("layer_norm", encode("postln", state=state))
    assert_close(encode("mixln", replace(CONFIG, mixln_post_fraction=1.0), state), post)
    four = replace(CONFIG, encoder_layers=4, mixln_post_fraction=0.3)  # ⌊1.2⌋ = 1
    state = random_state("mixln", "encoder", four)
    stack, x = oracle.Stack("encoder", state, four), values(BATCH, LENGTH, WIDTH, seed=99)
    x = oracle.postln_layer(stack.layers[0], x)
    for layer in stack.layers[1:]:
        x = oracle.preln_layer(layer, x)
    assert_close(encode("mixln", four, state), stack.norm("layer_norm", x))


def test_layernorm_scaling_of_the_first_layer_is_pre_ln() -> None:
    state = random_state("lnscaling", "encoder")
    one, two = replace(CONFIG, encoder_layers=1), replace(CONFIG, encoder_layers=2)
    assert_close(encode("lnscaling", one, state), encode("preln_final", one, state))
    second = {name: t / math.sqrt(2) for name, t in state.items() if name.startswith("layers.1.") and "_norm." in name}
    assert_close(encode("lnscaling", two, state), encode("preln_final", two, state | second))


def test_norms_on_both_sides_reduce_to_one() -> None:
    sandwich = random_state("sandwich", "encoder")
    inputs = ("self_attn_layer_norm", "final_layer_norm")
    assert_close(without("sandwich", "out_norm", state=sandwich), encode("preln_final", state=sandwich))
    assert_close(without("sandwich", *inputs, state=sandwich), encode("respostnorm", state=sandwich))
    peri = random_state("periln", "encoder")
    embedded = oracle.Stack("encoder", peri, CONFIG).norm("embedding_norm", values(BATCH, LENGTH, WIDTH, seed=99))
    assert_close(encode("periln", state=peri), encoder_stack("sandwich", peri, embedded, None, CONFIG))
    assert not torch.allclose(encode("periln", state=peri), encode("sandwich", state=peri))
    plain = replace(CONFIG, periln_form="plain_embedding")
    assert_close(encode("periln", plain, peri), encode("sandwich", state=peri))


def test_inner_norms_left_out_are_pre_ln() -> None:
    resscale = replace(CONFIG, normformer_resscale=True)
    subln, normformer = random_state("subln", "encoder"), random_state("normformer", "encoder", resscale)
    expected = encode("preln_final", state=subln)
    assert_close(without("subln", "inner_norm", "ffn_layernorm", state=subln), expected)
    for name in "inner_norm", "ffn_layernorm":
        assert not torch.allclose(without("subln", name, state=subln), expected)
    plain = set_all(set_all(normformer, "head_scale", 0), "skip_scale", 0)
    expected = encode("preln_final", state=normformer)
    inner = "out_norm", "ffn_layernorm"
    for config in CONFIG, resscale:
        assert_close(without("normformer", *inner, state=plain, config=config), expected)
    for state in set_all(normformer, "head_scale", 0), set_all(normformer, "skip_scale", 0):
        assert not torch.allclose(without("normformer", *inner, state=state, config=resscale), expected)
    assert_close(without("normformer", *inner, state=set_all(normformer, "head_scale", 0)), expected)  # no ResScale


def test_normformer_scales_heads_before_the_output_projection() -> None:
    """Scaling head h by γ is the same as scaling its columns of W_o."""
    state = random_state("normformer", "encoder")
    folded = set_all(state, "head_scale", 0)
    for i in range(CONFIG.encoder_layers):
        scale = (1 + state[f"layers.{i}.self_attn.head_scale"]).repeat_interleave(WIDTH // CONFIG.heads)
        folded[f"layers.{i}.self_attn.out_proj.weight"] = state[f"layers.{i}.self_attn.out_proj.weight"] * scale
    assert_close(encode("normformer", state=folded), encode("normformer", state=state))


@pytest.mark.parametrize("form", ["published", "star", "full_width"])
def test_hybridnorm_without_any_norm_is_tfixup(form: str) -> None:
    config = replace(CONFIG, hybridnorm_form=form)
    state = random_state("hybridnorm", "encoder", config)
    norms = ("q_norm", "k_norm", "v_norm", "self_attn_layer_norm", "layer_norm")
    norms += ("final_layer_norm",) if form == "star" else ()
    assert_close(without("hybridnorm", *norms, state=state, config=config), encode("tfixup", state=state))
    for name in norms:
        assert not torch.allclose(
            without("hybridnorm", name, state=state, config=config), encode("hybridnorm", config, state)
        )


def test_hybridnorm_norms_each_head_alone() -> None:
    """Of one head it is the full width's; of two, torch's norm of each half of q, k and v, with the same weights."""
    one, wide = (Config(heads=1, hybridnorm_form=form) for form in ("published", "full_width"))
    state = random_state("hybridnorm", "encoder", one)
    assert state.keys() == random_state("hybridnorm", "encoder", wide).keys()
    assert_close(encode("hybridnorm", one, state), encode("hybridnorm", wide, state))
    state, x = random_state("hybridnorm", "encoder"), values(BATCH, LENGTH, WIDTH)
    layer = oracle.Layer(oracle.Stack("encoder", state, CONFIG), 1)
    half, heads = WIDTH // 2, []
    for columns in slice(0, half), slice(half, WIDTH):
        q, k, v = (
            torch.nn.functional.layer_norm(
                layer.linear(f"self_attn.{role}_proj", x)[..., columns],
                (half,),
                layer[f"self_attn.{role}_norm.weight"],
                layer[f"self_attn.{role}_norm.bias"],
            )
            for role in "qkv"
        )
        heads.append(torch.nn.functional.scaled_dot_product_attention(q, k, v))
    expected = layer.linear("self_attn.out_proj", torch.cat(heads, -1))
    assert_close(layer.attention("self_attn", x, qkv_norms="head")[0], expected)


def test_hybridnorm_star_differs_in_its_first_layer_alone() -> None:
    """The layers above it are as published; its first is Pre-LN but for the norms of q, k and v."""
    star, x = replace(CONFIG, hybridnorm_form="star"), values(BATCH, LENGTH, WIDTH)
    state = random_state("hybridnorm", "encoder", star)
    assert {name for name in state if name not in random_state("hybridnorm", "encoder")} == {
        f"layers.0.final_layer_norm.{kind}" for kind in ("weight", "bias")
    }
    layers = (oracle.Stack("encoder", state, config).layers for config in (star, CONFIG))
    outputs = ([oracle.hybridnorm_layer(layer, x) for layer in stack] for stack in layers)
    assert [torch.allclose(y, z) for y, z in zip(*outputs, strict=True)] == [False, True, True]
    bare = replace(star, without=frozenset(("q_norm", "k_norm", "v_norm")))
    first = oracle.Stack("encoder", state, bare).layers[0]
    assert_close(oracle.hybridnorm_layer(first, x), oracle.preln_layer(first, x))


def identity_history() -> Tensor:
    """Return the stored history weight that passes on the newest output alone."""
    rows = torch.arange(1, CONFIG.encoder_layers + 2, dtype=torch.float64)
    return torch.eye(len(rows), dtype=torch.float64) - (1 / rows[:, None]).expand(-1, len(rows)).tril()


def test_dlcl_with_the_newest_output_alone_is_its_host() -> None:
    pre = random_state("dlcl", "encoder") | {"history.weight": identity_history()}
    names = [str(k) for k in range(CONFIG.encoder_layers)]
    assert_close(without("dlcl", *names, state=pre), encode("preln_final", state=pre))
    post = replace(CONFIG, dlcl_form="post")
    assert_close(without("dlcl", *names, state=pre, config=post), encode("postln", state=pre))
    assert not torch.allclose(without("dlcl", state=pre), encode("preln_final", state=pre))


def test_dlcl_is_fresh_with_zero_weights_and_averages() -> None:
    """With silent layers (y_l = input of layer l+1) a fresh history passes the embedding on."""
    state = random_state("dlcl", "encoder") | {"history.weight": torch.zeros(4, 4, dtype=torch.float64)}
    silent = {k: torch.zeros_like(t) if ".out_proj." in k or ".fc2." in k else t for k, t in state.items()}
    y = without("dlcl", "0", "1", "2", "layer_norm", state=silent)
    assert_close(y, values(BATCH, LENGTH, WIDTH, seed=99))


def test_denseformer_s_learned_weights() -> None:
    """Golden values of L(L+3)/2, and by hand of the paper's dilation 4 and period 5."""
    for layers, weights in ((6, 27), (12, 90)):
        state = random_state("denseformer", "encoder", Config(encoder_layers=layers))
        assert state["history.weight"].shape == (weights,)
    by_hand = {5: [5, 1], 10: [10, 6, 2]}
    assert {row: terms for row in range(1, 13) if (terms := oracle.denseformer_terms(row, 4, 5))} == by_hand


@pytest.mark.parametrize(("k", "p"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_denseformer_is_fresh_with_zero_weights(k: int, p: int) -> None:
    config = replace(CONFIG, denseformer_dilation=k, denseformer_period=p)
    state = random_state("denseformer", "encoder", config)
    fresh = set_all(state, "history.weight", 0)
    assert torch.equal(encode("denseformer", config, fresh), encode("preln_final", state=state))
    assert not torch.allclose(encode("denseformer", config, state), encode("preln_final", state=state))


def test_denseformer_averages_what_was_not_averaged() -> None:
    """Two layers, written out; with dilation 2 no X_1 in Y_2 and no X_0 in Y_1, with period 2 no sum behind layer 1."""
    x = values(BATCH, LENGTH, WIDTH, seed=99)
    for k, p, (a11, a10, a22, a21, a20), weight in (
        (1, 1, (1.3, 0.2, 0.6, 0.5, -0.7), [0.3, 0.2, -0.4, 0.5, -0.7]),
        (2, 1, (1.3, 0.0, 0.6, 0.0, -0.7), [0.3, -0.4, -0.7]),
        (1, 2, (1.0, 0.0, 0.6, 0.5, -0.7), [-0.4, 0.5, -0.7]),
        (2, 2, (1.0, 0.0, 0.6, 0.0, -0.7), [-0.4, -0.7]),
    ):
        config = replace(CONFIG, encoder_layers=2, denseformer_dilation=k, denseformer_period=p)
        state = random_state("denseformer", "encoder", config)
        assert state["history.weight"].shape == (len(weight),)
        state["history.weight"] = torch.tensor(weight, dtype=torch.float64)
        stack = oracle.Stack("encoder", state, config)
        first = oracle.preln_layer(stack.layers[0], x)
        second = oracle.preln_layer(stack.layers[1], a11 * first + a10 * x)
        expected = stack.norm("layer_norm", a22 * second + a21 * first + a20 * x)
        assert_close(encode("denseformer", config, state), expected)


def test_depth_constants_do_not_mix_sides() -> None:
    """A decoder without an encoder has other constants than the same decoder beside one."""
    for method in "deepnorm", "admin_analytic", "keel":
        config = Config(encoder_layers=0, decoder_layers=2)
        state, x = random_state(method, "decoder", config), values(BATCH, LENGTH, WIDTH)
        alone = decoder_stack(method, state, x, None, None, config)
        beside = decoder_stack(method, state, x, None, None, replace(config, encoder_layers=2))
        assert not torch.allclose(alone, beside), method
