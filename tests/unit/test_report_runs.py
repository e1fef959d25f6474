import fcntl
import os
from pathlib import Path

import pytest
from written_runs import COMMAND, DONE, inner, valid, write_cell, write_evaluation, write_layer_stats

from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.runs.options import options_of, placement_of
from fairseq_lnplace.runs.records import Evaluation
from fairseq_lnplace.runs.trained_run import read_run, read_runs

# What fairseq logs first, of today's models and of older ones.
CONFIG = (
    "{'_name': None, 'common': {'_name': None, 'seed': 3, 'min_loss_scale': inf, 'wandb_project': None}, "
    "'optimization': {'_name': None, 'lr': [0.002], 'update_freq': [1, 2], 'stop_min_lr': -1.0}, "
    "'generation': {'_name': None, 'beam': 5}, 'bpe': None, 'criterion': {'_name': 'cross_entropy'}, 'model': "
)
TODAY = "{'_name': 'transformer_lnplace', 'placement': 'deepnorm', 'encoder': {'_name': None, 'embed_dim': 8}}}"
OLDER = "Namespace(_name='transformer_iwslt_de_en', beam=4, dropout=0.3, seed=3, no_wandb=None)}"


def test_a_cell(tmp_path: Path) -> None:
    folder = write_cell(tmp_path / "pre-0123")
    write_evaluation(folder, "checkpoint12", "valid", 3.0)
    write_evaluation(folder, "checkpoint_best", "test", 4.0, tokenised_bleu={"score": 5.0}, seconds=9)
    write_layer_stats(folder, [10], layers=1)
    run = read_run(folder)
    assert (run.name, run.title, run.arch) == ("pre", "Pre-LN", "transformer_preln_final_tiny")
    assert (run.placement, run.seed, run.command, run.state) == ("preln_final", 7, COMMAND, "finished")
    assert run.options["lr"] == "1e-3"
    assert run.options["cpu"] is True
    assert run.updates == 10
    first, second = run.evaluations
    assert first == Evaluation(
        record=folder / "checkpoint12.valid.json",
        subset="valid",
        checkpoint="checkpoint12.pt",
        epoch=12,
        decoding={"beam": 5},
        scores={"bleu": 3.0, "chrf": 50.0},
        signatures={"bleu": "nrefs:1", "chrf": "nc:6"},
    )
    assert second.epoch is None
    assert second.scores == {"bleu": 4.0, "chrf": 50.0, "tokenised_bleu": 5.0}
    assert run.test is second
    (stats,) = run.layer_stats
    assert (stats["updates"], stats["layer"], stats["gradient"]) == (10, 1, 10.0)


def test_the_test_score_of_a_run_is_that_of_its_best_checkpoint_or_average(tmp_path: Path) -> None:
    folder = write_cell(tmp_path / "cell")
    assert read_run(folder).test is None
    for checkpoint, bleu in (("checkpoint2", 2.0), ("checkpoint10", 10.0)):
        write_evaluation(folder, checkpoint, "test", bleu)
    assert read_run(folder).test.scores["bleu"] == 10.0  # type: ignore[union-attr]
    write_evaluation(folder, "average5", "test", 5.0)
    write_evaluation(folder, "checkpoint_last", "valid", 6.0)
    assert read_run(folder).test.scores["bleu"] == 5.0  # type: ignore[union-attr]


@pytest.mark.parametrize("recorded", ["training", "evaluating"])
def test_a_cell_at_work_that_nobody_holds_was_interrupted(tmp_path: Path, recorded: str) -> None:
    folder = write_cell(tmp_path / "cell", recorded)
    assert read_run(folder).state == "interrupted"
    with (folder / ".lock").open("w") as lock:
        assert read_run(folder).state == "interrupted"
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read_run(folder).state == recorded


def test_a_cell_that_failed_before_it_logged(tmp_path: Path) -> None:
    run = read_run(write_cell(tmp_path / "cell", "failed", log="ValueError: no"))
    assert (run.state, run.updates, run.log.inner) == ("failed", 0, [])


@pytest.mark.parametrize(
    ("log", "state"),
    [
        (inner(10) + DONE, "finished"),
        (inner(10) + DONE.split(" | ")[3], "finished"),  # as --log-file writes it
        (inner(10) + DONE + inner(20), "interrupted"),
        (inner(10), "interrupted"),
        (inner(10) + "Traceback\nKeyboardInterrupt\n", "interrupted"),
        (inner(10) + "Traceback\ntorch.OutOfMemoryError: CUDA\n", "failed"),
        (inner(10) + "Traceback\nFloatingPointError: Minimum loss scale reached\n", "diverged"),
        (inner(10) + "FloatingPointError: gradients are Nan/Inf\nrank : 0\n========\n", "diverged"),  # torchrun's end
        (inner(10) + "[rank1]: FloatingPointError: Minimum loss scale reached\n[rank0]:[W] unused\n", "diverged"),
        (inner(10) + "FloatingPointError: gradients are Nan/Inf\n" + inner(20), "interrupted"),  # it was continued
        (inner(10, loss="nan") + DONE, "diverged"),
        (inner(10) + valid(10, "inf") + DONE, "diverged"),
    ],
)
def test_the_state_that_a_log_ends_in(tmp_path: Path, log: str, state: str) -> None:
    (tmp_path / "train.log").write_text(log)
    assert read_run(tmp_path).state == state


@pytest.mark.parametrize("model", [TODAY, OLDER])
def test_a_save_dir_has_its_options_in_the_log(tmp_path: Path, model: str) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.log").write_text("nothing of a training\n")
    (folder / "b.log").write_text(f"2026 | INFO | fairseq_cli.train | {CONFIG}{model}\n{inner(10)}{DONE}")
    run = read_run(folder)
    common = {"seed": 3, "min-loss-scale": float("inf"), "lr": 0.002, "update-freq": [1, 2], "stop-min-lr": -1.0}
    common |= {"criterion": "cross_entropy"}
    if model == TODAY:
        assert run.options == {**common, "arch": run.arch, "placement": "deepnorm", "encoder-embed-dim": 8}
        assert (run.arch, run.placement) == ("transformer_lnplace", "deepnorm")
    else:
        assert run.options == {**common, "arch": run.arch, "beam": 4, "dropout": 0.3}
        assert (run.arch, run.placement) == ("transformer_iwslt_de_en", "")
    assert (run.name, run.title, run.seed, run.command) == ("mine", "mine", 3, "")


def test_a_log_without_readable_options(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("{'_name': None, 'common': {'x': <object at 0x1>}}\n" + inner(10))
    run = read_run(tmp_path)
    assert (run.options, run.arch, run.placement, run.seed) == ({}, "", "", 1)


def test_options_of_a_command() -> None:
    assert options_of("fairseq-train 'my data' --lr 1 2 --fp16 --adam-betas '(0.9, 0.98)' --stop-min-lr=-1") == {
        "data": "my data",
        "lr": "1 2",
        "fp16": True,
        "adam-betas": "(0.9, 0.98)",
        "stop-min-lr": "-1",
    }
    assert options_of("torchrun --standalone --nproc-per-node 2 -m fairseq_cli.train data --fp16") == {
        "data": "data",
        "fp16": True,
    }


def test_placements_out_of_architectures() -> None:
    assert placement_of("transformer_preln_final_tiny") == "preln_final"
    assert placement_of("transformer_preln_tiny") == "preln"
    assert placement_of("transformer_postln") == "postln"
    assert placement_of("transformer") == ""


def test_a_folder_of_runs_and_each_run_once(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_cell(tmp_path / "grid" / name)
    (tmp_path / "grid" / "pictures").mkdir()
    runs = read_runs([tmp_path / "grid" / "b", tmp_path / "grid"])
    assert [run.folder.name for run in runs] == ["b", "a"]


def test_what_is_no_run_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "simple.log").write_text("epoch 001: loss=5\n")
    for path, message in (
        (tmp_path / "none", f"`RUN` must be the folder of a training, but is {tmp_path}/none, which is not there"),
        (tmp_path / "simple.log", f"`RUN` must be the folder of a training, but is {tmp_path}/simple.log, which is a"),
        (tmp_path / "empty", f"No log of a training with JSON lines is in {tmp_path}/empty"),
        (tmp_path, f"`fairseq-train --log-format json --log-file {tmp_path}/train.log` writes one"),
    ):
        with pytest.raises(LnplaceError) as error:
            read_runs([path])
        assert message in str(error.value)
        assert "\n" not in str(error.value)


def test_a_save_dir_that_diverged_before_it_logged_has_fairseqs_crash_checkpoint(tmp_path: Path) -> None:
    log, crash = tmp_path / "train.log", tmp_path / "crash.pt"
    log.write_text("{'_name': None, 'common': {'_name': None, 'log_format': 'json'}}\n")
    assert read_run(tmp_path).state == "interrupted"
    crash.touch()
    os.utime(crash, (log.stat().st_atime, log.stat().st_mtime + 1))
    assert read_run(tmp_path).state == "diverged"
    os.utime(crash, (log.stat().st_atime, log.stat().st_mtime - 1))
    assert read_run(tmp_path).state == "interrupted", "the training went on after the crash"
