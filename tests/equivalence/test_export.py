"""`lnplace export`: stock's own model, and CTranslate2, given the exported checkpoint, compute what ours computed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
import torch
from fairseq import utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import build_model
from helpers import KINDS, arguments, batch, dictionary, fill_in, tiny_task
from omegaconf import OmegaConf
from torch import Tensor, nn

from fairseq_lnplace import placements
from fairseq_lnplace.cli import main
from fairseq_lnplace.compat import load_checkpoint
from fairseq_lnplace.plugin.models.method import MethodModel

POST = ("postln", "admin", "admin_analytic", "deepnorm", "branchnorm", "dsinit")
PRE = ("preln_final", "layerscale", "lnscaling")
SHARED = {"share_all_embeddings": True}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *((kind, name, {}) for kind in KINDS for name in (*POST, *PRE)),
    ("lm", "preln", {}),
    ("translation", "mixln", {}),  # a quarter of three layers is none
    *(
        ("translation", "admin", options)
        for options in (
            SHARED,
            {"share_decoder_input_output_embed": True},
            {"layernorm_embedding": True, **SHARED},
            {"encoder_learned_pos": True},
            {"no_token_positional_embeddings": True},
            {"encoder_layers": 1, "decoder_layers": 4},
            {"encoder_embed_dim": 12},
            {"decoder_output_dim": 6},
            {"no_cross_attention": True},
            {"adaptive_softmax_cutoff": "4,8", **SHARED},
            {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 4, **SHARED},
        )
    ),
    ("translation", "postln", {"cross_self_attention": True}),
    ("translation", "deepnorm", {"encoder_layers_to_keep": "0,2", "decoder_layers_to_keep": "1"}),
    ("lm", "deepnorm", {"share_decoder_input_output_embed": True}),
    ("lm", "deepnorm", {"decoder_input_dim": 6}),
    ("lm", "preln_final", {"adaptive_input": True, "adaptive_input_cutoff": "4,8", "adaptive_input_factor": 2}),
    ("bert", "admin", {"encoder_learned_pos": False}),
    ("bert", "admin", {"untie_weights_roberta": True}),
    ("bert", "layerscale", {"layernorm_embedding": True}),
]


@pytest.fixture(autouse=True)
def _softmax_in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stock's softmax is in float32 always; undone, so that models compare in float64."""
    monkeypatch.setattr(utils, "softmax", lambda x, dim, onnx_trace=False: nn.functional.softmax(x, dim))


def outputs(model: nn.Module, kind: str) -> Tensor:
    """Return the outputs in evaluation, at real positions."""
    sample = batch()
    if kind == "translation":
        return model.eval()(**sample["net_input"])[0][sample["target"].ne(1)].detach()
    tokens = sample["target"]
    return model.eval()(tokens)[0][tokens.ne(1)].detach()


def saved(path: Path, kind: str, placement: str, **options: Any) -> nn.Module:
    """Return a model of ours with its checkpoint at ``path``, in the form that `fairseq-train` gives it."""
    args = arguments(KINDS[kind][1] + placement, kind, **options)
    model = fill_in(build_model(args, tiny_task(kind)))
    for name, buffer in model.named_buffers():
        if name.endswith("progress"):
            buffer.fill_(0.3)
    task = {"_name": KINDS[kind][0], "data": str(path.parent), "source_lang": "de", "target_lang": "en"}
    cfg = {"common": {"user_dir": "fairseq_lnplace"}, "model": {**vars(args), "_name": args.arch}, "task": task}
    torch.save({"args": None, "cfg": cfg, "model": model.state_dict()}, path)
    return model


def exported(tmp_path: Path, *, to: str = "stock.pt") -> dict[str, Any]:
    assert main(["export", str(tmp_path / "ours.pt"), "--to", "fairseq", "--output", str(tmp_path / to)]) == 0
    return load_checkpoint(tmp_path / to)


def stocks_model(state: dict[str, Any], kind: str) -> nn.Module:
    """Return the model that `fairseq-generate` makes of a checkpoint."""
    options = state["cfg"]["model"]
    if isinstance(options, dict):
        options = OmegaConf.create({"model": options}, flags={"allow_objects": True}).model
    model = build_model(options, tiny_task(kind), from_checkpoint=True).double()
    assert not isinstance(model, MethodModel)
    model.load_state_dict(state["model"], strict=True, model_cfg=options)
    return model


@pytest.mark.parametrize(
    ("kind", "placement", "options"), CASES, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_stock_computes_the_same(kind: str, placement: str, options: dict[str, Any], tmp_path: Path) -> None:
    expected = outputs(saved(tmp_path / "ours.pt", kind, placement, **options), kind)
    stock = stocks_model(exported(tmp_path), kind)
    torch.testing.assert_close(outputs(stock, kind), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("placement", ["admin", "deepnorm", "branchnorm", "layerscale", "lnscaling"])
def test_without_its_factors_a_model_would_be_another(placement: str, tmp_path: Path) -> None:
    """The comparison above can fail: the same weights under stock's equation, unfolded, give other outputs."""
    ours = saved(tmp_path / "ours.pt", "translation", placement)
    state = exported(tmp_path)
    learned = any(name.endswith("embed_positions.weight") for name in state["model"])
    kept = ours.state_dict()
    unfolded = {name: kept.get(name, tensor) for name, tensor in state["model"].items()}
    stock = stocks_model({**state, "model": unfolded}, "translation")
    assert learned == (placement in ("admin", "deepnorm"))
    assert (outputs(stock, "translation") - outputs(ours, "translation")).abs().max() > 0.01


def test_all_others_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "ours.pt", "translation", "postln")
    state = load_checkpoint(tmp_path / "ours.pt")
    for name in set(placements.names()) - {*POST, *PRE, "mixln"}:
        state["cfg"]["model"] |= {"_name": f"transformer_{name}", "placement": name}
        torch.save(state, tmp_path / "ours.pt")
        assert main(["export", str(tmp_path / "ours.pt"), "--output", str(tmp_path / "stock.pt")]) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"lnplace: Stock fairseq has no equivalent of {name}: ")
        assert said.count("\n") == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["ours.pt"]


@pytest.mark.parametrize(
    ("placement", "options", "sentence"),
    [
        ("postln", {"norm_type": "rmsnorm"}, "`checkpoint` must be of layernorm, stock fairseq's only"),
        ("preln_final", {"norm_type": "dyt"}, "`checkpoint` must be of layernorm, stock fairseq's only"),
        ("deepnorm", {"norm_type": "derf"}, "`checkpoint` must be of layernorm, stock fairseq's only"),
        ("postln", {"qk_norm": "l2"}, "Stock fairseq has no equivalent of postln: it normalises queries and keys"),
        ("admin", {"cross_self_attention": True}, "`--cross-self-attention` must be left out where a factor is folded"),
        ("mixln", {"encoder_layers": 4}, "Stock fairseq has no equivalent of mixln: some of its sub-layers are Post-"),
    ],
)
def test_options_that_stock_has_no_place_for(
    placement: str, options: dict[str, Any], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path / "ours.pt", "translation", placement, **options)
    assert main(["export", str(tmp_path / "ours.pt"), "--output", str(tmp_path / "stock.pt")]) == 1
    assert capsys.readouterr().err.startswith(f"lnplace: {sentence}")
    assert not (tmp_path / "stock.pt").exists()


def test_a_factor_that_cannot_be_divided_by(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(tmp_path / "ours.pt", "translation", "admin")
    state = load_checkpoint(tmp_path / "ours.pt")
    layer = "encoder.layers.1.final_layer_norm"
    state["model"][f"{layer}.skip_scale"][3] = -state["model"][f"{layer}.profiled_skip"].item()
    torch.save(state, tmp_path / "ours.pt")
    assert main(["export", str(tmp_path / "ours.pt"), "--output", str(tmp_path / "stock.pt")]) == 1
    assert "must be of factors of at least 0.0001, to fold them, but is of 0.0" in capsys.readouterr().err
    assert model.method.placement.name == "admin"


def test_a_checkpoint_of_stocks_is_not_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "ours.pt", "translation", "admin", **SHARED)
    exported(tmp_path)
    said = capsys.readouterr().out
    assert said == (
        f"{tmp_path}/stock.pt: a checkpoint of stock fairseq's `transformer`; "
        "its embeddings share no weights any more, as one took over a factor\n"
    )
    assert main(["export", str(tmp_path / "stock.pt"), "--output", str(tmp_path / "twice.pt")]) == 1
    assert capsys.readouterr().err == (
        "lnplace: `checkpoint` must be of one of this package's models, but is of transformer\n"
    )


def test_nothing_but_the_first_factor_unties_embeddings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "ours.pt", "translation", "layerscale", **SHARED)
    options = vars(exported(tmp_path)["cfg"]["model"])
    assert options["share_all_embeddings"]
    assert "any more" not in capsys.readouterr().out
    assert options.keys().isdisjoint({"placement", "norm_type", "layerscale_init", "trained_layers"})


def test_half_precision_weights_are_folded_in_single(tmp_path: Path) -> None:
    saved(tmp_path / "ours.pt", "translation", "deepnorm")
    state = load_checkpoint(tmp_path / "ours.pt")
    state["model"] = {
        name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in state["model"].items()
    }
    torch.save(state, tmp_path / "ours.pt")
    weights = exported(tmp_path)["model"]
    assert weights["encoder.layers.0.fc1.weight"].dtype == torch.float32
    assert weights["encoder.layers.0.fc2.weight"].dtype == torch.float16


TO_CTRANSLATE2: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in (*POST, *PRE)),
    ("admin", {"layernorm_embedding": True, **SHARED}),
    ("admin", {"encoder_learned_pos": True}),
    ("postln", {"encoder_embed_dim": 12, "encoder_layers": 1, "decoder_layers": 4}),
    ("postln", {"activation_fn": "gelu", "no_scale_embedding": True}),
    ("deepnorm", {"encoder_layers_to_keep": "0,2", "decoder_layers_to_keep": "1"}),
]


def to_ctranslate2(folder: Path, *more: str) -> int:
    """Return the exit status of the export of ``ours.pt`` to ``ct``, with the tiny dictionary beside them."""
    for name in ("dict.de.txt", "dict.en.txt", "dict.txt"):
        dictionary().save(str(folder / name))
    return main(["export", str(folder / "ours.pt"), "--to", "ctranslate2", "--output", str(folder / "ct"), *more])


def words(row: Tensor) -> list[str]:
    """Return a sentence's words, without padding and end."""
    symbols = dictionary()
    return [symbols[index] for index in row.tolist() if index not in (symbols.pad(), symbols.eos())]


@pytest.mark.parametrize(
    ("placement", "options"), TO_CTRANSLATE2, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
@torch.no_grad()
def test_ctranslate2_computes_the_same(placement: str, options: dict[str, Any], tmp_path: Path) -> None:
    """The probabilities of given translations, and greedy ones of stock's search with our model, word for word."""
    model = saved(tmp_path / "ours.pt", "translation", placement, **options).eval()
    assert to_ctranslate2(tmp_path) == 0
    translator = ctranslate2.Translator(str(tmp_path / "ct"), intra_threads=1)
    sample = batch()
    source, target = ([words(row) for row in rows] for rows in (sample["net_input"]["src_tokens"], sample["target"]))

    expected = model(**sample["net_input"])[0].log_softmax(-1).gather(2, sample["target"][..., None])
    expected = expected[sample["target"].ne(1)].flatten()
    scored = [each for result in translator.score_batch(source, target) for each in result.log_probs]
    np.testing.assert_allclose(scored, expected, atol=1e-5)

    task = tiny_task()
    search = task.build_generator([model], GenerationConfig(beam=1, max_len_a=0, max_len_b=20))
    best = [words(hypotheses[0]["tokens"]) for hypotheses in task.inference_step(search, [model], sample)]
    no_padding = {"suppress_sequences": [["<blank>"]]}  # fairseq never writes it
    found = translator.translate_batch(source, beam_size=1, max_decoding_length=20, **no_padding)
    assert [result.hypotheses[0] for result in found] == best


@pytest.mark.parametrize(
    ("placement", "options"),
    [
        ("postln", {}),
        ("preln", {}),
        ("admin", {"share_decoder_input_output_embed": True}),
        ("deepnorm", {"decoder_input_dim": 6, "decoder_output_dim": 6}),
        ("postln", {"add_bos_token": True}),
    ],
)
@torch.no_grad()
def test_ctranslate2_runs_language_models(placement: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = saved(tmp_path / "ours.pt", "lm", placement, **options).eval()
    assert to_ctranslate2(tmp_path) == 0
    generator = ctranslate2.Generator(str(tmp_path / "ct"), intra_threads=1)
    tokens = batch()["net_input"]["prev_output_tokens"]
    symbols = dictionary()
    real = tokens.ne(symbols.pad())
    sentences = [[symbols[index] for index in row[kept].tolist()] for row, kept in zip(tokens, real, strict=True)]
    found = np.array(generator.forward_batch(sentences, return_log_probs=True))
    np.testing.assert_allclose(found[real], model(tokens)[0].log_softmax(-1)[real], atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "placement", "options", "sentence"),
    [
        ("translation", "resi_dual", {}, "Stock fairseq has no equivalent of resi_dual: it carries a second stream"),
        ("bert", "postln", {}, "`checkpoint` must be of a translation or language model for CTranslate2, but is of"),
        ("translation", "postln", {"cross_self_attention": True}, "CTranslate2 has no equivalent of this checkpoint: "),
        ("translation", "postln", {"no_cross_attention": True}, "CTranslate2 has no equivalent of this checkpoint: "),
        ("translation", "postln", {"adaptive_softmax_cutoff": "4,8"}, "CTranslate2 has no equivalent of this checkp"),
        ("translation", "postln", {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 4}, "CTranslate2 has no equ"),
        ("translation", "postln", {"decoder_output_dim": 6}, "CTranslate2 has no equivalent of this checkpoint: "),
        ("translation", "postln", {"no_token_positional_embeddings": True}, "CTranslate2 cannot convert "),
        ("translation", "postln", {"encoder_attention_heads": 4}, "CTranslate2 cannot convert "),
        ("lm", "postln", {"decoder_output_dim": 6}, "CTranslate2 has no equivalent of this checkpoint: "),
        ("lm", "postln", {"adaptive_input": True, "adaptive_input_factor": 2, "adaptive_input_cutoff": "4,8"}, "CTra"),
    ],
)
def test_what_ctranslate2_has_no_place_for(
    kind: str,
    placement: str,
    options: dict[str, Any],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved(tmp_path / "ours.pt", kind, placement, **options)
    assert to_ctranslate2(tmp_path) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"lnplace: {sentence}")
    assert said.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"ours.pt", "dict.de.txt", "dict.en.txt", "dict.txt"}


def test_options_of_the_export_to_ctranslate2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "ours.pt", "translation", "postln")
    empty = tmp_path / "empty"
    empty.mkdir()
    for options, sentence in (
        (["--quantization", "int3"], "`--quantization` must be one of int8, "),
        (["--data", str(empty)], f"`--data` must be the folder with the model's dictionaries, but is {empty}"),
        (["--output", str(tmp_path)], f"`--output` must be a new or empty folder, but is {tmp_path}, which holds"),
        (["--to", "fairseq", "--quantization", "int8"], "`--quantization` must be left out with --to fairseq, but is"),
    ):
        assert to_ctranslate2(tmp_path, *options) == 1
        assert capsys.readouterr().err.startswith(f"lnplace: {sentence}")
    assert to_ctranslate2(tmp_path, "--quantization", "int8", "--output", str(empty)) == 0
    assert capsys.readouterr().out == f"{empty}: a model for CTranslate2's `Translator`, in int8\n"
    assert ctranslate2.contains_model(str(empty))
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert to_ctranslate2(tmp_path) == 1
    assert capsys.readouterr().err == "lnplace: CTranslate2 is not installed; `pip install ctranslate2` brings it\n"
    assert not (tmp_path / "ct").exists()
