"""The released fairseq's own commands on today's Python and torch: they run, they are quiet, they refuse bad files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
SIZE = [
    f"--{side}-{what}" for side in ("encoder", "decoder") for what in ("layers=1", "embed-dim=8", "attention-heads=2")
]
TRAIN = ["--cpu", "--optimizer=adam", "--lr=0.001", "--max-tokens=400", "--log-interval=1"]
WORDS = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]


def call(command: str, *arguments: object, folder: Path, stdin: str = "", fails: bool = False) -> tuple[str, str]:
    """Run one of the environment's commands in a folder; return its stdout and what it said beside INFO lines."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [str(BIN / command), *map(str, arguments)]
    done = subprocess.run(words, cwd=folder, input=stdin, capture_output=True, text=True, env=environment, timeout=300)
    assert (done.returncode != 0) == fails, done.stderr[-2000:]
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if " | INFO | " not in line)


def said_by_nobody(stderr: str) -> bool:
    """Whether stderr holds no warning; fairseq's log prints the model there, over several lines."""
    return "Warning" not in stderr and "tensorboardX" not in stderr


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with binarised parallel text in `bin`, German text in `text`, and a trained model in `checkpoints`."""
    folder = tmp_path_factory.mktemp("a folder")
    for split, count in (("train", 60), ("valid", 10), ("test", 6)):
        lines = [" ".join(WORDS[(i + k) % 10] for k in range(3 + i % 4)) for i in range(count)]
        (folder / f"{split}.de").write_text("\n".join(lines) + "\n", "utf-8")
        (folder / f"{split}.en").write_text("\n".join(line.upper() for line in lines) + "\n", "utf-8")
    splits = [f"--{split}pref={split}" for split in ("train", "valid", "test")]
    _, said = call("fairseq-preprocess", "-s", "de", "-t", "en", *splits, "--destdir=bin", "--workers=2", folder=folder)
    assert said == ""
    texts = [f"{split}={split.removesuffix('pref')[2:]}.de" for split in ("--trainpref", "--validpref", "--testpref")]
    call("fairseq-preprocess", "--only-source", *texts, "--destdir=text", folder=folder)
    bleu = ["--eval-bleu", "--best-checkpoint-metric=bleu", "--maximize-best-checkpoint-metric"]
    options = ["--arch=transformer", *SIZE, *TRAIN, *bleu, "--num-workers=2"]
    _, said = call("fairseq-train", "bin", *options, "--max-epoch=1", folder=folder)
    assert said_by_nobody(said)
    _, said = call("fairseq-train", "bin", *options, "--max-epoch=2", folder=folder)
    assert said_by_nobody(said)
    return folder


BEST = "--path=checkpoints/checkpoint_best.pt"


def test_train_resumed(data: Path) -> None:
    state = torch.load(data / "checkpoints" / "checkpoint_last.pt", weights_only=False)
    assert state["extra_state"]["train_iterator"]["epoch"] == 3
    assert [history["num_updates"] for history in state["optimizer_history"]][-1] > 1


def test_generate_and_score(data: Path) -> None:
    out, said = call("fairseq-generate", "bin", "--cpu", BEST, "--beam=2", folder=data)
    assert said_by_nobody(said)
    assert "Generate test with beam=2: BLEU4 = " in out
    for kind, column in (("H", 2), ("T", 1)):
        lines = [line.split("\t")[column] for line in out.splitlines() if line.startswith(f"{kind}-")]
        (data / kind).write_text("\n".join(lines) + "\n", "utf-8")
    assert "BLEU4 = " in call("fairseq-score", "--sys=H", "--ref=T", folder=data)[0]
    assert "BLEU = 100.00" in call("fairseq-score", "--sacrebleu", "--sys=T", "--ref=T", folder=data)[0]


def test_interactive_and_validate(data: Path) -> None:
    out, said = call("fairseq-interactive", "bin", "--cpu", BEST, folder=data, stdin="eins zwei\n")
    assert said_by_nobody(said)
    assert "\nH-0\t" in out
    _, said = call("fairseq-validate", "bin", "--task=translation", "--cpu", BEST, "--max-tokens=400", folder=data)
    assert said_by_nobody(said)


def test_language_model(data: Path) -> None:
    size = ["--decoder-layers=1", "--decoder-embed-dim=8", "--decoder-attention-heads=2"]
    options = ["--task=language_modeling", "--arch=transformer_lm", "--tokens-per-sample=16", "--save-dir=lm"]
    _, said = call("fairseq-train", "text", *options, *size, *TRAIN, "--max-update=2", folder=data)
    assert said_by_nobody(said)
    _, said = call("fairseq-eval-lm", "text", "--cpu", "--path=lm/checkpoint_best.pt", "--max-tokens=400", folder=data)
    assert said_by_nobody(said)


HYDRA = [
    "task=translation", "+task.source_lang=de", "+task.target_lang=en", "common.cpu=true",
    "+model._name=transformer_tiny",
    "optimizer=adam", "lr_scheduler=inverse_sqrt", "lr_scheduler.warmup_updates=2", "optimization.lr=[0.001]",
    "optimization.max_update=2", "dataset.max_tokens=400", "criterion=label_smoothed_cross_entropy",
]  # fmt: skip


def test_hydra_train(data: Path) -> None:
    paths = [f"task.data='{data}/bin'", f"checkpoint.save_dir='{data}/hydra'", f"hydra.run.dir='{data}/run'"]
    _, said = call("fairseq-hydra-train", *HYDRA, *paths, folder=data)
    assert said_by_nobody(said)
    assert (data / "hydra" / "checkpoint_last.pt").exists()
    (data / "bad.pt").write_bytes(b"no checkpoint")
    _, said = call(
        "fairseq-hydra-train", *HYDRA, *paths, f"checkpoint.restore_file='{data}/bad.pt'", folder=data, fails=True
    )
    assert said.splitlines()[-1].startswith(f"fairseq-hydra-train: {data}/bad.pt is refused: it is cut off")
    assert "Error executing job" not in said


def test_the_hub_interface(data: Path) -> None:
    code = (
        "from fairseq.models.transformer import TransformerModel as T;"
        "model = T.from_pretrained('checkpoints', 'checkpoint_best.pt', data_name_or_path='../bin');"
        "print(repr(model.translate('eins')))"
    )
    out, said = call(Path(sys.executable).name, "-c", code, folder=data)
    assert out.startswith("'")
    assert said_by_nobody(said)


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("made",)


def test_every_command_refuses_a_checkpoint_that_would_run_code(data: Path) -> None:
    state = torch.load(data / "checkpoints" / "checkpoint_last.pt", weights_only=False)
    torch.save({**state, "bomb": Bomb()}, data / "evil.pt")
    commands: dict[str, list[object]] = {
        "fairseq-train": ["bin", "--arch=transformer", *SIZE, *TRAIN, "--restore-file=evil.pt", "--save-dir=other"],
        "fairseq-generate": ["bin", "--cpu", "--path=evil.pt"],
        "fairseq-interactive": ["bin", "--cpu", "--path=evil.pt"],
        "fairseq-validate": ["bin", "--task=translation", "--cpu", "--path=evil.pt", "--max-tokens=400"],
        "fairseq-eval-lm": ["text", "--cpu", "--path=evil.pt"],
    }
    for command, arguments in commands.items():
        _, said = call(command, *arguments, folder=data, stdin="eins\n", fails=True)
        assert said.splitlines()[-1] == (
            f"{command}: evil.pt is refused: it holds posix.mkdir, which could run code and is in none of fairseq's own"
        )
        assert "Traceback" not in said
    assert not (data / "made").exists()


def test_two_trainers_resume(data: Path) -> None:
    options = ["--arch=transformer", *SIZE, *TRAIN, "--ddp-backend=legacy_ddp", "--distributed-backend=gloo"]
    options += ["--save-dir=two", "--eval-bleu"]
    for epoch in (1, 2):
        launch = ["--nproc-per-node=2", f"--master-port={29600 + epoch}", BIN / "fairseq-train", "bin"]
        _, said = call("torchrun", *launch, *options, f"--max-epoch={epoch}", folder=data)
        assert said_by_nobody(said)
    state = torch.load(data / "two" / "checkpoint_last.pt", weights_only=False)
    assert state["extra_state"]["train_iterator"]["epoch"] == 3
