"""`--log-layer-stats` by the commands that people type: logged, interrupted and gone back, and ended by NaN."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import fairseq_lnplace
from fairseq_lnplace.measure.layer_stats import read_layer_stats
from fairseq_lnplace.runs.training_log import last_line, read_log

pytestmark = pytest.mark.slow

PLUGIN = Path(fairseq_lnplace.__file__).parent
SIZE = [
    f"--{side}-{option}"
    for side in ("encoder", "decoder")
    for option in ("layers=2", "embed-dim=16", "ffn-embed-dim=16", "attention-heads=2")
]
TRAIN = ["--optimizer=adam", "--clip-norm=0.5", "--max-tokens=200", "--share-all-embeddings", "--update-freq=2"]
TRAIN += ["--cpu", "--disable-validation", "--num-workers=0", "--log-format=json", "--log-interval=1"]
NAN = "FloatingPointError: gradients are Nan/Inf: in update 2 the first value that is not finite came from "


def call(command: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PLUGIN.parent)}
    line = [str(Path(sys.executable).with_name(command)), *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, env=environment, timeout=400)


def train(folder: Path, save_dir: str, *more: str, fails: bool = False) -> str:
    """Train; return stdout, or stderr of one that fails."""
    line = ["bin", f"--user-dir={PLUGIN}", "--arch=transformer_preln_final", *SIZE, *TRAIN, f"--save-dir={save_dir}"]
    done = call("fairseq-train", *line, *more, folder=folder)
    assert (done.returncode != 0) == fails, done.stderr[-3000:]
    (folder / f"{save_dir}.log").write_text(done.stdout + done.stderr)
    return done.stderr if fails else done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 400 sentences and their reversals in `bin`."""
    folder, draw = tmp_path_factory.mktemp("stats"), random.Random(1)
    lines = [draw.choices("abcdefgh", k=draw.randint(2, 6)) for _ in range(400)]
    (folder / "train.src").write_text("\n".join(map(" ".join, lines)) + "\n")
    (folder / "train.tgt").write_text("\n".join(" ".join(line[::-1]) for line in lines) + "\n")
    words = ["--source-lang=src", "--target-lang=tgt", "--joined-dictionary", "--destdir=bin"]
    words += [f"--{split}pref=train" for split in ("train", "valid")]
    assert call("fairseq-preprocess", *words, folder=folder).returncode == 0
    return folder


def test_logged_and_gone_back(folder: Path) -> None:
    options = ["--lr=0.01", "--dropout=0.1", "--log-layer-stats=2", "--save-interval-updates=4"]
    train(folder, "run", *options, "--max-update=6")
    first = read_layer_stats(folder / "run/layer_stats.jsonl")
    assert sorted({row.updates for row in first}) == [2, 4, 6]
    logged = {row["updates"]: row for row in read_log(folder / "run.log").inner}
    for updates in (2, 4, 6):
        rows = [row for row in first if row.updates == updates]
        assert math.hypot(*(row.gradient for row in rows)) == pytest.approx(logged[updates]["gnorm"], abs=6e-4)
        layer = [row for row in rows if (row.side, row.layer) == ("decoder", 2)]
        assert logged[updates]["gnorm_dec2"] == pytest.approx(math.hypot(*(row.gradient for row in layer)), abs=1e-6)
    assert "gnorm_dec2" not in logged[3]

    train(folder, "run", *options, "--max-update=8", "--restore-file=run/checkpoint_1_4.pt")
    again = read_layer_stats(folder / "run/layer_stats.jsonl")
    assert again[: len(first)] == first
    assert {row.updates for row in again[len(first) :]} == {8}


def test_nan_ends_a_training_with_one_line(folder: Path) -> None:
    for options in ([], ["--log-layer-stats=1"]):
        said = train(folder, "nan", "--lr=1e30", "--max-update=9", *options, fails=True)
        assert said.startswith(NAN)
        assert said.count("\n") == 1
        assert last_line(folder / "nan.log") == said.strip()


def test_hydra(folder: Path) -> None:
    words = ["task=translation", f"task.data={folder}/bin", "task.source_lang=src", "task.target_lang=tgt"]
    words += [f"common.user_dir={PLUGIN}", "common.cpu=true", "common.log_format=json", "dataset.num_workers=0"]
    words += ["+model._name=transformer_preln_final_tiny", "+model.log_layer_stats=2", "optimizer=adam"]
    words += ["optimization.max_update=4", "dataset.max_tokens=200", "dataset.disable_validation=true"]

    def hydra_train(name: str, rate: str) -> subprocess.CompletedProcess[str]:
        places = [f"checkpoint.save_dir={folder}/{name}", f"hydra.run.dir={folder}/{name}.run"]
        return call("fairseq-hydra-train", *words, *places, f"optimization.lr=[{rate}]", folder=folder)

    done = hydra_train("hydra", "0.01")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (folder / "hydra/layer_stats.jsonl").read_text().splitlines()
    assert {json.loads(line)["updates"] for line in lines} == {2, 4}
    done = hydra_train("hydra_nan", "1e30")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(NAN)
