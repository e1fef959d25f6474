"""`lnplace show schedule`: the table, the picture, and what it refuses."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from fairseq_lnplace.cli import main


def show(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["show", "schedule", *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_table_holds_the_learning_rates_of_every_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(
        "inverse_sqrt_nowarmup --hold-updates 100 --lr 1e-3 --updates 400 --json --updates-per-epoch 200"
    )
    words += ["--compare", "inverse_sqrt --warmup-updates 100", "--compare", "epoch_drop --drop-epochs 1 --lr 2e-3"]
    status, out, _ = show(capsys, *words)
    rows = {row.pop("update"): row for row in json.loads(out)}
    assert status == 0
    assert list(rows) == [0, 1, 2, 5, 10, 20, 50, 100, 200, 400]
    assert list(rows[50].values()) == pytest.approx([1e-3, 5e-4, 2e-3])
    assert list(rows[400].values()) == pytest.approx([5e-4, 5e-4, 2e-4])
    assert list(rows[0]) == [
        "inverse_sqrt_nowarmup --hold-updates 100",
        "inverse_sqrt --warmup-updates 100",
        "epoch_drop --drop-epochs 1 --lr 2e-3",
    ]


def test_the_table_is_readable_without_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = show(capsys, "inverse_sqrt_nowarmup", "--updates", "16000")
    assert out.splitlines()[0] == "inverse_sqrt_nowarmup"
    assert out.splitlines()[-1].split() == ["16000", "2.500e-04"]


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_picture_is_written_in_the_format_of_its_name(
    suffix: str, magic: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "new" / f"schedule.{suffix}"
    assert show(capsys, "epoch_drop", "--updates", "20", "--plot", str(picture))[0] == 0
    assert picture.read_bytes().startswith(magic)
    assert list(picture.parent.iterdir()) == [picture]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["linear"], "`schedule` must be one of cosine"),
        (["inverse_sqrt", "--warmup-updates", "0"], "`--warmup-updates` must be at least 1 with inverse_sqrt"),
        (["inverse_sqrt_nowarmup", "--hold-updates", "-1"], "`--hold-updates` must be"),
        (["epoch_drop", "--compare", "nonsense"], "`schedule` must be"),
        (["epoch_drop", "--plot", "picture.doc"], "`--plot` must be"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = show(capsys, *words)
    assert status == 1
    assert sentence in err
    assert err.count("\n") == 1
    assert not out
    assert not list(tmp_path.iterdir())


def test_help_lists_the_options_of_the_named_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["show", "schedule", "epoch_drop", "--help"])
    assert stopped.value.code == 0
    assert "--drop-factor" in capsys.readouterr().out
