"""`lnplace diagnose gradients`: against autograd on the whole, the paper's shape, and what it writes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from helpers import arguments, batch, dictionary, tiny_model

from fairseq_lnplace.cli import main
from fairseq_lnplace.commands.diagnose_gradients import ratios
from fairseq_lnplace.diagnostics.plots import gradients as plots
from fairseq_lnplace.diagnostics.subjects import Subject, from_architecture, from_checkpoint, settle
from fairseq_lnplace.diagnostics.tables import over_seeds
from fairseq_lnplace.diagnostics.text import Text, batches, read_text, synthetic_text
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.measure.gradient_rows import gradient_rows
from fairseq_lnplace.palette import style_of
from fairseq_lnplace.placements import names

TEXT = synthetic_text(words=40, sentences=60)
SIZE = {"embed-dim": 16, "ffn-embed-dim": 16, "layers": 2}
SMALL = {
    kind: [f"--{side}-{name}={value}" for side in sides for name, value in SIZE.items()]
    + ["--dropout=0", "--attention-dropout=0"]
    for kind, sides in {"translation": ("encoder", "decoder"), "lm": ("decoder",), "bert": ("encoder",)}.items()
}
PREFIX = {"translation": "transformer_", "lm": "transformer_lm_", "bert": "bert_"}


def subject(placement: str, kind: str = "translation", *extra: str, text: Text = TEXT) -> tuple[Subject, list[Any]]:
    made = from_architecture(f"{PREFIX[kind]}{placement}_tiny", [*SMALL[kind], *extra], text, 1)
    samples = list(batches(text, made.kind, 3, 40, 1))
    settle(made, samples)
    return made, samples


@pytest.mark.parametrize("kind", ["translation", "lm", "bert"])
def test_norms_equal_autograd_of_the_mean_loss(kind: str) -> None:
    made, samples = subject("postln", kind)
    rows = {(row["side"], row["layer"], row["matrix"]): row for row in gradient_rows(made, samples)}
    side = "decoder" if kind == "lm" else "encoder"
    stack = made.model.encoder.sentence_encoder if kind == "bert" else getattr(made.model, side)
    weight = stack.layers[1].fc2.weight
    losses = [made.loss(sample) for sample in samples]
    (of_mean,) = torch.autograd.grad(sum(losses) / 3, weight, retain_graph=True)
    each = [torch.autograd.grad(loss, weight, retain_graph=True)[0].norm() for loss in losses]
    assert rows[side, 2, "fc2"]["norm_of_mean"] == pytest.approx(float(of_mean.norm()), rel=1e-5)
    assert rows[side, 2, "fc2"]["mean_of_norms"] == pytest.approx(float(sum(each)) / 3, rel=1e-5)


def test_frozen_and_unused_matrices_have_no_norm_and_shared_ones_one_row() -> None:
    made, samples = subject("preln_final", "translation", "--share-all-embeddings")
    layer = made.model.encoder.layers[0]
    layer.fc1.weight.requires_grad_(False)
    made.model.unused = torch.nn.Linear(2, 2)
    rows = {(row["layer"], row["matrix"]): row for row in gradient_rows(made, samples) if row["side"] != "decoder"}
    assert rows[1, "fc1"]["norm_of_mean"] is None
    assert rows[None, "unused"]["mean_of_norms"] is None
    assert rows[2, "fc1"]["norm_of_mean"] > 0
    assert sum("embed_tokens" in matrix for _, matrix in rows) == 1


def test_a_gradient_that_is_not_a_number_is_a_null(tmp_path: Path) -> None:
    made, samples = subject("postln")
    with torch.no_grad():
        made.model.decoder.layers[1].fc2.weight[0, 0] = float("nan")
    rows = over_seeds([{"m": row["matrix"], **row} for row in gradient_rows(made, samples)], ["m"], ["norm_of_mean"])
    from fairseq_lnplace.diagnostics.tables import write

    write(tmp_path, "x", {}, {"rows": rows})
    assert json.loads((tmp_path / "x.json").read_text())["rows"][0]["norm_of_mean"] is None


@pytest.mark.parametrize("placement", names())
def test_every_placement_is_measured(placement: str) -> None:
    made, samples = subject(placement)
    rows = [row for row in gradient_rows(made, samples[:1]) if row["matrix"] in ("fc1", "fc2")]
    assert len(rows) == 8
    # ReZero's branches are times 0 at the start, so that their matrices get no gradient
    assert all((row["norm_of_mean"] > 0) == (placement != "rezero") for row in rows)


def test_the_figure_has_the_papers_shape() -> None:
    """Xiong et al., Figure 3: Post-LN rises towards the output, Pre-LN falls mildly and like 1/sqrt(L) with depth."""
    size = ["--encoder-embed-dim=32", "--encoder-ffn-embed-dim=64", "--dropout=0"]
    text = synthetic_text(words=200, sentences=300)

    def last_and_first(arch: str, depth: int) -> tuple[float, float]:
        found = []
        for seed in (1, 2, 3):
            made = from_architecture(f"transformer_{arch}_tiny", size, text, seed, layers=depth)
            rows = gradient_rows(made, list(batches(text, "translation", 2, 200, seed)))
            w2 = [row["norm_of_mean"] for row in rows if row["side"] == "decoder" and row["matrix"] == "fc2"]
            assert len(w2) == depth
            found.append((w2[-1], w2[0]))
        return sum(last for last, _ in found) / 3, sum(first for _, first in found) / 3

    post, pre = last_and_first("postln", 8), last_and_first("preln_final", 8)
    assert post[0] / post[1] > 5
    assert 0.3 < pre[0] / pre[1] < 1.1
    shallow_post, shallow_pre = last_and_first("postln", 2), last_and_first("preln_final", 2)
    assert post[0] / shallow_post[0] == pytest.approx(1, abs=0.3)
    # the stream starts at 3/2 d and gains 1 to 3/2 d a layer: sqrt((1.5 + 2 * 1.25) / (1.5 + 8 * 1.25)) = 0.59
    assert pre[0] / shallow_pre[0] == pytest.approx(0.59, abs=0.15)


def test_a_checkpoint_is_measured_as_it_was_trained(tmp_path: Path) -> None:
    text = Text("tiny", dictionary(), dictionary(), synthetic_text(words=12, sentences=9).pairs)
    model = tiny_model("deepnorm")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
    cfg = convert_namespace_to_omegaconf(arguments("transformer_deepnorm"))
    path = tmp_path / "run" / "checkpoint_4000.pt"
    path.parent.mkdir()
    history = [{"criterion_name": "x", "optimizer_name": "x", "lr_scheduler_state": {}, "num_updates": 4000}]
    extra = {"extra_state": {}, "optimizer_history": history}
    torch.save({"args": None, "cfg": cfg, "model": model.state_dict(), **extra}, path)
    made = from_checkpoint(path, text)
    assert (made.placement, made.state, made.kind) == ("deepnorm", "run/checkpoint_4000", "translation")
    assert made.label == "transformer_deepnorm, run/checkpoint_4000"
    sample = batch()
    made.model.eval()
    model.eval()
    torch.testing.assert_close(made.model(**sample["net_input"])[0], model(**sample["net_input"])[0])
    assert float(made.loss(sample).detach()) > 0
    with pytest.raises(LnplaceError, match="does not fit synthetic text"):
        from_checkpoint(path, synthetic_text(words=30))


def test_command_writes_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--arch", "transformer_postln_tiny", "transformer_lm_preln_final_tiny", "--depths", "1", "2"]
    sizes = ["--decoder-embed-dim=16", "--decoder-ffn-embed-dim=16", "--decoder-layers=1"]
    sizes += ["--batches=1", "--batch-tokens=20"]
    assert main(["diagnose", "gradients", *words, *sizes, "--seeds", "2", "--dest", str(tmp_path / "a b")]) == 0
    assert "transformer_postln_tiny" in capsys.readouterr().out
    written = {path.name for path in (tmp_path / "a b").iterdir()}
    pictures = {"gradients.png", "gradients.svg", "depths.png", "depths.svg"}
    assert written == pictures | {"gradients.json", "gradients.csv", "gradients_by_seed.csv", "depths.csv"}
    record = json.loads((tmp_path / "a b" / "gradients.json").read_text())
    assert record["fairseq_options"][0] == "--decoder-embed-dim=16"
    assert [(row["side"], row["depth"]) for row in record["depths"]] == [("decoder", depth) for depth in (1, 1, 2, 2)]
    with (tmp_path / "a b" / "gradients_by_seed.csv").open() as file:
        rows = [
            row for row in csv.DictReader(file) if row["matrix"] == "fc2" and row["label"].startswith("transformer_lm")
        ]
    by_seed = [float(row["norm_of_mean"]) for row in rows]
    (mean,) = (
        row for row in record["gradients"] if row["matrix"] == "fc2" and row["label"].startswith("transformer_lm")
    )
    assert len(by_seed) == 2
    assert mean["norm_of_mean"] == pytest.approx(sum(by_seed) / 2)
    assert mean["norm_of_mean_std"] == pytest.approx(abs(by_seed[0] - by_seed[1]) / 2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--arch", "transfomer"], "`--arch` must be an architecture"),
        (["--arch", "transformer_postln_tiny", "--bogus", "1"], "unrecognized arguments: --bogus 1"),
        (["--data", "nowhere"], "`--data` must be a folder"),
        (["--checkpoint", "nowhere.pt"], "nowhere.pt cannot be read"),
        (["--checkpoint", "nowhere.pt", "--batchs", "9"], "`--batchs` must be left out without --arch"),
        (["--checkpoint", "a/x.pt", "b/a/x.pt"], "`--checkpoint` must be files that differ"),
        (["--checkpoint", "x.pt", "--depths", "2"], "`--depths` must go with --arch"),
        (["--dest", __file__], "`--dest` must be a folder"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "gradients", "--batch-tokens", "9", "--batches", "1", *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


def rows_of(placement: str, values: list[float]) -> list[dict[str, Any]]:
    who = {"label": f"arch {placement}", "placement": placement, "state": "initialisation", "side": "decoder"}
    return [
        {**who, "layer": layer, "matrix": "fc2", "norm_of_mean": value, "mean_of_norms": value, "norm_of_mean_std": 0.1}
        for layer, value in enumerate(values, 1)
    ]


def test_figure_draws_ours_beside_the_papers_values() -> None:
    rows = rows_of("postln", [0.1, 0.2, 0.3, 0.6, 1.0, 1.7]) + rows_of("preln_final", [0.5, 0.4, 0.4, 0.4, 0.3, 0.3])
    figure = plots.gradient_figure(rows, "title", with_paper=True)
    panel = figure.axes[1]
    drawn = {line.get_label(): list(line.get_ydata()) for line in panel.get_lines()}
    assert drawn["arch postln"] == [0.1, 0.2, 0.3, 0.6, 1.0, 1.7]
    assert drawn["paper: postln, initialisation"] == [0.13, 0.20, 0.37, 0.58, 1.10, 1.66]
    assert drawn["paper: preln_final, initialisation"][-1] == 0.29
    assert drawn["paper: postln, after warm-up"] == [0.015, 0.015, 0.015, 0.017, 0.013, 0.014]
    assert len(panel.collections) == 2  # the bands
    assert panel.get_xlabel() == "decoder layer"
    assert "nats" in panel.get_ylabel()


def test_ratios_stand_beside_the_papers() -> None:
    post, pre = ratios(rows_of("postln", [1, 2, 3, 4, 5, 8]) + rows_of("preln_final", [4, 3, 3, 3, 3, 2]))
    assert (post["fc2"], pre["fc2"]) == (8, 0.5)
    assert post["paper"] == pytest.approx(12.8, abs=0.05)
    assert pre["paper"] == pytest.approx(0.52, abs=0.005)


def test_every_placement_has_a_look_of_its_own() -> None:
    styles = [style_of(name) for name in names()]
    assert len({style["color"] for style in styles}) == len(styles)
    assert len({(style["marker"], style["linestyle"]) for style in styles}) == len(styles)
    assert style_of("a user's own")["color"] not in {style["color"] for style in styles}


def test_text_is_read_from_prepared_folders(tmp_path: Path) -> None:
    from fairseq.data import indexed_dataset

    symbols = dictionary()
    for language in ("de", "en"):
        symbols.save(str(tmp_path / f"dict.{language}.txt"))
        builder = indexed_dataset.make_builder(
            str(tmp_path / f"train.de-en.{language}.bin"), impl="mmap", vocab_size=20
        )
        for sentence in ([5, 6, 2], [7, 8, 9, 2]):
            builder.add_item(torch.tensor(sentence + ([4, 2] if language == "en" else [])))
        builder.finalize(str(tmp_path / f"train.de-en.{language}.idx"))
    text = read_text(tmp_path)
    assert [pair[1].tolist() for pair in text.pairs] == [[5, 6, 2, 4, 2], [7, 8, 9, 2, 4, 2]]
    (sample,) = batches(text, "lm", 1, 8, 1)
    source, target = sample["net_input"]["src_tokens"], sample["target"]
    assert torch.equal(source[:, 1:][source[:, 1:] != 1], target[:, :-1][source[:, 1:] != 1])
    assert sample["ntokens"] == int(target.ne(1).sum()) == 11
