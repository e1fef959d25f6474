"""The runner on stand-ins for fairseq-train and lnplace: small modules that log and save as the real ones do."""

import json
import os
import signal
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.experiments import runner
from fairseq_lnplace.experiments.devices import slots
from fairseq_lnplace.experiments.grid import Cell, Grid
from fairseq_lnplace.experiments.runner import Run, mend_last_checkpoint, plan, run_all
from fairseq_lnplace.experiments.slurm import job_script

# Trains for 3 "updates" from where checkpoint_last stands; --behaviour says what comes after the first.
TRAIN = """
import json, os, signal, sys, zipfile
from pathlib import Path
def option(name): return sys.argv[sys.argv.index(name) + 1]
folder, behaviour = Path(option("--save-dir")), option("--behaviour")
last = folder / "checkpoint_last.pt"
def note(what):
    with (folder.parent / "order").open("a") as file: file.write(f"{what} {folder.name[:5]}\\n")
note("begin")
done = int(zipfile.ZipFile(last).read("updates")) if last.exists() else 0
print("threads", os.environ["OMP_NUM_THREADS"])
print("pid", os.getpid())
for updates in range(done + 1, 4):
    row = {"epoch": 1, "update": updates / 3, "loss": "nan" if behaviour == "nan" else "5", "train_wall": "1"}
    print(f'x | INFO | train_inner | {json.dumps({**row, "num_updates": updates})}', flush=True)
    for name in ("last", "1"):
        with zipfile.ZipFile(folder / f"checkpoint_{name}.pt", "w") as file: file.writestr("updates", str(updates))
    if behaviour == "stop" and updates == 1: signal.pause()
    if behaviour == "fail": raise ValueError("no such luck")
    if behaviour == "overflow": raise FloatingPointError("gradients are Nan/Inf")
note("end")
"""
EVALUATE = """
import sys
from pathlib import Path
def option(name): return sys.argv[sys.argv.index(name) + 1]
assert sys.argv[1] == "evaluate" and Path(option("--checkpoint")).exists()
print("evaluating")
Path(option("--output")).write_text("{}")
"""


@pytest.fixture(autouse=True)
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stand_in_train.py").write_text(TRAIN)
    (tmp_path / "stand_in_lnplace.py").write_text(EVALUATE)
    monkeypatch.setattr(runner, "MODULES", {"fairseq-train": "stand_in_train", "lnplace": "stand_in_lnplace"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "dict.de.txt").write_text("a 1\n")
    return folder


def planned(data: Path, *behaviours: str) -> list[Run]:
    evaluate = ({"checkpoint": "checkpoint_[0-9].pt", "gen-subset": "test", "beam": 2},)
    cells = tuple(
        Cell(f"cell{number}", f"Cell {number}", ("--max-update", "3", "--behaviour", behaviour), evaluate)
        for number, behaviour in enumerate(behaviours)
    )
    return plan(Grid("grid", "full", cells), data, data.parent / "runs")


def bring_to_end(runs: list[Run], show: Callable[[], None] = lambda: None, jobs: int = 2) -> None:
    run_all(runs, slots(jobs, threads=3), show, every=0.02)


def test_cells_are_trained_and_evaluated_once(data: Path) -> None:
    runs = planned(data, "good", "better", "best")
    assert [(run.state, run.progress()) for run in runs] == [("waiting", 0.0)] * 3
    bring_to_end(runs)
    assert [(run.state, run.progress(), run.error) for run in runs] == [("finished", 1.0, "")] * 3
    for run in runs:
        assert "threads 3" in run.train_log.read_text()
        assert (run.folder / "checkpoint_1.test-beam2.json").exists()
        assert (run.folder / "evaluate.log").read_text() == "evaluating\n"
        record = json.loads((run.folder / "cell.json").read_text())
        assert record["state"] == "finished"
        assert record["command"].startswith(f"fairseq-train {data} --user-dir ")

    again = planned(data, "good", "better", "best")
    before = [run.train_log.read_text() for run in again]
    assert [run.state for run in again] == ["finished"] * 3
    bring_to_end(again)
    assert [run.train_log.read_text() for run in again] == before


def test_no_more_cells_than_jobs_are_at_work(data: Path) -> None:
    bring_to_end(planned(data, "good", "better", "best"), jobs=1)
    order = (data.parent / "runs" / "order").read_text().splitlines()
    assert order == [f"{what} cell{number}" for number in range(3) for what in ("begin", "end")]


def test_other_settings_or_data_get_a_folder_of_their_own(data: Path) -> None:
    bring_to_end(planned(data, "good"))
    (changed,) = planned(data, "better")
    assert changed.state == "waiting"
    (data / "dict.de.txt").write_text("b 1\n")
    (moved,) = planned(data, "good")
    assert moved.state == "waiting"
    assert not changed.folder.exists()
    assert not moved.folder.exists()


def test_a_missing_evaluation_is_made_up_without_training(data: Path) -> None:
    (run,) = planned(data, "good")
    bring_to_end([run])
    log = run.train_log.read_text()
    (run.folder / "checkpoint_1.test-beam2.json").unlink()
    (again,) = planned(data, "good")
    assert again.state == "waiting"
    assert again.progress() == pytest.approx(0.9)
    bring_to_end([again])
    assert (again.state, again.train_log.read_text()) == ("finished", log)
    assert (again.folder / "checkpoint_1.test-beam2.json").exists()


def test_a_failure_stops_no_other_cell_and_is_tried_again(data: Path) -> None:
    failing, good = runs = planned(data, "fail", "good")
    bring_to_end(runs)
    assert (failing.state, good.state) == ("failed", "finished")
    assert failing.error == (
        f"Cell 0: training ended with status 1, 'ValueError: no such luck' (log: {failing.folder}/train.log)"
    )
    (again,) = planned(data, "fail")
    assert again.state == "waiting"


@pytest.mark.parametrize("behaviour", ["nan", "overflow"])
def test_divergence_is_recorded_and_not_tried_again(data: Path, behaviour: str) -> None:
    (run,) = planned(data, behaviour)
    bring_to_end([run])
    assert (run.state, run.error) == ("diverged", "")
    (again,) = planned(data, behaviour)
    assert again.state == "diverged"
    assert not list(run.folder.glob("*.json*test*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_ends_the_processes_and_the_next_call_continues(data: Path, number: signal.Signals) -> None:
    (run,) = planned(data, "stop")
    sent = []

    def interrupt() -> None:
        if not sent and (run.folder / "checkpoint_1.pt").exists():
            sent.append(number)
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        bring_to_end([run], show=interrupt)
    pid = int(run.train_log.read_text().split("pid ")[1].split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    (again,) = planned(data, "stop")
    assert again.folder == run.folder
    assert (again.state, again.progress()) == ("waiting", pytest.approx(0.9 / 3))
    bring_to_end([again])
    assert again.state == "finished"
    assert again.train_log.read_text().count("train_inner") == 3, "the first update must not be done twice"


def test_two_calls_do_not_work_in_one_folder(data: Path) -> None:
    runs = planned(data, "good")
    with runner.alone(runs[0].folder), pytest.raises(LnplaceError, match="Another call is at work in"):
        bring_to_end(runs)
    assert not runs[0].train_log.exists()
    bring_to_end(runs)


def whole(path: Path, content: str) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("updates", content)


def test_a_last_checkpoint_cut_short_is_mended(tmp_path: Path) -> None:
    last = tmp_path / "checkpoint_last.pt"
    mend_last_checkpoint(tmp_path)
    assert not last.exists()
    last.write_bytes(b"PK\x03\x04 cut short")
    mend_last_checkpoint(tmp_path)
    assert not last.exists(), "with nothing whole the training starts again"

    for age, name in enumerate(("checkpoint_1_200.pt", "checkpoint_1_100.pt")):
        whole(tmp_path / name, name)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (tmp_path / "checkpoint_best.pt").write_bytes(b"PK\x03\x04 cut short, too")
    last.write_bytes(b"PK\x03\x04 cut short")
    mend_last_checkpoint(tmp_path)
    assert zipfile.ZipFile(last).read("updates") == b"checkpoint_1_200.pt"
    whole(last, "its own")
    mend_last_checkpoint(tmp_path)
    assert zipfile.ZipFile(last).read("updates") == b"its own"


def chained(data: Path, behaviour: str) -> list[Run]:
    """A cell, and one that starts from it; the second is given first in line for a place."""
    cells = (
        Cell("first", "The first", ("--max-update", "3", "--behaviour", behaviour)),
        Cell("second", "The second", ("--max-update", "3", "--behaviour", "good"), after="first"),
    )
    return plan(Grid("grid", "full", cells), data, data.parent / "runs")


def test_a_cell_starts_from_the_one_it_is_after(data: Path) -> None:
    first, second = runs = chained(data, "good")
    start = second.train_command()
    assert start[start.index("--finetune-from-model") + 1] == str(first.folder / "checkpoint_last.pt")
    assert "--finetune-from-model" not in first.train_command()
    bring_to_end(runs, jobs=2)
    order = (data.parent / "runs" / "order").read_text().splitlines()
    assert order == ["begin first", "end first", "begin secon", "end secon"]
    assert [run.state for run in chained(data, "good")] == ["finished"] * 2
    assert chained(data, "better")[1].folder != second.folder, "what a training starts from is one of its settings"


def test_a_cell_after_one_that_diverged_is_told(data: Path) -> None:
    runs = chained(data, "nan")
    bring_to_end(runs)
    assert [run.state for run in runs] == ["diverged", "failed"]
    assert runs[1].error == "The second: it starts from The first, which is diverged"
    assert not runs[1].train_log.exists()


def test_an_average_is_made_and_then_evaluated(data: Path) -> None:
    cell = Cell("one", "One", (), ({"average": 2, "gen-subset": "test", "beam": 4, "lenpen": 0.6},))
    (run,) = plan(Grid("grid", "full", (cell,)), data, data.parent / "runs")
    ((output, command),) = run.evaluations()
    assert output == run.folder / "average2.pt"
    assert command == ("lnplace", "average", str(run.folder), "--last", "2", "--output", str(output))
    run.folder.mkdir(parents=True)
    output.touch()
    _, (record, command) = run.evaluations()
    assert record.name == "average2.test-beam4-lenpen0.6.json"
    options = {"gen-subset": "test", "beam": "4", "lenpen": "0.6", "checkpoint": str(output), "data": str(data)}
    assert command[:2] == ("lnplace", "evaluate")
    assert dict(zip(command[2::2], command[3::2], strict=True)) == {
        **{f"--{name}": value for name, value in options.items()},
        "--output": str(record),
    }


def test_every_cell_may_have_data_of_its_own(data: Path) -> None:
    other = data.with_name("other")
    other.mkdir()
    (other / "dict.txt").write_text("b 1\n")
    cells = (Cell("one", "One", (), data="a"), Cell("two", "Two", (), data="b"))
    one, two = plan(Grid("grid", "full", cells), {"a": data, "b": other}, data.parent / "runs")
    assert (one.data, two.data) == (data, other)
    assert one.train_command()[1] == str(data)


def test_a_job_array_is_a_script_that_shellcheck_passes(data: Path, tmp_path: Path) -> None:
    """Each task calls the runner for its own cells: run here with a stand-in for `bash scripts/reproduce.sh`."""
    runs = chained(data, "good") + planned(data, "good")
    root, here = tmp_path / "a root", tmp_path / "where it was called"
    (root / "scripts").mkdir(parents=True)
    here.mkdir()
    (root / "scripts" / "reproduce.sh").write_text('printf "<%s>" "$PWD" "$@"')
    command = ["bash", str(root / "scripts/reproduce.sh"), "warmup", "--seeds", "1", "2", "--", "--dropout", "0"]
    for gpus in (0, 2):
        script = tmp_path / "job.sh"
        script.write_text(job_script("warmup-full", runs, gpus, 4, here, command))
        subprocess.run(["shellcheck", script], check=True)
        assert ("#SBATCH --gres=gpu:2" in script.read_text()) == bool(gpus)
        assert "#SBATCH --array=0-1\n" in script.read_text()
        said = [
            subprocess.run(
                ["bash", script],
                env={**os.environ, "SLURM_ARRAY_TASK_ID": task},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for task in "01"
        ]
        common = f"<{here}><warmup><--seeds><1><2><--jobs><1><--no-report><--only>"
        assert said == [f"{common}<first><second><--><--dropout><0>", f"{common}<cell0><--><--dropout><0>"]
    with pytest.raises(LnplaceError, match="`--slurm` must be left out, as depth-demo trains nothing"):
        job_script("depth-demo", [], 0, 4, here, command)
