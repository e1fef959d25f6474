from pathlib import Path

import pytest
from written_runs import write_cell

from fairseq_lnplace.runs.groups import Group, Spread, common_options, differing_options, grouped
from fairseq_lnplace.runs.trained_run import TrainedRun, read_runs
from fairseq_lnplace.runs.training_log import TrainingLog


def a_run(name: str, seed: int = 1, command: str = "", state: str = "finished", **options: object) -> TrainedRun:
    log = TrainingLog([{"updates": 12.0, "loss": 5.0}], [], 0.0)
    return TrainedRun(Path(name), name, name, "arch", "postln", seed, command, options, state, log)


def titles(runs: list[TrainedRun]) -> list[tuple[str, list[int]]]:
    return [(group.title, [run.seed for run in group.runs]) for group in grouped(runs)]


def test_seeds_of_one_setting_are_a_group(tmp_path: Path) -> None:
    for seed in (3, 1, 2):
        write_cell(tmp_path / f"pre-{seed}", seed=seed, save_dir=f"runs/{seed}")
    write_cell(tmp_path / "pre-high", seed=1, lr=2e-3)
    write_cell(tmp_path / "pre-other", title="Other", seed=4)
    assert titles(read_runs([tmp_path])) == [
        ("Pre-LN (pre-1)", [1, 2, 3]),  # by its seeds' folder, as another group has the title
        ("Pre-LN (pre-high)", [1]),
        ("Other", [4]),
    ]


def test_save_dirs_are_grouped_by_their_options_and_named_by_what_is_common() -> None:
    known = {"lr": 0.1, "save-dir": "x"}
    runs = [a_run("post-seed1", 1, **known), a_run("post-seed2", 2, **known), a_run("post_2", 1, lr=0.2)]
    assert titles(runs) == [("post", [1, 2]), ("post_2", [1])]
    assert titles([a_run("x1", 1), a_run("y2", 2)]) == [("x1", [1, 2])], "nothing in common: the first one's"


def test_runs_of_one_seed_are_never_a_group() -> None:
    assert titles([a_run("a"), a_run("b"), a_run("c", 2)]) == [("a", [1, 2]), ("b", [1])]


def test_groups_of_a_placement_are_counted() -> None:
    assert [group.variant for group in grouped([a_run("a", lr=1), a_run("b", lr=2), a_run("c", lr=3)])] == [0, 1, 2]


@pytest.mark.parametrize(
    ("states", "told"),
    [
        (["finished"], [("finished", "finished")]),
        (["interrupted"], [("interrupted", "interrupted at update 12")]),
        (["finished", "diverged", "finished"], [("finished", "2 finished"), ("diverged", "1 diverged")]),
    ],
)
def test_states_in_words(states: list[str], told: list[tuple[str, str]]) -> None:
    assert Group("g", tuple(a_run("a", state=state) for state in states)).states == told


def test_options_that_differ_and_those_in_common() -> None:
    first = a_run("a", command="c", **{"seed": "1", "lr": "0.1", "arch": "x", "cpu": True})
    second = a_run("b", command="c", **{"seed": "2", "lr": "0.2", "arch": "x", "cpu": True, "warmup-updates": "9"})
    logged = a_run("c", **{"lr": 0.1, "arch": "y", "cpu": True, "fp16": False})
    groups = [Group("a", (first,)), Group("b", (second,)), Group("c", (logged,))]
    assert differing_options(groups) == {
        "arch": ["x", "x", "y"],
        "lr": ["0.1", "0.2", "0.1"],
        "warmup-updates": [None, "9", None],  # one command gives it, the other does not
    }
    assert common_options(groups) == {"cpu": "yes", "fp16": "no"}
    assert differing_options(groups[:1]) == {}


def test_the_spread_is_over_the_finite_values() -> None:
    assert Spread.of([3.0, None, 1.0, float("nan"), float("inf")]) == Spread(2.0, 1.0, 3.0, 2)
    assert Spread.of([None, float("nan")]) is None
