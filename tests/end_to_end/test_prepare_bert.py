"""scripts/prepare_bert.sh and prepare_glue.sh on small packages and files, and fairseq-train on what they make."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from help_packages import build_packages

import fairseq_lnplace

ROOT = Path(__file__).parents[2]
APPLICATIONS = ("swriter", "scalc", "sbasic", "simpress")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (Path(sys.prefix) / "bin" / "lnplace").exists(), reason="lnplace is not installed"),
]


def run(*words: object, fails: bool = False) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LNPLACE_VENV": sys.prefix, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = list(map(str, words))
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode != 0) == fails, done.stderr
    assert "Traceback" not in done.stderr
    return done


def script(name: str, *options: object, fails: bool = False) -> subprocess.CompletedProcess[str]:
    return run("bash", ROOT / "scripts" / f"{name}.sh", *options, fails=fails)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 pages of each application, two sentences each."""
    pages = {}
    for application in APPLICATIONS:
        for number in range(200):
            name = f"page {number}"
            lines = [f"This {name} tells about {application} alone.", f"Here the {application} has its {name}."]
            pages[f"{application}/{number}"] = {"de": lines, "en": lines}
    return build_packages(tmp_path_factory.mktemp("packages"), pages)


@pytest.fixture(scope="module")
def demo(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("bert") / "demo"
    done = script("prepare_bert", "--demo", "--packages", packages, "--vocab-size", 60, "--dest", dest, "--workers", 1)
    assert done.stdout == f"{dest}\n{dest}-application\n"
    return dest


TINY = ["--encoder-layers=1", "--encoder-embed-dim=16", "--encoder-ffn-embed-dim=16", "--encoder-attention-heads=2"]
TRAIN = [*TINY, "--optimizer=adam", "--lr=0.01", "--cpu", "--num-workers=0", "--log-interval=1", "--max-positions=64"]


def train(data: Path, task: str, *options: object) -> str:
    user_dir = Path(fairseq_lnplace.__file__).parent
    words = ["--user-dir", user_dir, "--arch", "bert_preln_final_tiny", f"--task={task}", f"--criterion={task}"]
    done = run(sys.executable, "-m", "fairseq_cli.train", data, *words, *TRAIN, *options)
    return done.stdout + done.stderr


def test_the_demo_trains_and_fine_tunes(demo: Path, tmp_path: Path) -> None:
    counts = json.loads((demo / "prepared.json").read_text())["counts"]
    assert sum(split["sentences"] for split in counts.values()) == 2 * 200 * len(APPLICATIONS)
    manifest = json.loads(Path(f"{demo}-application", "prepared.json").read_text())
    assert manifest["classes"] == 4
    assert len(set(manifest["counts"]["train"].values())) == 1
    assert manifest["majority"]["train"] == 0.25

    options = ["--sample-break-mode=complete_doc", "--tokens-per-sample=32", "--batch-size=16", "--max-update=3"]
    train(demo, "masked_lm", *options, "--save-dir", tmp_path / "mlm")
    start = ["--restore-file", tmp_path / "mlm/checkpoint_last.pt", "--reset-optimizer", "--reset-dataloader"]
    start += ["--reset-meters", "--reset-lr-scheduler", "--batch-size=16", "--max-epoch=2", "--init-token=0"]
    head = ["--num-classes=4", "--classification-head-name=application", "--save-dir", tmp_path / "application"]
    said = train(Path(f"{demo}-application"), "sentence_prediction", *start, *head)
    accuracies = [float(each) for each in re.findall(r"\| valid on 'valid' subset .*? accuracy ([\d.]+)", said)]
    assert max(accuracies) > 60  # the application's name is in each sentence


def test_a_second_call_goes_on(demo: Path, packages: Path) -> None:
    options = ["--demo", "--packages", packages, "--vocab-size", 60, "--dest", demo]
    before = (demo / "train.bin").stat().st_mtime_ns
    application = Path(f"{demo}-application")
    application.rename(application.with_name("away"))
    assert script("prepare_bert", *options).stdout == f"{demo}\n{application}\n"
    for path in application.with_name("away").rglob("*.bin"):
        assert path.read_bytes() == (application / path.relative_to(application.with_name("away"))).read_bytes()
    assert (demo / "train.bin").stat().st_mtime_ns == before
    said = script("prepare_bert", *options, "--variant", "sentencepiece", fails=True).stderr
    assert "was made with other settings" in said


def test_text_of_ones_own(tmp_path: Path) -> None:
    text = tmp_path / "two words.txt"
    lines = (ROOT / "data/toy/train.en").read_text(encoding="utf-8").splitlines()
    text.write_text("".join(f"{line}\n\n" for line in lines), encoding="utf-8")
    dest = tmp_path / "bert"
    options = ["--text", text, "--variant", "sentencepiece", "--vocab-size", 120, "--dest", dest, "--workers", 1]
    assert script("prepare_bert", *options).stdout == f"{dest}\n"
    manifest = json.loads((dest / "prepared.json").read_text())
    assert {split: each["sentences"] for split, each in manifest["counts"].items()} == {"train": 458, "valid": 2}
    assert manifest["note"] == "two words.txt, 199:1"
    for options, message in (
        ([], "say where the text is with --text FILE..., or take --demo"),
        (["--demo", "--text", text], "--demo has its own text"),
        (["--text"], "--text needs a value"),
        (["--text", tmp_path / "none", "--dest", tmp_path / "x"], "cannot be read: No such file"),
        (["--txt", text], "--txt is not one of the options"),
    ):
        assert message in script("prepare_bert", *options, fails=True).stderr.splitlines()[-1]
    assert not (tmp_path / "x").exists()


def test_glue(demo: Path, tmp_path: Path) -> None:
    archive = tmp_path / "RTE.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for split, rows in (("train", ["0\tOne page.\tA page.\tentailment", "1\tA.\tB.\tnot_entailment"]), ("dev", [])):
            rows = rows or ["0\tTwo pages.\tA page.\tentailment"]
            packed.writestr(f"RTE/{split}.tsv", "\n".join(["index\tsentence1\tsentence2\tlabel", *rows, ""]))
    options = ["--model-data", demo, "--downloads", tmp_path / "downloads"]
    done = script("prepare_glue", "RTE", *options, "--archive", archive, "--dest", tmp_path / "RTE")
    assert "not the usual counts: 2 instead of 2,490 train pairs, 1 instead of 277 valid pairs" in done.stderr
    assert (tmp_path / "RTE/input1/train.bin").exists()
    assert "is there already" in script("prepare_glue", "RTE", *options, "--dest", tmp_path / "RTE").stderr
    archive.write_bytes(archive.read_bytes()[:-30])
    for more, message in (
        (["RTE", *options, "--archive", archive], "RTE.zip is not there, or not a whole archive"),
        (["RTE", "--model-data", tmp_path], "is not there; prepare_bert.sh makes it"),
        (options, "say which task"),
    ):
        said = script("prepare_glue", *more, "--dest", tmp_path / "none", fails=True).stderr
        assert message in said.splitlines()[-1]
        assert not (tmp_path / "none").exists()
