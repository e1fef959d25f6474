"""The quick start with fairseq itself, on a model and data small enough for a test."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fairseq_lnplace.commands.quickstart import main

ROOT = Path(__file__).parents[2]
TINY = [
    *("--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "16", "--decoder-embed-dim", "16"),
    *("--encoder-ffn-embed-dim", "16", "--decoder-ffn-embed-dim", "16", "--max-epoch", "2"),
    *("--save-interval-updates", "4", "--log-layer-stats", "4"),
]

pytestmark = pytest.mark.slow


def start(data: Path, dest: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fairseq_lnplace.commands.quickstart", "--data", data, "--dest", dest]
    said = shlex.join(["bash", "scripts/quickstart.sh", *words])
    return subprocess.Popen(
        [*command, "--device", "cpu", "--said", said, *words],
        env={**os.environ, "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def finish(process: subprocess.Popen[str], status: int = 0) -> tuple[str, str]:
    output, errors = process.communicate(timeout=600)
    assert process.returncode == status, output + errors
    return output, errors


def results(dest: Path) -> Any:
    return json.loads((dest / "results.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def straight(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run without interruption, and what it printed."""
    dest = tmp_path_factory.mktemp("runs") / "straight"
    output, errors = finish(start(data, dest, "--", *TINY))
    assert errors == ""
    return dest, output


def test_table_results_and_picture(straight: tuple[Path, str]) -> None:
    dest, output = straight
    assert (dest / "curves.png").stat().st_size > 10_000
    assert (dest / "curves.svg").read_text(encoding="utf-8").count("Post-LN, warm-up") >= 1
    found = results(dest)
    assert found["minutes"] > 0
    assert found["data"] == "de-en, synthetic: 460 pairs"
    assert [run["title"] for run in found["runs"]] == ["Pre-LN, no warm-up", "Post-LN, no warm-up", "Post-LN, warm-up"]
    for run in found["runs"]:
        assert run["title"] in output
        assert run["state"] == "finished"
        epochs = {score["epoch"] for score in run["scores"] if score["subset"] == "valid"}
        assert epochs == {1, 2}
        assert [score["beam"] for score in run["scores"] if score["subset"] == "test"] == [5]
        assert run["valid"][-1]["epoch"] == 2
        assert len(run["valid"]) > 2, "the checkpoints inside an epoch are validated, too"
        signature = run["scores"][0]["signatures"][0]
        assert signature.startswith("nrefs:1|")
        assert signature in output


def test_it_ends_with_the_report(straight: tuple[Path, str]) -> None:
    dest, output = straight
    assert f"To see it all, open {dest / 'report.html'}\n" in output
    page = (dest / "report.html").read_text(encoding="utf-8")
    assert "3 trainings: 3 finished." in page
    assert 'aria-label="Effective depth"' in page
    assert 'type="range"' in page, "the layers during training"
    assert "bash scripts/quickstart.sh -- --encoder-layers 1" in page


def test_a_second_call_trains_nothing(data: Path, straight: tuple[Path, str]) -> None:
    dest, _ = straight
    before = {path: path.stat().st_mtime_ns for path in dest.glob("*/*")}
    found = results(dest)
    said = found["command"]
    assert main(["--data", str(data), "--dest", str(dest), "--device", "cpu", "--said", said, "--", *TINY]) == 0
    assert results(dest) == found
    assert {path: path.stat().st_mtime_ns for path in dest.glob("*/*")} == before


def test_stopped_and_continued_is_a_straight_run(data: Path, straight: tuple[Path, str], tmp_path: Path) -> None:
    process = start(data, tmp_path, "--", *TINY)
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("*/checkpoint_1_4.pt")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = finish(process, status=130)
    assert errors == "quickstart: stopped; the same command continues\n"
    assert not (tmp_path / "results.json").exists()
    finish(start(data, tmp_path, "--", *TINY))
    assert results(tmp_path)["minutes"] is None, "the time of a part is not that of the whole"
    again, once = results(tmp_path)["runs"], results(straight[0])["runs"]
    assert [run["valid"] for run in again] == [run["valid"] for run in once]
    assert [run["scores"] for run in again] == [run["scores"] for run in once]
    logs = "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*/train.log"))
    assert "Loaded checkpoint" in logs


def test_errors_are_one_sentence(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data", str(data), "--dest", str(tmp_path / "runs"), "--device", "cpu"]
    for words, message in (
        (["--jobs", "0"], "`--jobs` must be at least 1, but is 0"),
        (["--data", str(tmp_path)], f"`--data` must be a folder that `lnplace prepare` made, but is {tmp_path}"),
    ):
        assert main([*options, *words]) == 1
        assert capsys.readouterr() == ("", f"quickstart: {message}\n")
    assert not (tmp_path / "runs").exists()

    assert main([*options, "--fast", "--", "--dropout", "many"]) == 1
    output, errors = capsys.readouterr()
    assert output.count("(failed)") == 3
    assert errors.count("\n") == 1
    assert errors.count("invalid float value: 'many'") == 3
    assert str(next(tmp_path.glob("runs/preln-*/train.log"))) in errors
