"""Architectures: their names, presets, parameter counts and initialisation."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options as fairseq_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY, build_model
from helpers import KINDS, arguments, dictionary, stock_model, task_of, tiny_model, tiny_task
from torch import nn

from fairseq_lnplace import placements
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.plugin.models.architectures import register_architecture

GOLDEN = Path(__file__).parents[1] / "golden" / "architectures.txt"
OURS = ("transformer_lnplace", "transformer_lm_lnplace", "bert_lnplace")
WORDS = 16

# suffix -> width, feed-forward, heads, layers of each stack, dropout, attention dropout
TRANSFORMERS: dict[str, tuple[int, int, int, int, float, float]] = {
    "": (512, 2048, 8, 6, 0.1, 0.0),
    "_tiny": (128, 512, 4, 3, 0.1, 0.0),
    "_iwslt_de_en": (512, 1024, 4, 6, 0.1, 0.0),
    "_wmt_en_de": (512, 2048, 8, 6, 0.1, 0.0),
    "_wmt_en_de_big": (1024, 4096, 16, 6, 0.3, 0.1),
}

# What each method has more (or less) than Post-LN, from its equation: width d, feed-forward f, H heads, N + M layers.
# A LayerNorm is 2 d; an encoder layer has 2 sub-layers, a decoder layer 3.
Extra = Callable[[int, int, int, int, int], int]
FINAL: Extra = lambda d, f, H, N, M: 4 * d  # noqa: E731
A_VECTOR_EACH: Extra = lambda d, f, H, N, M: (2 * N + 3 * M) * d  # noqa: E731
A_NORM_EACH: Extra = lambda d, f, H, N, M: (2 * N + 3 * M) * 2 * d  # noqa: E731
EXTRA: dict[str, Extra] = {
    "postln": lambda *_: 0,
    "preln": lambda *_: 0,
    "preln_final": FINAL,
    "admin": A_VECTOR_EACH,
    "admin_analytic": A_VECTOR_EACH,
    "deepnorm": lambda *_: 0,
    "realformer": lambda *_: 0,
    "resi_dual": FINAL,
    "b2t": lambda *_: 0,
    "sandwich": lambda *s: A_NORM_EACH(*s) + FINAL(*s),
    "subln": lambda d, f, H, N, M: (N + M) * (2 * d + 2 * f) + 4 * d,
    "normformer": lambda d, f, H, N, M: (N + M) * (2 * d + H + 2 * f) + 4 * d,
    "rezero": lambda d, f, H, N, M: N + M - A_NORM_EACH(d, f, H, N, M),
    "tfixup": lambda *s: -A_NORM_EACH(*s),
    "periln": lambda *s: A_NORM_EACH(*s) + 2 * FINAL(*s),
    "mixln": FINAL,
    "lnscaling": FINAL,
    "hybridnorm": lambda d, f, H, N, M: N * (6 * d // H - 2 * d) + M * (12 * d // H - 2 * d) + 4 * d,
    "branchnorm": lambda *_: 0,
    "dsinit": lambda *_: 0,
    "layerscale": lambda *s: A_VECTOR_EACH(*s) + FINAL(*s),
    "dlcl": lambda d, f, H, N, M: (N + 1) ** 2 + N * 2 * d + (M + 1) ** 2 + M * 2 * d + 4 * d,
    "denseformer": lambda d, f, H, N, M: N * (N + 3) // 2 + M * (M + 3) // 2 + 4 * d,
    "gpas": lambda d, f, H, N, M: N + M + 4 * d,
    "keel": lambda d, f, H, N, M: A_NORM_EACH(d, f, H, N - 1, M - 1),
    "respostnorm": FINAL,
}


def parsed(*argv: str, kind: str = "translation") -> Namespace:
    """Return a command line as fairseq parses it."""
    parser = fairseq_options.get_training_parser()
    return fairseq_options.parse_args_and_arch(parser, ["data", "--task", KINDS[kind][0], *argv])


def on_meta(*argv: str, kind: str = "translation") -> Any:
    """Return the model of a command line, without memory."""
    args = parsed(*argv, kind=kind)
    with torch.device("meta"):
        return build_model(args, task_of(kind, args, dictionary()))


def count(model: nn.Module) -> int:
    """Return the number of parameters, stock's ghosts left out."""
    ghosts = ("in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias")
    ghosts += ("fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias")
    return sum(p.numel() for name, p in model.named_parameters() if not name.endswith(ghosts))


def postln_count(d: int, f: int, n: int, m: int) -> int:
    """Return the closed formula of an encoder-decoder with three embeddings of its own."""
    attention, feed_forward, norm = 4 * d * d + 4 * d, 2 * d * f + f + d, 2 * d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    return 3 * WORDS * d + n * encoder + m * decoder


def test_names_are_the_golden_ones() -> None:
    registered = sorted(arch for arch, model in ARCH_MODEL_NAME_REGISTRY.items() if model in OURS)
    assert registered == GOLDEN.read_text(encoding="utf-8").split()


@pytest.mark.parametrize(
    ("placement", "suffix"),
    [
        pytest.param(placement, suffix, marks=() if "tiny" in suffix or placement == "postln" else pytest.mark.slow)
        for placement in placements.names()
        for suffix in TRANSFORMERS
    ],
)
def test_preset_of_the_architecture_alone(placement: str, suffix: str) -> None:
    d, f, heads, layers, dropout, attention_dropout = TRANSFORMERS[suffix]
    model = on_meta("--arch", f"transformer_{placement}{suffix}")
    assert count(model) == postln_count(d, f, layers, layers) + EXTRA[placement](d, f, heads, layers, layers)
    assert model.method.placement.name == placement
    for stack in (model.encoder, model.decoder):
        assert len(stack.layers) == layers
        for layer in stack.layers:
            assert layer.self_attn.heads == heads
            assert layer.fc1.weight.shape == (f, d)
            assert layer.dropout_module.p == dropout
            assert layer.self_attn.dropout_module.p == attention_dropout


@pytest.mark.parametrize(("n", "m"), [(1, 4), (4, 1)])
@pytest.mark.parametrize("placement", placements.names())
def test_counts_at_unequal_depths(placement: str, n: int, m: int) -> None:
    model = tiny_model(placement, encoder_layers=n, decoder_layers=m)
    assert count(model) == postln_count(8, 12, n, m) + EXTRA[placement](8, 12, 2, n, m)


@pytest.mark.parametrize(
    ("ours", "stocks", "kind"),
    [
        ("transformer_postln", "transformer", "translation"),
        ("transformer_postln_iwslt_de_en", "transformer_iwslt_de_en", "translation"),
        ("transformer_postln_wmt_en_de", "transformer_wmt_en_de", "translation"),
        ("transformer_postln_wmt_en_de_big", "transformer_vaswani_wmt_en_de_big", "translation"),
        ("transformer_lm_postln", "transformer_lm", "lm"),
        ("transformer_lm_preln_final_gpt2_small", "transformer_lm_gpt2_small", "lm"),
    ],
)
def test_sizes_are_stocks(ours: str, stocks: str, kind: str) -> None:
    mine, theirs = on_meta("--arch", ours, kind=kind), on_meta("--arch", stocks, kind=kind)
    shapes = {name: tuple(p.shape) for name, p in theirs.named_parameters()}
    assert count(mine) == count(theirs)
    assert {name: tuple(p.shape) for name, p in mine.named_parameters()}.items() <= shapes.items()


@pytest.mark.parametrize("arch", ["bert_postln", "bert_postln_base"])
def test_bert_has_robertas_size(arch: str) -> None:
    """But for the norm on the embeddings, which stands here only where it is asked for."""
    args = parsed("--arch", arch, kind="bert")
    assert args.encoder_layers == parsed("--arch", "roberta_base", kind="bert").encoder_layers == 12
    models = []
    for name in (arch, "roberta_base"):  # stock's initialisation cannot run on the meta device
        args = parsed("--arch", name, "--encoder-layers", "1", kind="bert")
        models.append(build_model(args, task_of("bert", args, dictionary())))
    shapes = {name: tuple(p.shape) for name, p in models[1].named_parameters()}
    assert {name: tuple(p.shape) for name, p in models[0].named_parameters()}.items() <= shapes.items()
    assert count(models[1]) - count(models[0]) == 2 * 768


@pytest.mark.parametrize("value", [512, 64])
def test_command_line_wins(value: int) -> None:
    """Also with a value that is fairseq's default, and over a preset of another placement's size."""
    own = ("--encoder-embed-dim", str(value), "--decoder-layers", "6", "--dropout", "0.1", "--encoder-layers", "2")
    model = on_meta("--arch", "transformer_deepnorm_wmt_en_de_big", *own, "--decoder-attention-heads", "8")
    assert model.encoder.embed_tokens.embedding_dim == value
    assert model.decoder.embed_tokens.embedding_dim == value  # follows the encoder
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (2, 6)
    assert model.encoder.layers[0].dropout_module.p == 0.1
    assert model.decoder.layers[0].self_attn.heads == 8
    assert model.encoder.layers[0].self_attn.heads == 16
    assert model.decoder.layers[0].fc1.weight.shape == (4096, value)


def test_decoder_follows_the_encoder_unless_it_is_given() -> None:
    model = on_meta("--arch", "transformer_postln", "--encoder-embed-dim", "64", "--encoder-ffn-embed-dim", "96")
    assert model.decoder.layers[0].fc1.weight.shape == (96, 64)
    own = on_meta("--arch", "transformer_postln", "--encoder-embed-dim", "64", "--decoder-embed-dim", "32")
    assert own.decoder.layers[0].fc1.weight.shape == (2048, 32)


def test_the_model_itself_is_an_architecture() -> None:
    """`--arch transformer_lnplace`: base size and Pre-LN where nothing else is said."""
    model = on_meta("--arch", "transformer_lnplace")
    assert model.method.placement.name == "preln_final"
    assert count(model) == postln_count(512, 2048, 6, 6) + EXTRA["preln_final"](512, 2048, 8, 6, 6)
    other = on_meta("--arch", "transformer_lnplace", "--placement", "deepnorm", "--encoder-layers", "2")
    assert other.method.placement.name == "deepnorm"
    assert len(other.encoder.layers) == 2


def test_wrong_placements_are_told() -> None:
    with pytest.raises(LnplaceError, match="`--placement` must be postln with --arch transformer_postln, but is preln"):
        parsed("--arch", "transformer_postln", "--placement", "preln")
    with pytest.raises(LnplaceError, match=r"`--placement` must be one of postln, preln, .*, but is postnorm"):
        on_meta("--arch", "transformer_lnplace", "--placement", "postnorm")
    assert parsed("--arch", "transformer_postln", "--placement", "postln").placement == "postln"


def test_a_name_that_is_taken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCH_MODEL_REGISTRY, "transformer_mine", object)
    with pytest.raises(LnplaceError, match="`transformer_mine` must be free for fairseq_lnplace, but another package"):
        register_architecture("transformer_lnplace", "transformer_mine", {"placement": "postln"})


# ---- initialisation

WIDE = {"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 128, "decoder_embed_dim": 96, "decoder_ffn_embed_dim": 160}


def test_init_xavier_is_the_papers() -> None:
    """Every matrix uniform within sqrt(6 / (in + out)), every bias 0, embeddings N(0, 1/d)."""
    model: Any = tiny_model("preln_final", **WIDE)
    for name, p in model.named_parameters():
        if name.startswith(("encoder.layers", "decoder.layers")) and p.dim() == 2:
            bound = (6 / sum(p.shape)) ** 0.5
            assert 0.97 * bound < p.abs().max() <= bound, name
            assert abs(p.std() / (bound / 3**0.5) - 1) < 0.05, name
        elif name.endswith("bias"):
            assert not p.any(), name
    for embedding, d in ((model.encoder.embed_tokens, 64), (model.decoder.embed_tokens, 96)):
        real = embedding.weight[2:]
        assert abs(real.std() * d**0.5 - 1) < 0.1
        assert not embedding.weight[1].any()


def test_init_fairseq_is_stocks() -> None:
    """The spread and the extent of every parameter: q, k, v smaller, the feed-forward nn.Linear's own."""
    ours: Any = tiny_model("postln", init="fairseq", **WIDE)
    stock: Any = stock_model(False, **WIDE)
    theirs = dict(stock.named_parameters())
    for name, p in ours.named_parameters():
        q = theirs[name]
        assert q.any() == p.any(), name
        if p.any() and p.dim() == 2 and "embed" not in name and "output" not in name:
            assert abs(p.std() / q.std() - 1) < 0.06, name
            assert abs(p.abs().max() / q.abs().max() - 1) < 0.03, name
        elif p.any() and p.std() > 0:
            assert abs(p.std() / q.std() - 1) < 0.3, name
            assert abs(p.abs().max() / q.abs().max() - 1) < 0.4, name
    layer = ours.encoder.layers[0]
    assert layer.self_attn.q_proj.weight.abs().max() < 0.5**0.5 * (6 / 128) ** 0.5 + 1e-6
    assert 0.45 < layer.fc2.weight.std() / (2 / (64 + 128)) ** 0.5 < 0.55  # half of Xavier's


def test_init_changes_with_the_seed_alone() -> None:
    args = arguments("transformer_postln")
    for seed in (1, 2):
        torch.manual_seed(seed)
        first = build_model(args, tiny_task("translation", args)).encoder.layers[0].fc1.weight
        torch.manual_seed(seed)
        again = build_model(args, tiny_task("translation", args)).encoder.layers[0].fc1.weight
        assert torch.equal(first, again)
    torch.manual_seed(1)
    other = build_model(args, tiny_task("translation", args)).encoder.layers[0].fc1.weight
    assert not torch.equal(first, other)


@pytest.mark.parametrize("arch", ["transformer_postln", "transformer_lm_postln", "bert_postln"])
def test_what_fairseq_compares_before_there_is_a_model_is_a_number(arch: str) -> None:
    """Several processes start with `cfg.model.base_layers > 0`."""
    task = {"transformer": "translation", "transformer_lm": "language_modeling", "bert": "masked_lm"}
    words = ["data", "--arch", arch, "--task", task[arch.removesuffix("_postln")]]
    args = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), words)
    assert convert_namespace_to_omegaconf(args).model.base_layers == 0


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_as_the_memory_was(kind: str) -> None:
    """What torch would leave so it fills with NaN here."""
    torch.use_deterministic_algorithms(True)
    try:
        model = tiny_model("preln_final", kind)
        model.load_state_dict(tiny_model("preln_final", kind).state_dict())  # of which fairseq makes some anew, too
        state = model.state_dict()
    finally:
        torch.use_deterministic_algorithms(False)
    assert [name for name, tensor in state.items() if not tensor.isfinite().all()] == []
