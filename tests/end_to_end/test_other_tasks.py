"""fairseq's other tasks with a model of this package: one update each, on one small set of data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fairseq_lnplace

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
USER_DIR = f"--user-dir={Path(fairseq_lnplace.__file__).parent}"
SIZE = [
    f"--{side}-{what}" for side in ("encoder", "decoder") for what in ("layers=1", "embed-dim=8", "attention-heads=2")
]
TRAIN = ["--cpu", "--optimizer=adam", "--lr=0.001", "--max-tokens=400", "--max-update=1", "--num-workers=0"]
LINES = {"train": 30, "valid": 6, "test": 4}


def call(command: str, *words: object, folder: Path) -> str:
    """Run one of the environment's commands in a folder; return all that it said."""
    done = subprocess.run(
        [str(BIN / command), *map(str, words)],
        cwd=folder, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with parallel text and its alignments in `bin`, and German text in `text`."""
    folder = tmp_path_factory.mktemp("data")
    for split, count in LINES.items():
        lines = [[f"wort{(i + k) % 10}" for k in range(3 + i % 4)] for i in range(count)]
        texts = {
            "de": [" ".join(line) for line in lines],
            "en": [" ".join(reversed(line)).upper() for line in lines],
            "align": [" ".join(f"{k}-{len(line) - 1 - k}" for k in range(len(line))) for line in lines],
        }
        for ending, text in texts.items():
            (folder / f"{split}.{ending}").write_text("\n".join(text) + "\n", "utf-8")
    splits = [f"--{split}pref={split}" for split in LINES]
    call("fairseq-preprocess", "-s", "de", "-t", "en", *splits, "--align-suffix=align", "--destdir=bin", folder=folder)
    texts = [f"--{split}pref={split}.de" for split in LINES]
    call("fairseq-preprocess", "--only-source", *texts, "--srcdict=bin/dict.de.txt", "--destdir=text", folder=folder)
    return folder


def train(folder: Path, where: str, *words: str) -> str:
    """Train for one update; return what the command said."""
    return call("fairseq-train", where, USER_DIR, "--arch=transformer_postln", *SIZE, *TRAIN, *words, folder=folder)


def test_translation_from_pretrained_bart(data: Path) -> None:
    task = ["--task=translation_from_pretrained_bart", "--langs=de,en", "--source-lang=de", "--target-lang=en"]
    train(data, "bin", *task, "--save-dir=bart")
    made = call(
        *("fairseq-generate", "bin", USER_DIR, *task, "--path=bart/checkpoint_last.pt", "--cpu", "--max-len-b=5"),
        folder=data,
    )
    assert "H-3" in made


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("text", ["--task=denoising", "--replace-length=1", "--mask=0.3", "--tokens-per-sample=64"]),
        ("bin", ["--task=translation_multi_simple_epoch", "--lang-pairs=de-en", "--langs=de,en"]),
        ("bin", ["--load-alignments", "--criterion=label_smoothed_cross_entropy_with_alignment"]),
        ("bin", ["--task=multilingual_translation", "--lang-pairs=de-en", "--arch=multilingual_transformer"]),
    ],
    ids=["denoising", "multi_simple_epoch", "alignment", "stock multilingual"],
)
def test_one_update(data: Path, where: str, words: list[str]) -> None:
    said = train(data, where, *words, "--no-save", "--disable-validation")
    assert "num_updates 1 " in said
    assert ("alignment_loss" in said) == ("--load-alignments" in words)


def test_from_pretrained(data: Path) -> None:
    """What it prints with alignments; see also the unit tests of the attention's values."""
    train(data, "bin", "--save-dir=hub")
    code = f"""
from argparse import Namespace
from fairseq import utils
from fairseq.models.transformer import TransformerModel
utils.import_user_module(Namespace(user_dir={USER_DIR.removeprefix("--user-dir=")!r}))
model = TransformerModel.from_pretrained('hub', 'checkpoint_last.pt', data_name_or_path='../bin')
assert isinstance(model.translate('wort1 wort2', print_alignment='hard', max_len_b=5), str)
made = model.generate([model.encode('wort1 wort2')], max_len_b=5)[0][0]
assert list(made['attention'].shape) == [3, len(made['tokens'])]
"""
    call(Path(sys.executable).name, "-c", code, folder=data)
