"""`--log-layer-stats`: each number against autograd and copies of the weights, in every way that fairseq trains."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from helpers import KINDS, arguments, sample_of, tiny_model, tiny_trainer
from torch import Tensor, nn

from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.layers.streams import Batch, Streams
from fairseq_lnplace.measure.layer_stats import Row, read_layer_stats
from fairseq_lnplace.measure.taps import tapped
from fairseq_lnplace.plugin.compiling import eager

# the parts of a layer by the beginnings of their parameters' names
PARTS = {
    "SA": ("self_attn",),
    "CA": ("encoder_attn",),
    "FF": ("fc1", "fc2", "ffn_layernorm", "final_layer_norm"),
    "scale": ("layer_scale",),
}
BATCHES = {"source": (5, 3, 7), "target": (4, 6, 2)}, {"source": (2, 7), "target": (6, 3), "seed": 2}


def samples(kind: str = "translation") -> list[dict[str, Any]]:
    return [sample_of(kind, **sizes) for sizes in BATCHES]


def train(trainer: Trainer, kind: str = "translation", updates: int = 1) -> list[float]:
    """Make updates of both batches each; return what fairseq logs as their gnorm."""
    gnorms = []
    for _ in range(updates):
        with metrics.aggregate(new_root=True) as logged:
            trainer.train_step(samples(kind))
        gnorms += [float(logged["gnorm"].avg)] if "gnorm" in logged else []
    return gnorms


def rows_of(folder: Path) -> list[Row]:
    return read_layer_stats(folder / "layer_stats.jsonl")


def norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


@pytest.mark.parametrize(
    ("kind", "placement", "prefix"),
    [("translation", "normformer", ""), ("lm", "postln", ""), ("bert", "preln_final", "sentence_encoder.")],
)
def test_norms_of_a_layers_parts(kind: str, placement: str, prefix: str, tmp_path: Path) -> None:
    """Two batches accumulate, and the gradient is clipped to a tenth."""
    trainer = tiny_trainer(tmp_path, placement, kind, log_layer_stats=1, clip_norm=0.1)
    before = deepcopy(trainer.get_model())
    losses, sizes, _ = zip(*(trainer.criterion(before, sample) for sample in samples(kind)), strict=True)
    (sum(losses) / sum(sizes)).backward()
    (gnorm,) = train(trainer, kind)
    after = dict(trainer.get_model().named_parameters())
    rows = [row for row in rows_of(tmp_path) if row.layer]
    assert len(rows) == {"translation": 3 * 2 + 2 * 3, "lm": 3 * 2, "bert": 3 * 2}[kind]
    assert gnorm > 1
    for row in rows:
        start = f"{row.side}.{prefix}layers.{row.layer - 1}."
        own = {
            name: parameter
            for name, parameter in before.named_parameters()
            if name.startswith(tuple(start + each for each in PARTS[row.part]))
        }
        assert row.gradient == pytest.approx(norm([each.grad for each in own.values()]), rel=1e-4)
        assert row.weight == pytest.approx(norm(list(own.values())), rel=1e-5)
        assert row.update == pytest.approx(norm([after[name] - own[name] for name in own]), rel=1e-5)
        assert row.update == pytest.approx(0.1 * row.gradient * 0.1 / gnorm, rel=1e-3), "SGD's, clipped"


@pytest.mark.parametrize("placement", ["postln", "preln_final"])
def test_activations_are_those_of_real_positions(placement: str, tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, placement, log_layer_stats=1)
    trainer.get_model().decoder.need_states_in_training = True
    squares: dict[str, list[Tensor]] = {}
    for sample in samples():
        inputs, model = sample["net_input"], trainer.get_model()
        encoded = model.encoder(inputs["src_tokens"], inputs["src_lengths"], return_all_hiddens=True)
        _, extra = model.decoder(inputs["prev_output_tokens"], encoded)
        for side, states, tokens in (
            ("encoder", [*encoded["encoder_states"], *encoded["encoder_out"]], inputs["src_tokens"]),
            ("decoder", extra["inner_states"], inputs["prev_output_tokens"]),
        ):
            for depth, state in enumerate(states):  # T x B x C
                real = state.transpose(0, 1)[tokens.ne(1)].double()
                squares.setdefault(f"{side}{depth}", []).append(real.square().mean(-1))
    train(trainer)
    found = {(row.side, row.layer, row.part): row.activation for row in rows_of(tmp_path)}
    for side, depth in (("encoder", 3), ("decoder", 2)):
        for layer in range(depth + 1):
            place = (side, layer, "FF") if layer else (side, None, "embedding")
            assert found[place] == pytest.approx(float(torch.cat(squares[f"{side}{layer}"]).mean()), rel=1e-5)
    if placement == "preln_final":
        assert found["encoder", None, "final_norm"] == pytest.approx(
            float(torch.cat(squares["encoder4"]).mean()), rel=1e-5
        )
    else:
        assert found["decoder", 1, "CA"] == pytest.approx(1, rel=1e-3)
        assert ("encoder", None, "final_norm") not in found


@pytest.mark.parametrize(
    ("kind", "placement", "options"),
    [
        ("translation", "preln_final", {"share_all_embeddings": True}),
        ("translation", "preln_final", {"encoder_learned_pos": True, "layernorm_embedding": True}),
        ("translation", "postln", {"encoder_layers": 1, "decoder_layers": 1}),
        ("translation", "rezero", {}),
        ("translation", "dlcl", {}),
        ("translation", "resi_dual", {}),
        ("translation", "preln_final", {"checkpoint_activations": True}),
        ("lm", "gpas", {}),
        ("lm", "preln_final", {"adaptive_softmax_cutoff": "6", "criterion": "adaptive_loss", "ddp_backend": "no_c10d"}),
        ("lm", "preln_final", {"share_decoder_input_output_embed": True}),
        ("bert", "postln", {}),
    ],
)
def test_squares_sum_to_that_of_the_whole_gradient(
    kind: str, placement: str, options: dict[str, Any], tmp_path: Path
) -> None:
    trainer = tiny_trainer(tmp_path, placement, kind, log_layer_stats=1, **options)
    gnorms = train(trainer, kind, 2)
    rows = rows_of(tmp_path)
    for updates, gnorm in enumerate(gnorms, start=1):
        own = [row for row in rows if row.updates == updates]
        assert math.hypot(*(row.gradient for row in own)) == pytest.approx(gnorm, rel=1e-5)
        assert len({(row.side, row.layer, row.part) for row in own}) == len(own)
    total = math.hypot(*(row.weight for row in rows if row.updates == 1))
    assert total == pytest.approx(norm(list(tiny_model(placement, kind, **options).parameters())), rel=1e-5)


def test_a_shared_embedding_counts_where_it_comes_first(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final", log_layer_stats=1, share_all_embeddings=True)
    weight = norm([trainer.get_model().encoder.embed_tokens.weight])
    train(trainer)
    found = {row.side: row for row in rows_of(tmp_path) if row.part == "embedding"}
    assert found["encoder"].weight == pytest.approx(weight, rel=1e-6)
    assert (found["decoder"].weight, found["decoder"].gradient, found["decoder"].update) == (0, 0, 0)
    assert found["decoder"].activation is not None
    assert not any(row.part == "output" for row in rows_of(tmp_path))


def test_what_is_frozen_or_has_no_gradient(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final", log_layer_stats=1, encoder_layerdrop=1)
    trainer.get_model().decoder.layers[0].fc1.requires_grad_(False)
    trainer.get_model().decoder.layers[1].encoder_attn.requires_grad_(False)
    trainer.get_model().decoder.layers[1].encoder_attn_layer_norm.requires_grad_(False)
    (gnorm,) = train(trainer)
    rows = rows_of(tmp_path)
    assert math.hypot(*(row.gradient for row in rows)) == pytest.approx(gnorm, rel=1e-5)
    for row in rows:
        if row.side == "encoder" and row.layer:  # every layer is dropped
            assert (row.gradient, row.update, row.activation) == (0, 0, None)
        if (row.side, row.layer, row.part) == ("decoder", 2, "CA"):
            assert (row.gradient, row.update) == (0, 0)
            assert row.activation
        if (row.side, row.layer, row.part) == ("decoder", 1, "FF"):
            assert row.gradient > 0, "of fc2 and the norm"
        assert row.weight > 0


HALF = {
    "bf16": {"bf16": True},
    "bf16, in place": {"bf16": True, "memory_efficient_bf16": True, "optimizer": "adam"},
    "fp16": {"fp16": True},
    "fp16, not flat": {"fp16": True, "fp16_no_flatten_grads": True},
    "fp16, in place": {"fp16": True, "memory_efficient_fp16": True, "optimizer": "adam"},
}


@pytest.mark.usefixtures("no_gpu_needed")
@pytest.mark.parametrize("options", HALF.values(), ids=HALF)
def test_half_precision(options: dict[str, Any], tmp_path: Path) -> None:
    """Gradients without the loss scale, before clipping; updates of fairseq's 32-bit weights where it has some."""
    given = {"fp16_init_scale": 4, "clip_norm": 0.5, "lr": [1e-3], "log_layer_stats": 1, **options}
    trainer = tiny_trainer(tmp_path, "preln_final", **given)
    (gnorm,) = train(trainer)
    rows = rows_of(tmp_path)
    assert math.hypot(*(row.gradient for row in rows)) == pytest.approx(gnorm, rel=1e-5)
    assert gnorm > 1
    if "optimizer" not in options:  # SGD: too small a step for a half-precision weight to move by it
        for row in rows:
            assert row.update == pytest.approx(1e-3 * row.gradient * 0.5 / gnorm, rel=1e-2, abs=1e-8)


@pytest.mark.usefixtures("no_gpu_needed")
def test_an_overflow_of_the_loss_scale_is_no_update(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final", fp16=True, fp16_init_scale=2**20, log_layer_stats=1)
    gnorms = train(trainer, updates=12)
    rows = rows_of(tmp_path)
    assert 0 < trainer.get_num_updates() == len(gnorms) < 12
    assert sorted({row.updates for row in rows}) == list(range(1, len(gnorms) + 1))
    assert math.hypot(*(row.gradient for row in rows if row.updates == 1)) == pytest.approx(gnorms[0], rel=1e-5)


def test_an_overflow_under_amp_is_measured_when_it_is_made_up_for(tmp_path: Path) -> None:
    """fairseq tries the same batch again, from inside."""
    trainer = tiny_trainer(tmp_path, "preln_final", amp=True, log_layer_stats=1)
    trainer.optimizer._grad_scaler = torch.amp.GradScaler("cpu", init_scale=8)
    calls: list[int] = []

    def spoil(_: Any, __: Any, result: Tensor) -> Tensor:
        calls.append(1)
        return result * math.inf if len(calls) == 1 else result

    trainer.get_model().decoder.layers[0].fc2.register_forward_hook(spoil)
    (gnorm,) = train(trainer)
    rows = rows_of(tmp_path)
    assert len(calls) == 4
    assert len(rows) == 17
    assert math.hypot(*(row.gradient for row in rows)) == pytest.approx(gnorm, rel=1e-5)


def test_every_nth_update_and_no_other(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final", log_layer_stats=3)
    train(trainer, updates=7)
    assert sorted({row.updates for row in rows_of(tmp_path)}) == [3, 6]
    model = trainer.get_model()
    assert not any("leave" in vars(module) or "begin" in vars(module) for module in model.modules())


def test_nothing_is_there_when_it_is_off(tmp_path: Path) -> None:
    for options in ({}, {"log_layer_stats": 0}):
        trainer = tiny_trainer(tmp_path, "preln_final", **options)
        assert not {"train_step", "clip_grad_norm"} & vars(trainer).keys()
        train(trainer)
    assert not list(tmp_path.iterdir())


def test_measuring_leaves_the_training_as_it_is(tmp_path: Path) -> None:
    def trained(every: int) -> dict[str, Tensor]:
        trainer = tiny_trainer(tmp_path, "preln_final", dropout=0.3, clip_norm=0.5, log_layer_stats=every)
        train(trainer, updates=3)
        return dict(trainer.get_model().named_parameters())

    plain, measured = trained(0), trained(1)
    for name, tensor in plain.items():
        assert torch.equal(tensor, measured[name]), name


def test_fairseqs_log_has_one_number_of_each_kind_a_layer(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, "rezero", log_layer_stats=1)
    with metrics.aggregate(new_root=True) as logged:
        trainer.train_step(samples())
    layers = ("enc1", "enc2", "enc3", "dec1", "dec2")
    values = logged.get_smoothed_values()
    assert list(values)[-15:] == [f"{name}_{layer}" for name in ("gnorm", "act", "update") for layer in layers]
    parts = [row for row in rows_of(tmp_path) if (row.side, row.layer) == ("decoder", 2)]
    assert {row.part for row in parts} == {"SA", "CA", "FF", "scale"}
    assert values["gnorm_dec2"] == pytest.approx(math.hypot(*(row.gradient for row in parts)), abs=1e-6)
    assert values["update_dec2"] == pytest.approx(math.hypot(*(row.update for row in parts)), abs=1e-6)
    assert [values["act_dec2"]] == pytest.approx([row.activation for row in parts if row.part == "FF"], abs=1e-6)


def row(updates: int, gradient: float = 1.0) -> str:
    return json.dumps(vars(Row(updates, "encoder", 1, "SA", gradient, None, 1.0, 1.0))) + "\n"


def test_a_training_that_went_back_leaves_no_row_twice(tmp_path: Path) -> None:
    path = tmp_path / "layer_stats.jsonl"
    path.write_text(row(1) + row(2, 5.0) + row(3) + row(4)[:20])  # ended while it wrote the fourth
    trainer = tiny_trainer(tmp_path, "preln_final", log_layer_stats=1)
    trainer.set_num_updates(1)  # as the checkpoint says
    train(trainer, updates=2)
    updates = [row.updates for row in rows_of(tmp_path)]
    assert updates == sorted(updates)
    assert set(updates) == {1, 2, 3}
    assert len(updates) == 1 + 2 * 17
    assert all(row.gradient != 5 for row in rows_of(tmp_path))


def test_reader(tmp_path: Path) -> None:
    path = tmp_path / "layer_stats.jsonl"
    assert read_layer_stats(path) == []
    path.write_text(row(1) + row(2) + row(3)[:-1])
    assert [row.updates for row in read_layer_stats(path)] == [1, 2]
    path.write_text(row(1) + "{}\n" + row(2))
    with pytest.raises(LnplaceError, match="line 2 is no row"):
        tiny_trainer(tmp_path, "preln_final", log_layer_stats=1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_has_the_option(kind: str) -> None:
    assert arguments(KINDS[kind][1] + "preln_final", kind, log_layer_stats=7).log_layer_stats == 7
    with pytest.raises(LnplaceError, match="`--log-layer-stats` must be at least 0, but is -1"):
        tiny_model("preln_final", kind, log_layer_stats=-1)


@pytest.mark.parametrize("options", [{"use_bmuf": True}, {"ddp_backend": "slowmo"}])
def test_ranks_with_gradients_of_their_own_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(LnplaceError, match="`--log-layer-stats` must be left out with --"):
        tiny_trainer(tmp_path, "preln_final", log_layer_stats=1, **options)


def test_a_compiled_layer_runs_as_it_is_written_while_it_is_watched() -> None:
    (layer, *_) = tiny_model("preln_final").encoder.layers
    layer.compiles, layer._compiled_call_impl = True, lambda *args: "compiled"
    x = Streams(torch.ones(1, 2, 8)), Batch()
    seen: list[Any] = []
    with eager([layer]), tapped(layer.final_layer_norm, "leave", lambda *call: seen.append(call)):
        layer.train()  # as fairseq's trainer does at the start of each update
        assert isinstance(layer(*x)[0], Tensor)
    assert len(seen) == 1
    assert layer.compiles
    assert layer(*x) == "compiled"


def test_compiled_layers_are_measured(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final", log_layer_stats=1)
    for layer in trainer.get_model().encoder.layers:
        layer.compiles, layer._compiled_call_impl = True, lambda *args: pytest.fail("runs compiled")
    train(trainer)
    assert all(row.activation for row in rows_of(tmp_path) if row.layer)


def test_taps_may_stand_on_each_other() -> None:
    module, seen = nn.Identity(), []
    with tapped(module, "forward", lambda *_: seen.append("outer")):
        with tapped(module, "forward", lambda *_: seen.append("inner")):
            module(1)
        module(2)
    module(3)
    assert seen == ["outer", "inner", "outer"]
    assert "forward" not in vars(module)
