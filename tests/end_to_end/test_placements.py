"""Placements that use every slot between them: trained, resumed, refused, joined and exported by the commands."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fairseq_lnplace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
USER_DIR = ["--user-dir", str(Path(fairseq_lnplace.__file__).parent)]
WORDS = "eins zwei drei vier fünf sechs sieben acht neun zehn".split()  # noqa: SIM905
SIZE = [
    f"--{side}-{option}"
    for side in ("encoder", "decoder")
    for option in ("layers=2", "embed-dim=32", "ffn-embed-dim=64", "attention-heads=4")
]
TRAIN = ["--cpu", "--optimizer=adam", "--adam-betas=(0.9,0.98)", "--lr-scheduler=inverse_sqrt", "--lr=0.005"]
TRAIN += ["--warmup-updates=60", "--clip-norm=1", "--max-tokens=200", "--dropout=0", "--share-all-embeddings"]
TRAIN += ["--no-epoch-checkpoints", "--disable-validation"]
PLACEMENTS = ("admin", "resi_dual", "realformer", "normformer", "dlcl")


def module(name: str, *arguments: object, folder: Path, fails: bool = False) -> str:
    """Run a module in a folder; return stdout, or stderr of one that fails."""
    words = [sys.executable, "-m", name, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment, timeout=400)
    assert (done.returncode != 0) == fails, done.stderr[-3000:]
    return done.stderr if fails else done.stdout


def train(placement: str, folder: Path, *more: str, save_dir: str = "", fails: bool = False) -> str:
    line = ["bin", *USER_DIR, f"--arch=transformer_{placement}", *SIZE, *TRAIN, f"--save-dir={save_dir or placement}"]
    return module("fairseq_cli.train", *line, *more, folder=folder, fails=fails)


def generated(path: str, folder: Path, *more: str, beam: int = 3) -> dict[str, str]:
    """Return the best hypothesis of each test sentence."""
    out = module("fairseq_cli.generate", "bin", "--cpu", f"--path={path}", f"--beam={beam}", *more, folder=folder)
    rows = [line.split("\t") for line in out.splitlines() if line.startswith("H-")]
    return {name: text for name, _, text in rows}


def right(hypotheses: dict[str, str], folder: Path) -> float:
    """Return the share of test sentences that are reversed without a mistake."""
    references = (folder / "test.tgt").read_text("utf-8").splitlines()
    assert len(hypotheses) == len(references)
    return sum(text == references[int(name[2:])] for name, text in hypotheses.items()) / len(references)


def state_of(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=False)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sentences and their reversals in `bin`, and a trained model of each placement."""
    folder, draw = tmp_path_factory.mktemp("placements"), random.Random(1)
    for split, count in (("train", 3000), ("valid", 20), ("test", 40)):
        lines = [draw.choices(WORDS, k=draw.randint(3, 5)) for _ in range(count)]
        (folder / f"{split}.src").write_text("\n".join(map(" ".join, lines)) + "\n", "utf-8")
        (folder / f"{split}.tgt").write_text("\n".join(" ".join(line[::-1]) for line in lines) + "\n", "utf-8")
    splits = [f"--{split}pref={split}" for split in ("train", "valid", "test")]
    languages = ["--source-lang=src", "--target-lang=tgt", "--joined-dictionary", "--destdir=bin"]
    module("fairseq_cli.preprocess", *languages, *splits, folder=folder)
    for placement in PLACEMENTS:
        train(placement, folder, "--max-update=700")
    return folder


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_reversal_is_learnt_and_generated(placement: str, folder: Path) -> None:
    assert right(generated(f"{placement}/checkpoint_last.pt", folder, *USER_DIR), folder) > 0.9


def test_an_ensemble_of_different_placements(folder: Path) -> None:
    pair = "admin/checkpoint_last.pt:resi_dual/checkpoint_last.pt"
    assert right(generated(pair, folder, *USER_DIR), folder) > 0.9


def test_stock_generates_the_same_text_from_an_exported_model(folder: Path) -> None:
    """Without this package's user directory; Admin's embeddings were shared and are no longer."""
    said = module("fairseq_lnplace", "export", "admin/checkpoint_last.pt", "--output=stock.pt", folder=folder)
    assert said.startswith("stock.pt: a checkpoint of stock fairseq's `transformer`; its embeddings share no weights")
    assert vars(state_of(folder / "stock.pt")["cfg"]["model"])["_name"] == "transformer"
    for beam in (1, 5):
        stock = generated("stock.pt", folder, beam=beam)
        assert stock == generated("admin/checkpoint_last.pt", folder, *USER_DIR, beam=beam)
    assert right(stock, folder) > 0.9
    said = module("fairseq_lnplace", "export", "dlcl/checkpoint_last.pt", "--output=x.pt", folder=folder, fails=True)
    assert said == (
        "lnplace: Stock fairseq has no equivalent of dlcl: its layers read the outputs of all layers below\n"
    )
    assert not (folder / "x.pt").exists()


def test_another_placement_is_refused_by_name(folder: Path) -> None:
    admin = "admin/checkpoint_last.pt"
    mean = ["average", admin, "resi_dual/checkpoint_last.pt", "--output=mean.pt"]
    refusals = [
        train("keel", folder, f"--restore-file={admin}", "--max-update=400", save_dir="other", fails=True),
        train("keel", folder, f"--finetune-from-model={admin}", "--max-update=1", save_dir="other", fails=True),
        train("admin", folder, f"--restore-file={admin}", "--norm-type=rmsnorm", save_dir="other", fails=True),
        module("fairseq_lnplace", *mean, folder=folder, fails=True),
    ]
    told = [refusal.splitlines()[-1] for refusal in refusals]
    for each in told[:2]:
        assert "`checkpoint` must be trained as 'keel " in each
        assert "but is trained as 'admin layernorm layernorm 2+2'" in each
    assert "`checkpoint` must be trained as 'admin rmsnorm rmsnorm 2+2" in told[2]
    assert "must be of one model" in told[3]
    assert not (folder / "other" / "checkpoint_last.pt").exists()
    for overrides in ("{'placement': 'postln'}", "{'norm_type': 'rmsnorm'}", "{'encoder_layers': 1}"):
        line = ["bin", *USER_DIR, "--cpu", f"--path={admin}", f"--model-overrides={overrides}"]
        said = module("fairseq_cli.generate", *line, folder=folder, fails=True)
        assert "Traceback" not in said
        assert " must be " in said.splitlines()[-1]


def test_progress_and_profile_outlive_a_stop(folder: Path) -> None:
    """BranchNorm's progress, and Admin's profile, go on as if nothing had happened."""
    for placement, own, number in (("branchnorm", "--branchnorm-updates=40", 10), ("admin", "--seed=5", 12)):
        train(placement, folder, own, "--max-update=8", save_dir="straight")
        train(placement, folder, own, "--max-update=4", save_dir="stopped")
        train(placement, folder, own, "--max-update=8", save_dir="stopped")
        straight, stopped = (state_of(folder / each / "checkpoint_last.pt") for each in ("straight", "stopped"))
        named = ("progress", "profiled_skip", "done")
        kept = {name: value for name, value in straight["model"].items() if name.endswith(named)}
        assert len(kept) == number
        for name, value in straight["model"].items():
            torch.testing.assert_close(stopped["model"][name], value, rtol=0, atol=0, msg=name)
        if placement == "branchnorm":
            assert all(value.item() == pytest.approx(8 / 40) for value in kept.values())
        for each in ("straight", "stopped"):
            (folder / each / "checkpoint_last.pt").unlink()
