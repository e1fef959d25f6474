"""Runs of `fairseq-train` that stop and continue: the same losses, gradient norms and learning rates as without a stop.

They also change between this package's optimizer and criterion and fairseq's, which a checkpoint does not notice.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STOCK = ["--optimizer", "adam", "--criterion", "label_smoothed_cross_entropy"]
OURS = ["--optimizer", "adam_fused", "--criterion", "label_smoothed_cross_entropy_fused"]
SCHEDULES = {
    "inverse_sqrt_nowarmup": (["--hold-epochs", "1"], lambda t: 1e-3 if t < 15 else 1e-3 * (15 / t) ** 0.5),
    "epoch_drop": (["--drop-epochs", "2", "--drop-factor", "0.5"], lambda t: 1e-3 if t <= 30 else 5e-4),
}  # 460 sentences are 29 batches and, with --update-freq 2, 15 updates an epoch


def run(module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", f"fairseq_cli.{module}", *arguments], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("toy") / "bin"
    texts = ["--trainpref", str(ROOT / "data/toy/train"), "--validpref", str(ROOT / "data/toy/valid")]
    run("preprocess", "-s", "de", "-t", "en", *texts, "--destdir", str(folder), "--joined-dictionary")
    return str(folder)


def train(data: str, folder: Path, *options: str) -> dict[int, list[float]]:
    """Return loss, gradient norm and, set after the update, learning rate by number of updates."""
    common = ["--user-dir", str(ROOT / "fairseq_lnplace"), "--arch", "transformer_tiny", "--cpu", "--batch-size", "16"]
    common += ["--update-freq", "2", "--seed", "1", "--lr", "1e-3", "--label-smoothing", "0.1", "--num-workers", "0"]
    common += ["--log-format", "json", "--log-interval", "1", "--no-epoch-checkpoints", "--save-dir", str(folder)]
    rows = re.findall(r"train_inner \| (\{.*\})", run("train", data, *common, *options))
    return {
        int(row["num_updates"]): [float(row[key]) for key in ("loss", "gnorm", "lr")] for row in map(json.loads, rows)
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_run_that_stops_twice_and_changes_sides_is_the_run_without_a_stop(
    name: str, data: str, tmp_path: Path
) -> None:
    options, formula = SCHEDULES[name]
    schedule = ["--lr-scheduler", name, *options]
    straight = train(data, tmp_path / "straight", *schedule, *STOCK, "--max-epoch", "3")
    parts = [
        train(data, tmp_path / "stopped", *schedule, *OURS, "--max-epoch", "1"),
        train(data, tmp_path / "stopped", *schedule, *STOCK, "--max-update", "37"),
        train(data, tmp_path / "stopped", *schedule, *OURS, "--max-epoch", "3"),
    ]
    assert [(min(part), max(part)) for part in parts] == [(1, 15), (16, 37), (38, 45)]
    stopped = parts[0] | parts[1] | parts[2]
    assert sorted(straight) == sorted(stopped) == list(range(1, 46))
    for t, (loss, norm, lr) in straight.items():
        assert stopped[t] == pytest.approx([loss, norm, lr], rel=3e-3), t
        assert lr == pytest.approx(formula(t), rel=1e-5), t
