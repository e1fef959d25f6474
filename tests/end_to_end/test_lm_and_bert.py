"""Decoder-only and encoder-only models by the commands people type: train, evaluate, fine-tune, predict."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from fairseq import options as fairseq_options
from fairseq import tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import fairseq_lnplace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
USER_DIR = ["--user-dir", str(Path(fairseq_lnplace.__file__).parent)]
SIZE = "layers=2 embed-dim=16 ffn-embed-dim=32 attention-heads=2"
TRAIN = ["--cpu", "--optimizer=adam", "--lr=0.01", "--clip-norm=1", "--log-interval=1", "--no-epoch-checkpoints"]


def size(side: str) -> list[str]:
    return [f"--{side}-{option}" for option in SIZE.split()]


def call(command: str, *arguments: object, folder: Path, fails: bool = False) -> str:
    """Run one of fairseq's commands in a folder; return stdout and stderr."""
    words = [sys.executable, "-m", f"fairseq_cli.{command}", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment, timeout=300)
    assert (done.returncode != 0) == fails, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """English pieces in `text`; sentences with the label whether they ask in `asks`; a masked LM in `bert`."""
    folder = tmp_path_factory.mktemp("kinds")
    toy = {split: (ROOT / f"data/toy/{split}.en").read_text("utf-8").splitlines() for split in ("train", "valid")}
    (folder / "all.en").write_text("\n".join(toy["train"]), "utf-8")
    options = {"vocab_size": 200, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(input=str(folder / "all.en"), model_prefix=str(folder / "spm"), **options)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    for split, lines in toy.items():
        texts, labels = [], []
        for number, line in enumerate(lines):
            asks = number % 2
            words = pieces.encode(line.rstrip(".?!") + (" ?" if asks else " ."), out_type=str)
            texts.append(" ".join(words))
            labels.append("asks" if asks else "tells")
        (folder / f"{split}.text").write_text("\n".join(texts) + "\n", "utf-8")
        (folder / f"{split}.label").write_text("\n".join(labels) + "\n", "utf-8")

    def binarise(kind: str, destination: str, *more: str) -> None:
        given = [f"--{'train' if split == 'train' else 'valid'}pref={split}.{kind}" for split in toy]
        call("preprocess", "--only-source", *given, f"--destdir={destination}", *more, folder=folder)

    binarise("text", "text")
    binarise("text", "asks/input0", "--srcdict", "text/dict.txt")
    binarise("label", "asks/label")
    masked = ["--task=masked_lm", "--criterion=masked_lm", "--arch=bert_admin", *size("encoder"), *TRAIN]
    call(
        "train",
        "text",
        *USER_DIR,
        *masked,
        "--batch-size=8",
        "--tokens-per-sample=64",
        "--max-update=40",
        "--save-dir=bert",
        folder=folder,
    )
    return folder


def losses(log: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"\| train_inner \|.*? loss=([\d.]+)", log)]


def trained(folder: Path, save_dir: str) -> dict[str, Any]:
    return torch.load(folder / save_dir / "checkpoint_last.pt", weights_only=False)  # type: ignore[no-any-return]


def test_a_language_model_is_trained_resumed_and_evaluated(folder: Path) -> None:
    model = ["--arch=transformer_lm_resi_dual", "--task=language_modeling", "--tokens-per-sample=32", *size("decoder")]
    line = [
        "text",
        *USER_DIR,
        *model,
        *TRAIN,
        "--max-tokens=500",
        "--save-dir=lm",
        "--share-decoder-input-output-embed",
    ]
    first = losses(call("train", *line, "--max-update=15", folder=folder))
    second = losses(call("train", *line, "--max-update=60", folder=folder))
    assert len(second) == 45
    assert sum(second[-5:]) / 5 < sum(first[:5]) / 5 - 1
    said = call(
        "eval_lm", "text", *USER_DIR, "--path=lm/checkpoint_last.pt", "--cpu", "--gen-subset=valid", folder=folder
    )
    loss = float(re.search(r"Loss \(base 2\): ([\d.]+)", said)[1])  # type: ignore[index]
    assert loss < math.log2(200) - 1
    other = [each.replace("resi_dual", "keel") for each in line]
    said = call("train", *other, "--max-update=70", folder=folder, fails=True)
    assert "`checkpoint` must be trained as 'keel" in said.splitlines()[-1]
    assert "is trained as 'resi_dual" in said.splitlines()[-1]


def test_a_masked_language_model_learns(folder: Path) -> None:
    """Also with what fairseq 0.12.2 cannot do any more: spans of pieces, and whole words."""
    line = ["text", *USER_DIR, "--task=masked_lm", "--criterion=masked_lm", "--arch=bert_realformer", *size("encoder")]
    line += [*TRAIN, "--batch-size=8", "--tokens-per-sample=64", "--max-update=12", "--no-save"]
    for options in (
        ["--mask-multiple-length=3"],
        ["--mask-multiple-length=3", "--mask-stdev=1"],
        ["--mask-whole-words", "--bpe=sentencepiece", "--sentencepiece-model=spm.model"],
        ["--mask-whole-words"],
    ):
        found = losses(call("train", *line, *options, folder=folder))
        assert len(found) == 12
        assert sum(found[-3:]) < sum(found[:3])


def test_whole_words_are_masked(folder: Path) -> None:
    words = [
        "text",
        "--task=masked_lm",
        "--arch=bert_admin",
        "--batch-size=4",
        "--mask-whole-words",
        "--leave-unmasked-prob=0",
        "--sample-break-mode=eos",
    ]
    words += ["--bpe=sentencepiece", f"--sentencepiece-model={folder}/spm.model", "--random-token-prob=0"]
    words[0] = str(folder / "text")
    args = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), words)
    task = tasks.setup_task(convert_namespace_to_omegaconf(Namespace(**vars(args))).task)
    task.load_dataset("train")
    symbols, longer = task.source_dictionary, 0
    for number in range(100):
        target = task.dataset("train")[number]["target"]
        source = task.dataset("train")[number]["net_input.src_tokens"]
        tokens = torch.where(target.eq(symbols.pad()), source, target)
        masked: list[list[bool]] = []
        for token, is_masked in zip(tokens[1:-1], target[1:-1].ne(symbols.pad()), strict=True):
            if symbols[token].startswith("▁") or token < symbols.nspecial or not masked:
                masked.append([])
            masked[-1].append(bool(is_masked))
        assert all(len(set(word)) == 1 for word in masked)
        longer += sum(len(word) > 1 and word[0] for word in masked)
    assert longer > 10


HEAD = ["--task=sentence_prediction", "--num-classes=2", "--classification-head-name=asks", "--init-token=0"]
BEST = ["--criterion=sentence_prediction", "--best-checkpoint-metric=accuracy", "--maximize-best-checkpoint-metric"]
PREDICT = """
import sys, warnings
warnings.simplefilter("ignore")
import torch, fairseq_lnplace
from fairseq_lnplace.plugin.models.bert import BertLNPlaceModel
hub = BertLNPlaceModel.from_pretrained("asking", "checkpoint_last.pt", "asks", bpe="sentencepiece",
                                       sentencepiece_model="spm.model")
hub.eval()
right = 0
lines = open("all.en", encoding="utf-8").read().splitlines()[:20]
for line in lines:
    for end, label in ((" ?", "asks"), (" .", "tells")):
        tokens = hub.encode(line.rstrip(".?!") + end)
        best = hub.predict("asks", tokens).argmax().item() + hub.task.label_dictionary.nspecial
        right += hub.task.label_dictionary[best] == label
print("right", right, "of", 2 * len(lines))
"""


def test_fine_tuned_heads_reload_and_predict(folder: Path) -> None:
    line = ["asks", *USER_DIR, *HEAD, *BEST, *size("encoder"), *TRAIN, "--batch-size=16", "--save-dir=asking"]
    start = ["--restore-file=bert/checkpoint_last.pt", "--reset-optimizer", "--reset-dataloader", "--reset-meters"]
    said = call("train", *line, "--arch=bert_b2t", *start, "--max-update=2", folder=folder, fails=True)
    assert "`checkpoint` must be trained as 'b2t" in said.splitlines()[-1]
    assert "is trained as 'admin" in said.splitlines()[-1]
    assert not (folder / "asking" / "checkpoint_last.pt").exists()

    positions = ["--arch=bert_admin", "--max-positions=64"]
    call("train", *line, *positions, *start, "--reset-lr-scheduler", "--max-update=60", folder=folder)
    state = trained(folder, "asking")
    heads = {name for name in state["model"] if name.startswith("classification_heads.asks.")}
    assert len(heads) == 4
    measured = [name for name in state["model"] if name.endswith("profiled_skip")]
    before = trained(folder, "bert")["model"]
    assert all(torch.equal(state["model"][name], before[name]) for name in measured)  # not measured again
    call("train", *line, *positions, "--max-update=100", folder=folder)  # resumes, heads and all
    again = trained(folder, "asking")
    assert again["optimizer_history"][-1]["num_updates"] == 100
    path = ["--path=asking/checkpoint_last.pt", "--cpu", "--batch-size=16"]
    said = call("validate", "asks", *USER_DIR, *HEAD, BEST[0], *path, folder=folder)
    assert float(re.findall(r"\| accuracy ([\d.]+)", said)[-1]) > 90
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PREDICT], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[1]) >= 36
