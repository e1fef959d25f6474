import json
import math
from pathlib import Path

import pytest

from fairseq_lnplace.runs.training_log import last_line, read_log


def line(kind: str, record: dict[str, object]) -> str:
    return f"2026-01-01 00:00:00 | INFO | {kind} | {json.dumps(record)}\n"


def inner(updates: int, loss: str = "5") -> str:
    record = {"epoch": 1 + updates // 100, "update": updates / 100, "loss": loss, "lr": "0.002", "train_wall": "10"}
    return line("train_inner", {**record, "num_updates": str(updates)})


def valid(updates: int, loss: str) -> str:
    record = {"epoch": 1, "valid_loss": loss, "valid_nll_loss": "3", "valid_ppl": "8", "valid_best_loss": loss}
    return line("valid", {**record, "valid_num_updates": str(updates)})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "train.log"


def test_rows_of_an_ordinary_log(log: Path) -> None:
    end = line("train", {"epoch": 1, "train_loss": "5", "train_train_wall": "99", "train_num_updates": "100"})
    log.write_text("2026 | INFO | fairseq_cli.train | {not ours}\n" + inner(50) + valid(50, "6") + inner(100) + end)
    read = read_log(log)
    assert [(row["updates"], row["epoch"], row["loss"], row["lr"]) for row in read.inner] == [
        (50, 0.5, 5, 0.002),
        (100, 1, 5, 0.002),
    ]
    assert [(row["updates"], row["epoch"], row["loss"], row["ppl"]) for row in read.valid] == [(50, 0.5, 6, 8)]
    assert read.seconds == 20
    assert not read.diverged


def test_a_stretch_trained_twice_counts_once(log: Path) -> None:
    before = inner(10) + inner(20) + valid(20, "7") + inner(30) + valid(30, "9")
    log.write_text(before + "Traceback\n" + inner(20, "4"))
    assert [(row["updates"], row["loss"]) for row in read_log(log).inner] == [(10, 5), (20, 4)]
    log.write_text(before + "Traceback\n" + inner(20, "4") + inner(30, "3") + valid(30, "6"))
    read = read_log(log)
    assert [(row["updates"], row["loss"]) for row in read.inner] == [(10, 5), (20, 4), (30, 3)]
    assert [(row["updates"], row["loss"]) for row in read.valid] == [(20, 7), (30, 6)]
    assert read.seconds == 30


def test_divergence(log: Path) -> None:
    log.write_text(inner(10) + inner(20, "nan"))
    assert read_log(log).diverged
    assert math.isnan(read_log(log).inner[-1]["loss"])
    log.write_text(inner(10, "nan") + inner(20))
    assert not read_log(log).diverged
    log.write_text(inner(10) + valid(10, "inf"))
    assert read_log(log).diverged


def test_no_log_and_a_log_cut_short(log: Path) -> None:
    assert read_log(log).inner == []
    assert last_line(log) == "nothing was logged"
    log.write_text(inner(10) + inner(20) + inner(30)[:-20])
    assert [row["updates"] for row in read_log(log).inner] == [10, 20]
    assert [row["updates"] for row in read_log(log, tail=len(inner(10)) + len(inner(30))).inner] == [20]


def test_the_last_line_that_says_something(log: Path) -> None:
    log.write_text("Traceback (most recent call last):\n  File x\nValueError: too small\n\n")
    assert last_line(log) == "ValueError: too small"


def test_a_record_is_read_however_it_was_logged(tmp_path: Path) -> None:
    lines = inner(50) + valid(50, "6") + valid(50, "7").replace("valid", "other") + inner(100)
    printed, bare, hydra = (tmp_path / f"{name}.log" for name in ("printed", "bare", "hydra"))
    printed.write_text(lines)
    parts = [line.split(" | ") for line in lines.splitlines()]
    # --log-file: bare records, each twice, and no name of the logger
    bare.write_text("".join(2 * f"{record}\n" for *_, record in parts))
    hydra.write_text("".join(f"[{time},893][{name}][{level}] - {record}\n" for time, level, name, record in parts))
    assert [row["loss"] for row in read_log(printed).valid] == [6]
    assert read_log(bare) == read_log(printed)
    assert read_log(hydra) == read_log(printed)
