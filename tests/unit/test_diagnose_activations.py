"""`lnplace diagnose activations` and the probes: against fairseq's own hidden states and Lemma 2."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import layer_norm

from fairseq_lnplace.cli import main
from fairseq_lnplace.diagnostics.plots import activations as plots
from fairseq_lnplace.diagnostics.subjects import Subject, from_architecture, settle
from fairseq_lnplace.diagnostics.text import batches, synthetic_text
from fairseq_lnplace.measure.activation_rows import activation_rows, outside, pre_bounds
from fairseq_lnplace.measure.trace import trace
from fairseq_lnplace.placements import names

TEXT = synthetic_text(words=40, sentences=60)
SIDES = {"transformer_": ("encoder", "decoder"), "transformer_lm_": ("decoder",), "bert_": ("encoder",)}


def subject(arch: str, *extra: str, dim: int = 16, layers: int = 2, tokens: int = 40) -> tuple[Subject, list[Any]]:
    prefix = next(prefix for prefix in ("transformer_lm_", "transformer_", "bert_") if arch.startswith(prefix))
    size = [f"--{side}-{name}={dim}" for side in SIDES[prefix] for name in ("embed-dim", "ffn-embed-dim")]
    made = from_architecture(f"{arch}_tiny", [*size, *extra], TEXT, 1, layers)
    samples = list(batches(TEXT, made.kind, 2, tokens, 1))
    settle(made, samples)
    return made, samples


@pytest.mark.parametrize("arch", ["transformer_postln", "transformer_resi_dual", "transformer_lm_dlcl"])
def test_states_are_those_that_fairseq_returns(arch: str) -> None:
    made, (sample, _) = subject(arch)
    found = trace(made, sample)
    made.model.eval()
    tokens = sample["net_input"].get("prev_output_tokens", sample["net_input"]["src_tokens"])
    theirs = made.model(**sample["net_input"])[1]["inner_states"]
    if arch == "transformer_lm_dlcl":  # fairseq's first state is the embedding, before the layers are combined
        theirs = [theirs[0], theirs[1]]
    for ours, state in zip(found.states["decoder"], theirs, strict=False):
        torch.testing.assert_close(ours, state.transpose(0, 1)[tokens.ne(1)])


def test_passages_are_the_parts_of_the_equation() -> None:
    made, (sample, _) = subject("transformer_postln")
    outputs: list[torch.Tensor] = []
    made.model.decoder.layers[1].fc2.register_forward_hook(lambda module, args, result: outputs.append(result))
    found = trace(made, sample)
    last = found.layer("decoder", 1)[-1]
    real = sample["net_input"]["prev_output_tokens"].ne(1)
    assert [passage.branch for passage in found.layer("decoder", 1)] == ["SA", "CA", "FF"]
    torch.testing.assert_close(last.added, outputs[0][real], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(last.after, layer_norm(last.summed, [16]), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(last.skip, found.layer("decoder", 1)[1].after)


def test_scales_are_in_the_passages() -> None:
    made, (sample, _) = subject("bert_deepnorm")
    first, second = trace(made, sample).layer("encoder", 0)
    torch.testing.assert_close(second.skip, first.after * (2 * 2) ** 0.25)  # (2N)^(1/4), N = 2
    made, (sample, _) = subject("transformer_lm_b2t")
    _, last = trace(made, sample).layer("decoder", 0)
    found = trace(made, sample)
    torch.testing.assert_close(last.skip, found.layer("decoder", 0)[0].after + found.states["decoder"][0])
    made, (sample, _) = subject("transformer_lm_gpas")
    with torch.no_grad():
        made.model.decoder.layers[0].layer_scale.fill_(2.0)
    first, second = trace(made, sample).layer("decoder", 0)
    shrunk = 1 - 2 / (1 + math.exp(-2))
    torch.testing.assert_close(first.after, shrunk * first.summed, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(second.skip, first.after)


@pytest.mark.parametrize("placement", names())
@pytest.mark.parametrize("prefix", SIDES)
def test_every_placement_of_every_kind_is_seen_through_and_left_as_it_was(placement: str, prefix: str) -> None:
    made, samples = subject(prefix + placement)
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    hooks = [dict(module._forward_hooks) for module in made.model.modules()]
    rows = activation_rows(made, samples[:1], 0.1)
    assert {(row["side"], row["layer"]) for row in rows} == {(side, n) for side in SIDES[prefix] for n in range(3)}
    assert all(math.isfinite(row["stream"]) and 0 <= row["delta"] <= 1 for row in rows)
    found = trace(made, samples[0])
    if placement != "dlcl":  # its layers read more than the layer below
        for side in SIDES[prefix]:
            for layer in range(2):
                torch.testing.assert_close(found.states[side][layer + 1], found.layer(side, layer)[-1].after)
    assert made.model.training
    assert hooks == [dict(module._forward_hooks) for module in made.model.modules()]
    assert not any({"leave", "skip", "normalize"} & vars(module).keys() for module in made.model.modules())
    for name, value in made.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_sizes_obey_lemma_2() -> None:
    """Square matrices, embeddings of norm √d, no positions, two sub-layers: the lemma's set-up but for the heads."""
    lemma = ("--no-token-positional-embeddings", "--dropout=0")
    made, samples = subject("transformer_lm_postln", *lemma, dim=64, layers=6, tokens=300)
    post = activation_rows(made, samples, 0.1)
    made, samples = subject("transformer_lm_preln_final", *lemma, dim=64, layers=6, tokens=300)
    pre = activation_rows(made, samples, 0.1)
    for row in post[1:]:
        assert row["stream"] == pytest.approx(1, abs=1e-3)
        assert row["inner"] == pytest.approx(1.5, abs=0.2)
    for row in pre:
        low, high = pre_bounds(row["layer"])
        assert low * 0.85 < row["stream"] < high * 1.15
        assert row["inner"] is None or row["inner"] == pytest.approx(row["stream"])
    growth = [row["growth"] for row in pre[1:]]
    assert math.prod(growth) == pytest.approx(pre[-1]["stream"] / pre[0]["stream"])
    assert max(growth[2:]) < growth[0]


def test_delta_by_hand() -> None:
    squares = torch.tensor([1.0, 1.0, 1.0, 5.0])  # mean 2
    assert outside(squares, 0.1) == 1
    assert outside(squares, 0.6) == 0.25
    assert outside(squares, 2.0) == 0


def test_the_figure_has_the_lemmas_lines() -> None:
    who = {"label": "x", "placement": "postln", "side": "encoder", "growth": None, "variance": 1.0}
    rows = [{**who, "layer": n, "stream": 1.0, "inner": 1.5 if n else None, "delta": 0.1} for n in range(3)]
    stream, inner, _ = plots.activation_figure(rows, "title", 0.1).axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in stream.get_lines()}
    assert drawn["Lemma 2, Pre-LN: 1 + l/2"] == [1, 1.5, 2]
    assert drawn["Lemma 2, Pre-LN: 1 + 3l/2"] == [1, 2.5, 4]
    assert list(inner.get_lines()[0].get_xdata()) == [1, 2]
    assert 1.5 in inner.get_lines()[-1].get_ydata()


def test_command_writes_tables_and_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--arch", "transformer_lm_postln_tiny", "--decoder-embed-dim=16", "--decoder-ffn-embed-dim=16"]
    words += ["--batches", "1", "--batch-tokens", "20", "--json", "--dest", str(tmp_path)]
    assert main(["diagnose", "activations", *words]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["layer"] for row in printed["activations"]] == [0, 1, 2, 3]
    names = {"activations.json", "activations.csv", "activations_by_seed.csv", "activations.png", "activations.svg"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--arch", "transformer", "--encoder-layers=1", "--decoder-layers=1"], "of this package's models"),
        (["--arch", "bert_nowhere"], "`--arch` must be"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "activations", "--batch-tokens", "9", "--batches", "1", *words]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert sentence in err
