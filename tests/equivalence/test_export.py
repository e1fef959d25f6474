"""`lnplace export --to fairseq`: stock's own model, given the exported checkpoint, computes what ours computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import utils
from fairseq.models import build_model
from helpers import KINDS, arguments, batch, fill_in, tiny_task
from omegaconf import OmegaConf
from torch import Tensor, nn

from fairseq_lnplace import placements
from fairseq_lnplace.cli import main
from fairseq_lnplace.compat import load_checkpoint
from fairseq_lnplace.models._method import MethodModel

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
    cfg = {"common": {"user_dir": "fairseq_lnplace"}, "model": {**vars(args), "_name": args.arch}}
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
