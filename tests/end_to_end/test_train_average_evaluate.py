"""A stock model trained by fairseq itself, then averaged, generated from and scored, by the commands people type."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu

ROOT = Path(__file__).parents[2]
MODEL = [
    *("--arch", "transformer", "--share-all-embeddings", "--encoder-layers", "1", "--decoder-layers", "1"),
    *("--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--encoder-attention-heads", "2"),
    *("--decoder-embed-dim", "32", "--decoder-ffn-embed-dim", "64", "--decoder-attention-heads", "2"),
    *("--optimizer", "adam", "--lr", "0.01", "--dropout", "0", "--max-tokens", "1000", "--max-epoch", "6"),
]


def python_m(module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_train_average_generate_evaluate(tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    text = [word for split in ("train", "valid", "test") for word in (f"--{split}", f"data/toy/{split}")]
    languages = ["--source-lang", "de", "--target-lang", "en"]
    python_m("fairseq_lnplace", "prepare", *languages, *text, "--vocab-size", "300", "--dest", str(data))
    python_m("fairseq_cli.train", str(data), *MODEL, "--save-dir", str(run), "--cpu", "--seed", "1")
    average = run / "average.pt"
    python_m("fairseq_lnplace", "average", str(run), "--last", "3", "--output", str(average))
    options = [
        "--beam",
        "4",
        "--lenpen",
        "1.1",
        "--max-len-a",
        "1.2",
        "--max-len-b",
        "10",
        "--max-tokens",
        "600",
        "--cpu",
    ]
    out = python_m("fairseq_cli.generate", str(data), "--path", str(average), "--remove-bpe", "sentencepiece", *options)
    rows = [line.split("\t") for line in out.splitlines() if line.startswith("H-")]
    hypotheses = [text for _, text in sorted((int(name[2:]), text) for name, _, text in rows)]
    references = (ROOT / "data/toy/test.en").read_text(encoding="utf-8").splitlines()
    expected = sacrebleu.corpus_bleu(hypotheses, [references]).score

    python_m("fairseq_lnplace", "evaluate", "--checkpoint", str(average), "--data", str(data), *options)
    record = json.loads((run / "average.test.json").read_text(encoding="utf-8"))
    assert record["bleu"]["score"] == expected
    assert expected > 1, "a model that has learnt something"
    assert (run / "average.test.en").read_text(encoding="utf-8").splitlines() == hypotheses
