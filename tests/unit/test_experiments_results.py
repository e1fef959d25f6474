from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fairseq_lnplace.experiments.results import curves, draw, markdown, record_of, table
from fairseq_lnplace.runs.records import Evaluation
from fairseq_lnplace.runs.trained_run import TrainedRun
from fairseq_lnplace.runs.training_log import TrainingLog


def record(title: str, arch: str, losses: list[float], bleu: list[float], state: str = "finished") -> dict[str, Any]:
    """A record with a validation every half epoch, BLEU for each whole one, and on the test set one more than last."""
    signatures = ["bleu signature", "chrf signature"]
    scores = [
        {"subset": "valid", "epoch": epoch, "beam": 1, "bleu": score, "chrf": 2 * score, "signatures": signatures}
        for epoch, score in reversed(list(enumerate(bleu, 1)))
    ]
    if bleu:
        test = {"subset": "test", "epoch": None, "beam": 5, "bleu": bleu[-1] + 1, "chrf": 30.0}
        scores.append({**test, "signatures": signatures})
    valid = [{"epoch": (i + 1) / 2, "updates": i, "loss": loss, "ppl": 2**loss} for i, loss in enumerate(losses)]
    return {
        "name": title,
        "title": title,
        "arch": arch,
        "state": state,
        "updates": 40,
        "seconds": 90,
        "valid": valid,
    } | {"scores": scores}


@pytest.fixture
def records() -> list[dict[str, Any]]:
    return [
        record("Pre", "transformer_preln_final_tiny", [5.0, 4.0, 4.5, 4.25], [9.0, 11.04]),
        record("Post", "transformer_postln_tiny", [6.0, 5.5], [1.0], "diverged"),
    ]


def test_a_run_becomes_a_record(tmp_path: Path) -> None:
    row = {"epoch": 0.5, "updates": 10.0, "loss": 6.0, "nll_loss": 5.0, "ppl": 32.0, "wps": 9.0}
    log = TrainingLog([{"updates": 10.0}], [row], 30.04)
    scores = {"bleu": 3.0, "chrf": 20.0}
    evaluation = Evaluation(tmp_path, "valid", "checkpoint1.pt", 1, {"beam": 1}, scores, {"bleu": "B", "chrf": "C"})
    arch = "transformer_preln_tiny"
    run = TrainedRun(tmp_path, "pre", "Pre-LN", arch, "preln", 1, "fairseq-train", {}, "failed", log, (evaluation,))
    assert record_of(run) == {
        "name": "pre",
        "title": "Pre-LN",
        "arch": "transformer_preln_tiny",
        "state": "failed",
        "folder": tmp_path.name,
        "command": "fairseq-train",
        "updates": 10,
        "seconds": 30.0,
        "valid": [{"epoch": 0.5, "updates": 10.0, "loss": 6.0, "nll_loss": 5.0, "ppl": 32.0}],
        "scores": [{"subset": "valid", "epoch": 1, "beam": 1, "bleu": 3.0, "chrf": 20.0, "signatures": ["B", "C"]}],
    }


def test_the_table_shows_the_best_loss_and_the_test_score(records: list[dict[str, Any]]) -> None:
    assert markdown(records) == (
        "| model | updates | valid loss | valid ppl | BLEU | chrF | minutes |\n"
        "| --- | --: | --: | --: | --: | --: | --: |\n"
        "| Pre | 40 | 4.00 | 16.0 | 12.0 | 30.0 | 1.5 |\n"
        "| Post (diverged) | 40 | 5.50 | 45.3 | 2.0 | 30.0 | 1.5 |\n"
    )


def test_the_table_without_scores_or_losses(records: list[dict[str, Any]]) -> None:
    for each in records:
        each["scores"] = []
    records[1]["valid"] = []
    assert markdown(records).splitlines()[0] == "| model | updates | valid loss | valid ppl | minutes |"
    assert markdown(records).splitlines()[-1] == "| Post (diverged) | 40 | - | - | 1.5 |"


def test_the_table_fits_a_narrow_terminal(records: list[dict[str, Any]]) -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(records, "the data\nbleu signature"))
    text = console.export_text()
    assert "Post (diverged)" in text
    assert "bleu signature" in text


def test_the_curves_are_the_records(records: list[dict[str, Any]]) -> None:
    loss, bleu = curves(records, "the data").axes
    assert [line.get_label() for line in loss.lines] == ["Pre", "Post"]
    assert loss.lines[0].get_xydata().tolist() == [[0.5, 5.0], [1.0, 4.0], [1.5, 4.5], [2.0, 4.25]]
    assert bleu.lines[0].get_xydata().tolist() == [[1, 9.0], [2, 11.04]], "in the order of epochs, the test left out"
    assert "greedy" in bleu.get_ylabel()
    assert bleu.get_ylim()[0] == 0
    assert bleu.get_ylim()[1] > 11.04


def test_arms_of_one_placement_share_the_colour_and_differ_in_line_and_marker(records: list[dict[str, Any]]) -> None:
    more = record("Post again", "transformer_postln_tiny", [5.0], [])
    (_, first, second) = curves([*records, more], "").axes[0].lines
    assert first.get_color() == second.get_color()
    assert first.get_linestyle() != second.get_linestyle()
    assert first.get_marker() != second.get_marker()


def test_pictures_are_written(records: list[dict[str, Any]], tmp_path: Path) -> None:
    for each in records:
        each["scores"] = []
    draw(records, "the data", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "curves.svg"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(curves(records, "").axes) == 1
