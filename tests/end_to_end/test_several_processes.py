"""`fairseq-train` started by torchrun in two processes is one process with twice the `--update-freq`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = [
    *("--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "16"),
    *("--dropout", "0", "--optimizer", "adam", "--lr", "0.01", "--lr-scheduler", "inverse_sqrt_nowarmup"),
    *("--criterion", "label_smoothed_cross_entropy_fused", "--label-smoothing", "0.1", "--max-tokens", "200"),
    *("--max-update", "3", "--log-format", "json", "--log-interval", "1", "--cpu", "--num-workers", "0"),
    *("--disable-validation", "--no-save", "--task", "translation"),
]

pytestmark = pytest.mark.slow


def updates(data: Path, folder: Path, launcher: list[str], *more: str) -> list[tuple[float, float]]:
    """Train; return each update's loss and gradient norm."""
    options = [*TINY, "--user-dir", str(ROOT / "fairseq_lnplace"), "--arch", "transformer_resi_dual", *more]
    command = [sys.executable, "-m", *launcher, "fairseq_cli.train", str(data), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(row) for row in re.findall(r"\| train_inner \| (\{.*\})", done.stdout + done.stderr)]
    return [(float(row["loss"]), float(row["gnorm"])) for row in rows]


def test_two_processes_make_one_processs_updates(data: Path, tmp_path: Path) -> None:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    # legacy_ddp, since with the other fairseq names a GPU
    together = updates(data, tmp_path, launcher, "--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp")
    alone = updates(data, tmp_path, [], "--update-freq", "2")
    assert len(together) == len(alone) == 3
    for ours, one in zip(together, alone, strict=True):
        assert ours == pytest.approx(one, abs=2e-3)  # logged with three digits
