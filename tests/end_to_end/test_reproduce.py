"""The papers' experiments by their script's module, with fairseq itself, on models and data small enough for a test."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_lnplace.commands.reproduce import EXPERIMENTS, main
from fairseq_lnplace.report.experiment import read_experiment

ROOT = Path(__file__).parents[2]
TINY = [
    *("--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "16", "--decoder-embed-dim", "16"),
    *("--encoder-ffn-embed-dim", "16", "--decoder-ffn-embed-dim", "16", "--max-update", "4"),
    *("--validate-interval-updates", "2"),
]

pytestmark = pytest.mark.slow


def call(experiment: str, *words: object, fails: bool = False) -> tuple[str, str]:
    """Run an experiment; return what it printed."""
    command = [sys.executable, "-m", "fairseq_lnplace.commands.reproduce", "--root", ROOT, experiment, *words]
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        env={**os.environ, "COLUMNS": "150"},
        encoding="utf-8",
        check=False,
    )
    assert bool(done.returncode) == fails, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_a_grid_is_trained_evaluated_judged_and_shown_once(data: Path, tmp_path: Path) -> None:
    cells = ["--only", "adam-postln-none-high", "adam-postln-long-high"]
    line = ["--data", data, "--dest", tmp_path, *cells, "--seeds", "1", "2", "--threads", "1", "--", *TINY]
    output, errors = call("warmup", *line)
    assert errors == ""
    experiment = read_experiment(tmp_path / "warmup.json")
    names = [f"adam-{cell}-high-seed{seed}" for cell in ("postln-none", "postln-long") for seed in (1, 2)]
    assert [run.name for run in experiment.runs] == names
    assert {run.state for run in experiment.runs} == {"finished"}
    assert {(run.updates, run.test is not None) for run in experiment.runs} == {(4, True)}
    assert [run.seed for run in experiment.runs] == [1, 2] * 2
    needs, *_ = experiment.claims
    assert needs.claim == "Post-LN needs warm-up with Adam"
    assert "BLEU" in needs.evidence
    assert needs.claim in output
    assert experiment.about["minutes"] is not None
    page = (tmp_path / "warmup.html").read_text(encoding="utf-8")
    assert "Does training need warm-up?" in page
    assert needs.claim in page

    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")}
    again, _ = call("warmup", *line)
    assert needs.claim in again
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")} == before


def test_a_dry_run_prints_commands_that_can_be_typed_and_does_nothing(data: Path, tmp_path: Path) -> None:
    dest = tmp_path / "runs"
    output, _ = call("iwslt", "--scale", "full", "--gpus", "4", "--dry-run", "--dest", dest)
    assert "scale full, 4 cells, 4 GPUs a cell, fp16" in output
    assert "4,096 tokens an update: --distributed-world-size 4 --fp16 --max-tokens 1024 --update-freq 1" in output
    assert "is not there yet" in output
    assert output.count("\nfairseq-train ") == 4
    assert not dest.exists()
    output, _ = call("iwslt", "--data", data, "--dest", dest, "--only", "adam-postln", "--dry-run", "--", *TINY)
    (command,) = (line for line in output.splitlines() if line.startswith("fairseq-train "))
    done = subprocess.run(
        ["bash", "-c", f"{shlex.quote(sys.executable)} -m fairseq_cli.train {command.removeprefix('fairseq-train ')}"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_gradients_are_measured_once_before_and_after_training(data: Path, tmp_path: Path) -> None:
    line = ["--data", data, "--dest", tmp_path, "--threads", "1", "--", *TINY]
    call("gradients", *line)
    experiment = read_experiment(tmp_path / "gradients.json")
    states = {row["state"] for row in experiment.results.measurements["gradients"]["gradients"]}
    assert len(states) == 2
    assert len(experiment.claims) == 3
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")}
    call("gradients", *line)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")} == before


def test_one_failing_cell_stops_no_other_and_fails_the_call(data: Path, tmp_path: Path) -> None:
    """RAdam's cells fail on an option of the other cells' schedule."""
    cells = ["--only", "*-preln", "--threads", "1"]
    line = ["--data", data, "--dest", tmp_path, *cells, "--", *TINY, "--drop-epochs", "8"]
    output, errors = call("iwslt", *line, fails=True)
    assert errors.startswith("reproduce: RAdam, Pre-LN, no warm-up: training ended with status 2")
    assert errors.count("\n") == 1
    experiment = read_experiment(tmp_path / "iwslt.json")
    assert {run.name: run.state for run in experiment.runs} == {"adam-preln": "finished", "radam-preln": "failed"}
    assert "(failed)" in output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["warmup", "--jobs", "0"], "`--jobs` must be at least 1, but is 0"),
        (["warmup", "--only", "nobody"], "`--only` must be patterns for adam-postln-none-low"),
        (["finetune", "--data", "x"], "`--data` must be left out, as finetune takes 2 kinds of data, but is x"),
        (["wmt", "--data", "nowhere"], "`--data` must be a folder that `lnplace prepare` made, but is "),
        (["wmt", "--precision", "fp16"], "`--precision` must be fp32 or bf16 on a CPU, but is fp16"),
        (["wmt", "--gpus", "64", "--data", "DATA"], "`--jobs times --gpus` must be at most the "),
    ],
)
def test_errors_are_one_sentence_and_leave_nothing(
    words: list[str], sentence: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(data) if word == "DATA" else word for word in words]
    assert main(["--root", str(ROOT), *words, "--dest", str(tmp_path / "runs")]) == 1
    output, errors = capsys.readouterr()
    assert errors.startswith(f"reproduce: {sentence}")
    assert (output, errors.count("\n")) == ("", 1)
    assert not (tmp_path / "runs").exists()


def test_every_experiment_has_a_script_of_its_own() -> None:
    scripts = {path.stem.removeprefix("reproduce_") for path in (ROOT / "scripts").glob("reproduce_*.sh")}
    assert scripts == set(EXPERIMENTS)
