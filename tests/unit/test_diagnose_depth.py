"""`lnplace diagnose depth` and its surgery: against models rebuilt by hand, closed forms and the essay's claim."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig
from helpers import batch, tiny_model, tiny_task
from torch import nn

from fairseq_lnplace.cli import main
from fairseq_lnplace.corpus.words import Words
from fairseq_lnplace.diagnostics.bleu import bleu_rows
from fairseq_lnplace.diagnostics.plots import depth as plots
from fairseq_lnplace.diagnostics.subjects import Subject, from_architecture, settle
from fairseq_lnplace.diagnostics.text import batches, synthetic_text
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.evaluation import Decoding, Translator
from fairseq_lnplace.layers.streams import Batch, Streams
from fairseq_lnplace.measure.depth_tables import collapse_at_start, depth_tables, distance, effective_depth
from fairseq_lnplace.measure.stacks import stacks_of
from fairseq_lnplace.measure.surgery import borrowed_weights, merged, perturb, removed
from fairseq_lnplace.measure.trace import trace
from fairseq_lnplace.placements import names

TEXT = synthetic_text(words=40, sentences=60)
SIDES = {"transformer_": ("encoder", "decoder"), "transformer_lm_": ("decoder",), "bert_": ("encoder",)}


def subject(arch: str, *extra: str, layers: int = 3, dim: int = 16, tokens: int = 40) -> tuple[Subject, list[Any]]:
    prefix = next(prefix for prefix in ("transformer_lm_", "transformer_", "bert_") if arch.startswith(prefix))
    size = [f"--{side}-{name}={dim}" for side in SIDES[prefix] for name in ("embed-dim", "ffn-embed-dim")]
    made = from_architecture(f"{arch}_tiny", [*size, *extra], TEXT, 1, layers)
    samples = list(batches(TEXT, made.kind, 1, tokens, 1))
    settle(made, samples)
    return made, samples


def stack(model: Any, arch: str) -> Any:
    return model.encoder.sentence_encoder if arch.startswith("bert") else model.decoder


@pytest.mark.parametrize(
    "arch", ["transformer_postln", "transformer_lm_resi_dual", "bert_preln_final", "bert_realformer"]
)
def test_a_removed_layer_is_as_if_it_were_not_there(arch: str) -> None:
    made, (sample,) = subject(arch)
    side = stack(made.model, arch)
    with removed(side.layers[1]):
        without = trace(made, sample).loss
    whole = trace(made, sample).loss
    side.layers = nn.ModuleList([side.layers[0], side.layers[2]])
    assert without == pytest.approx(trace(made, sample).loss, rel=1e-6)
    assert without != pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("placement", ["preln_final", "postln", "resi_dual"])
def test_merged_layers_read_the_same(placement: str) -> None:
    made, (sample,) = subject(f"bert_{placement}", tokens=1)  # one sentence: no padding
    first, second, _ = made.model.encoder.sentence_encoder.layers
    made.model.eval()
    x = trace(made, sample).states["encoder"][0]
    streams = Streams(x.unsqueeze(0), None if placement != "resi_dual" else x.unsqueeze(0))
    with torch.no_grad():
        below, alone = first(streams, Batch()), second(streams, Batch())
    with merged(first, second):
        together = trace(made, sample)
    torch.testing.assert_close(together.states["encoder"][2], (below[0] + alone[0])[0] - x, atol=1e-5, rtol=1e-4)
    if placement == "preln_final":
        branches = sum(part.added for part in together.passages[:4])
        torch.testing.assert_close(together.states["encoder"][2], x + branches, atol=1e-5, rtol=1e-4)


def test_merge_error_is_of_what_the_layer_adds() -> None:
    made, samples = subject("bert_preln_final", tokens=1)
    first, second, _ = made.model.encoder.sentence_encoder.layers
    rows = depth_tables(made, samples, 1e-4)["layers"]
    made.model.eval()
    with torch.no_grad():
        x0 = trace(made, samples[0]).states["encoder"][0].unsqueeze(0)
        x1 = first(Streams(x0), Batch())[0]
        added, instead = second(Streams(x1), Batch())[0] - x1, second(Streams(x0), Batch())[0] - x0
    assert rows[0]["merge_error"] is None
    assert rows[1]["merge_error"] == pytest.approx(float((instead - added).norm() / added.norm()), rel=1e-3)


def test_angles_by_hand() -> None:
    x = torch.tensor([[1.0, 0.0]])
    assert distance(x, torch.tensor([[0.0, 3.0]])) == pytest.approx(0.5)
    assert distance(x, torch.tensor([[-2.0, 0.0]])) == pytest.approx(1)
    assert distance(x.repeat(2, 1), torch.tensor([[1.0, 1.0], [5.0, 0.0]])) == pytest.approx(0.125)


def test_effective_depth_by_hand() -> None:
    assert effective_depth([1.5, 0.5, 0.0]) == 2.5
    assert effective_depth([]) == 1


@pytest.mark.parametrize(("terms", "expected"), [(2, 0.586), (10, 0.103), (30, 0.034)])
def test_collapse_equals_a_simulation(terms: int, expected: float) -> None:
    assert collapse_at_start(terms) == pytest.approx(expected, abs=1e-3)


def test_rezero_starts_as_no_layer_at_all() -> None:
    made, samples = subject("transformer_lm_rezero")
    tables = depth_tables(made, samples, 1e-4)
    (whole,) = tables["stacks"]
    assert whole["effective_depth"] == 1
    for row in tables["layers"]:
        assert row["step"] == 0
        assert row["cosine"] == pytest.approx(1)
        assert row["loss_removed"] == pytest.approx(whole["loss"])
    assert all(row["dependency"] == row["collapse"] == 0 for row in tables["sublayers"])
    assert all(row["distance"] == pytest.approx(0, abs=1e-3) for row in tables["distances"])


def test_pre_ln_is_shallower_than_post_ln_at_the_start() -> None:
    """The essay's claim; the closed forms hold for uncorrelated terms of one size, so within a factor."""
    square = ("--no-token-positional-embeddings",)
    found = {}
    for placement in ("postln", "preln_final"):
        made, samples = subject(f"transformer_lm_{placement}", *square, layers=12, dim=48, tokens=150)
        found[placement] = depth_tables(made, samples, 1e-4)
    post, pre = found["postln"], found["preln_final"]
    assert post["stacks"][0]["effective_depth"] > 8
    assert pre["stacks"][0]["effective_depth"] < 0.75 * post["stacks"][0]["effective_depth"]
    for row in pre["layers"][3:]:
        assert 0.5 < row["step"] * math.sqrt(row["layer"]) < 1.5
        assert row["influence"] == pytest.approx(1 - row["cosine"])
    assert min(row["step"] for row in post["layers"]) > 0.5
    assert max(row["collapse"] for row in pre["sublayers"][-4:]) < min(
        max(row["collapse"] for row in post["sublayers"][-4:]), 4 * collapse_at_start(24)
    )
    dependency = {name: [row["dependency"] for row in tables["sublayers"]] for name, tables in found.items()}
    assert sum(dependency["postln"][-6:]) / 6 == pytest.approx(1 / 3, abs=0.12)  # of 1/3 (feed-forward) and 0 to 1/2
    assert sum(dependency["preln_final"][-6:]) / 6 < 0.12
    assert pre["stacks"][0]["output_change"] < post["stacks"][0]["output_change"]
    last = {name: [row for row in tables["distances"] if row["layer"] == 12] for name, tables in found.items()}
    assert last["preln_final"][0]["distance"] < last["postln"][0]["distance"]


def test_the_update_is_one_of_adam() -> None:
    made, samples = subject("bert_postln")
    (row,) = depth_tables(made, samples, 1e-3)["stacks"]
    moved, _ = subject("bert_postln")  # the same seed
    made.model.eval()
    moved.model.eval()
    loss, size, _ = moved.criterion(moved.model, samples[0])
    (loss / size).backward()
    with torch.no_grad():
        for parameter in moved.model.parameters():
            if parameter.grad is not None:
                parameter -= 1e-3 * parameter.grad / (parameter.grad.abs() + 1e-8)  # Adam's first step
        inputs = samples[0]["net_input"]
        outputs = [each.model(**inputs, features_only=True)[0] for each in (made, moved)]
    change = (outputs[1] - outputs[0])[inputs["src_tokens"].ne(1)]
    assert row["model_update"] == pytest.approx(float(change.square().mean().sqrt()), rel=1e-3)


def test_noise_is_relative_and_taken_back() -> None:
    made, _ = subject("transformer_postln")
    weight = made.model.decoder.layers[1].fc2.weight
    layers = [*made.model.encoder.layers, *made.model.decoder.layers]
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    with borrowed_weights(made.model, lambda: perturb(layers, 0.01, 3)):
        noise = weight.detach() - before["decoder.layers.1.fc2.weight"]
        assert float(noise.norm() / weight.detach().norm()) == pytest.approx(0.01, rel=0.15)
        assert torch.equal(made.model.decoder.embed_tokens.weight, before["decoder.embed_tokens.weight"])
    assert all(torch.equal(value, before[name]) for name, value in made.model.state_dict().items())


@pytest.mark.parametrize(("index", "placement"), enumerate(names()))
def test_every_placement_is_measured_and_left_as_it_was(index: int, placement: str) -> None:
    prefix = list(SIDES)[index % 3]
    made, samples = subject(prefix + placement, layers=2)
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    tables = depth_tables(made, samples, 1e-4)
    for rows in tables.values():
        assert {row["side"] for row in rows} == set(SIDES[prefix])
        assert all(math.isfinite(value) for row in rows for value in row.values() if isinstance(value, float))
    assert all(1 <= row["effective_depth"] <= 2 for row in tables["stacks"])
    assert all(torch.equal(value, before[name]) for name, value in made.model.state_dict().items())
    hooks = [(layer._forward_hooks, layer._forward_pre_hooks) for s in stacks_of(made.model).values() for layer in s]
    assert not any(either for pair in hooks for either in pair)
    assert made.model.training


def test_a_stack_of_one_layer() -> None:
    made, samples = subject("transformer_lm_postln", layers=1)
    tables = depth_tables(made, samples, 1e-4)
    assert [row["merge_error"] for row in tables["layers"]] == [None]
    assert tables["stacks"][0]["effective_depth"] == 1
    assert [(row["layer"], row["n"]) for row in tables["distances"]] == [(1, 1)]


def test_the_bleu_figure_has_a_line_for_each_operation() -> None:
    who = {"label": "x", "placement": "postln"}
    rows = [{**who, "side": None, "layer": None, "what": "whole", "bleu": 30.0}]
    rows += [{**who, "side": "decoder", "layer": layer, "what": "removed", "bleu": 10.0 * layer} for layer in (1, 2)]
    rows += [{**who, "side": "decoder", "layer": 2, "what": "merged", "bleu": 25.0}]
    (panel,) = plots.bleu_figure(rows, "title").axes
    removed_line, merged_line, whole = (list(line.get_ydata()) for line in panel.get_lines())
    assert (removed_line, merged_line, whole) == ([10, 20], [25], [30, 30])


def test_the_heat_map_shows_each_distance_at_its_place() -> None:
    who = {"label": "x", "placement": "postln", "side": "decoder"}
    rows = [{**who, "layer": low, "n": n, "distance": low / 10 + n / 100} for low, n in ((1, 1), (1, 2), (2, 1))]
    panel = plots.distance_figure(rows, "title").axes[0]
    (image,) = panel.get_images()
    grid = image.get_array()
    assert grid[1, 0] == pytest.approx(0.12)
    assert grid[0, 1] == pytest.approx(0.21)
    assert math.isnan(grid.filled(math.nan)[1, 1])
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("decoder layer l", "n")


def test_command_writes_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--arch", "transformer_lm_postln_tiny", "transformer_lm_preln_final_tiny", "--decoder-embed-dim=16"]
    words += ["--decoder-ffn-embed-dim=16", "--decoder-layers=2", "--batch-tokens", "20", "--dest", str(tmp_path)]
    assert main(["diagnose", "depth", *words]) == 0
    assert "effective depth" in capsys.readouterr().out
    pictures = {f"{name}.{kind}" for name in ("depth", "sublayers", "distances") for kind in ("png", "svg")}
    tables = {f"{name}.csv" for name in ("layers", "sublayers", "distances", "stacks")}
    assert {path.name for path in tmp_path.iterdir()} == pictures | tables | {"depth.json"}
    record = json.loads((tmp_path / "depth.json").read_text())
    assert [row["depth"] for row in record["stacks"]] == [2, 2]


def test_surgery_holds_while_decoding_step_by_step() -> None:
    """The hypotheses are those of a model that has no such layer."""
    found = []
    for by_hook in (True, False):
        model, task = tiny_model("postln", decoder_layers=3), tiny_task()
        generator = task.build_generator([model], GenerationConfig(beam=2, max_len_a=0, max_len_b=6))
        layers = model.decoder.layers
        if not by_hook:
            model.decoder.layers = nn.ModuleList([layers[0], layers[2]])
        with removed(layers[1]) if by_hook else nullcontext():
            found.append(task.inference_step(generator, [model], batch()))
    for ours, theirs in zip(*found, strict=True):
        assert [each["tokens"].tolist() for each in ours] == [each["tokens"].tolist() for each in theirs]
        assert [float(each["score"]) for each in ours] == pytest.approx([float(each["score"]) for each in theirs])


def test_bleu_is_scored_after_each_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = ["the cat sat on the mat", "a dog ran over the hill"]
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "test.en").write_text("\n".join(truth) + "\n", encoding="utf-8")
    model = tiny_model("preln_final").eval()
    inputs = batch()["net_input"]
    with torch.no_grad():
        whole = model(**inputs)[0]

    def translate(subset: str, decoding: Decoding) -> list[str]:
        with torch.no_grad():
            return truth if torch.equal(model(**inputs)[0], whole) else ["nothing of it", "is left"]

    stand_in = SimpleNamespace(
        model=model,
        task=SimpleNamespace(cfg=SimpleNamespace(target_lang="en")),
        translate=translate,
        detokenise=list,
        words=Words(),
    )
    monkeypatch.setattr(Translator, "load", lambda *args: stand_in)
    rows = bleu_rows(tmp_path / "x.pt", tmp_path, "test", Decoding())
    expected = [(None, None, "whole"), ("encoder", 1, "removed")]
    expected += [("encoder", layer, what) for layer in (2, 3) for what in ("removed", "merged")]
    expected += [("decoder", 1, "removed"), ("decoder", 2, "removed"), ("decoder", 2, "merged")]
    assert [(row["side"], row["layer"], row["what"]) for row in rows] == expected
    assert [row["bleu"] == pytest.approx(100) for row in rows] == [True] + 8 * [False]
    assert "version:" in rows[0]["signature"]
    with pytest.raises(LnplaceError, match="`--bleu` must be a split"):
        bleu_rows(tmp_path / "x.pt", tmp_path, "valid", Decoding())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--bleu", "test"], "`--bleu` must go with --checkpoint and --data"),
        (["--arch", "transformer", "--encoder-layers=1", "--decoder-layers=1"], "of this package's models"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "depth", "--batch-tokens", "9", *words]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert sentence in err
