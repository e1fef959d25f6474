from pathlib import Path

import numpy as np
import pytest
from written_runs import inner, valid, write_cell, write_evaluation

from fairseq_lnplace.report import curves
from fairseq_lnplace.report.curves import Line, line_of, metrics_of
from fairseq_lnplace.runs.groups import Group, grouped
from fairseq_lnplace.runs.trained_run import TrainedRun, read_run


def line(group: Group, name: str, unit: str = "updates", lines: int = 1) -> Line:
    metric = next(metric for metric in metrics_of(group.runs) if metric.name == name)
    found = line_of(group, metric, unit, lines)
    assert found
    return found


def one(*runs: TrainedRun) -> Group:
    (group,) = grouped(runs)
    return group


@pytest.fixture
def run(tmp_path: Path) -> TrainedRun:
    log = inner(10, loss="7") + valid(10, "6") + inner(20, loss="6", train_wall="120") + valid(20, "5") + inner(30)
    folder = write_cell(tmp_path / "first", log=log)
    for epoch, bleu in ((2, 8.0), (1, 4.0)):
        write_evaluation(folder, f"checkpoint{epoch}", "valid", bleu)
    write_evaluation(folder, "checkpoint1", "test", 99.0)
    write_evaluation(folder, "checkpoint_best", "valid", 98.0)
    return read_run(folder)


def test_what_is_followed_is_what_was_logged_or_evaluated(run: TrainedRun, tmp_path: Path) -> None:
    assert [metric.name for metric in metrics_of([run])] == ["loss", "bleu", "train_loss", "lr", "gnorm"]
    assert metrics_of([run])[1].label == "BLEU, valid set, beam 5"
    classifier = read_run(write_cell(tmp_path / "c", log=valid(10, valid_accuracy="70")))
    assert [metric.name for metric in metrics_of([classifier])] == ["loss", "accuracy"]
    assert metrics_of([read_run(write_cell(tmp_path / "none", log=""))]) == []


@pytest.mark.parametrize(
    ("unit", "xs"), [("updates", [10, 20, 30]), ("epochs", [1, 2, 3]), ("minutes", [1.0, 3.0, 4.0])]
)
def test_a_training_is_followed_in_three_units(run: TrainedRun, unit: str, xs: list[float]) -> None:
    found = line(one(run), "train_loss", unit)
    assert found.xs.tolist() == xs
    assert found.ys.tolist() == [7, 6, 5]
    assert found.low is None
    assert found.ends == []


def test_bleu_stands_at_the_ends_of_epochs(run: TrainedRun) -> None:
    found = line(one(run), "bleu", "minutes")
    assert found.xs.tolist() == [1.0, 3.0]
    assert found.ys.tolist() == [4, 8], "of the split that most checkpoints were scored on, in order"


def test_seeds_have_a_mean_and_a_band(tmp_path: Path) -> None:
    logs = [valid(10, "8") + valid(20, "6") + valid(30, "4"), valid(10, "6") + valid(30, "5")]
    runs = [read_run(write_cell(tmp_path / str(seed), log=log, seed=seed)) for seed, log in enumerate(logs)]
    found = line(one(*runs), "loss")
    assert found.xs.tolist() == [10, 20, 30]
    assert found.ys.tolist() == [7, 5.75, 4.5]  # the second seed is at 5.5 between its own validations
    assert found.low is not None
    assert found.high is not None
    assert found.low.tolist() == [6, 5.5, 4]
    assert found.high.tolist() == [8, 6, 5]


def test_a_seed_that_diverged_counts_as_far_as_it_came_and_ends_there(tmp_path: Path) -> None:
    logs = [inner(10, loss="8") + inner(20, loss="6"), inner(10, loss="10") + inner(20, loss="nan")]
    runs = [
        read_run(write_cell(tmp_path / str(seed), state, log, seed=seed))
        for seed, (log, state) in enumerate(zip(logs, ("finished", "diverged"), strict=True))
    ]
    found = line(one(*runs), "train_loss", "minutes")
    assert found.ys.tolist() == [9, 6]
    assert found.ends == [(1.0, 10.0)]


def test_long_lines_are_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "POINTS", 8)
    log = "".join(inner(update, loss=str(update)) for update in range(1, 9))
    group = one(read_run(write_cell(tmp_path / "long", log=log)))
    assert line(group, "train_loss").ys.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert line(group, "train_loss", lines=2).ys.tolist() == [1.5, 3.5, 5.5, 7.5]
    assert np.array_equal(line(group, "train_loss", lines=2).xs, [1.5, 3.5, 5.5, 7.5])
