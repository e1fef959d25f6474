"""Checkpoints: what fairseq's really hold loads, all else is refused by name and runs no code."""

from __future__ import annotations

import argparse
import os
import pickle
from collections import OrderedDict, deque
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data.dictionary import Dictionary
from fairseq.logging.meters import AverageMeter, StopwatchMeter, TimeMeter
from omegaconf import OmegaConf

from fairseq_lnplace.compat import load_checkpoint
from fairseq_lnplace.compat.checkpoints import load_safely
from fairseq_lnplace.errors import LnplaceError


class Bomb:
    """Its pickle, read as pickles are, makes the file `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def state(**more: Any) -> dict[str, Any]:
    """The least that fairseq's own loader takes."""
    history = [{"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 3}]
    extra_state = {"train_iterator": {"epoch": 1}}
    return {"model": OrderedDict(w=torch.ones(2)), "optimizer_history": history, "extra_state": extra_state, **more}


HELD = {
    "options": argparse.Namespace(lr=[0.5], arch="transformer", nested=argparse.Namespace(x=None)),
    "a NumPy array, as BLEU's counts": np.array([1, 2, 3]),
    "a NumPy number, as a best score": np.float64(0.5),
    "a NumPy integer": np.int32(7),
    "a dictionary, as in a speech task's state": Dictionary(),
    "a configuration": OmegaConf.create({"a": {"b": [1, None, "x", 0.5, True]}}),
    "an average": AverageMeter(),
    "a time": TimeMeter(),
    "a stopwatch": StopwatchMeter(),
}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("what", HELD)
def test_what_checkpoints_hold_loads(what: str, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "held.pt"
    torch.save(state(x=HELD[what]), path, _use_new_zipfile_serialization=zipped)
    loaded = load_checkpoint(path)["x"]
    assert type(loaded) is type(HELD[what])
    if not isinstance(loaded, AverageMeter | TimeMeter | StopwatchMeter):  # which compare by identity
        assert np.all(loaded == HELD[what])


def test_options_later_than_a_checkpoint_can_be_overridden(tmp_path: Path) -> None:
    """fairseq passes over what the configuration has not; of other packages' models nothing is touched."""
    path = tmp_path / "old.pt"
    for model, found in (
        ({"_name": "transformer_keel", "placement": "keel", "dlcl_form": "post"}, "uniform"),
        ({"_name": "transformer"}, None),
    ):
        torch.save(state(cfg={"model": dict(model)}), path)
        loaded = checkpoint_utils.load_checkpoint_to_cpu(str(path), {"keel_form": "uniform"})["cfg"]["model"]
        assert loaded.get("keel_form") == found
        assert loaded.get("dlcl_form") == model.get("dlcl_form")
        assert ("hybridnorm_form" in loaded) == ("placement" in model)


@pytest.mark.parametrize("name", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_arrays_of_numpy_1_and_2_load(name: str, tmp_path: Path) -> None:
    plain = pickle.dumps(np.arange(3), protocol=2)
    there = b"numpy._core.multiarray" if b"numpy._core.multiarray" in plain else b"numpy.core.multiarray"
    path = tmp_path / "array.pt"
    torch.save(state(x=np.arange(3)), path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(there, name.encode()))
    assert load_checkpoint(path)["x"].tolist() == [0, 1, 2]


def test_meters_of_old_checkpoints_load(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save(state(x=AverageMeter()), path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(b"cfairseq.logging.meters\n", b"cfairseq.meters\n"))
    assert isinstance(load_checkpoint(path)["x"], AverageMeter)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("load", [load_checkpoint, lambda path: checkpoint_utils.load_checkpoint_to_cpu(str(path))])
def test_code_is_refused_by_name_and_not_run(load: Any, zipped: bool, tmp_path: Path) -> None:
    path, made = tmp_path / "evil.pt", tmp_path / "made"
    torch.save(state(x=Bomb(made)), path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(LnplaceError, match=r"evil\.pt is refused: it holds posix\.mkdir, ") as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert not made.exists()
    torch.load(path, weights_only=False)
    assert made.exists()  # so it would have been


def test_a_bare_pickle_runs_nothing(tmp_path: Path) -> None:
    path, made = tmp_path / "evil.pt", tmp_path / "made"
    path.write_bytes(pickle.dumps({"model": Bomb(made)}))
    with pytest.raises(LnplaceError, match=r"evil\.pt is refused"):
        load_checkpoint(path)
    assert not made.exists()


def test_the_average_of_ema_weights_is_covered_too(tmp_path: Path) -> None:
    path = tmp_path / "ema.pt"
    torch.save({"extra_state": {"ema": {"w": torch.ones(1)}}, "cfg": argparse.Namespace()}, path)
    assert checkpoint_utils.load_ema_from_checkpoint(str(path))["model"]["w"].item() == 1.0


def test_harmless_but_unknown_classes_are_refused(tmp_path: Path) -> None:
    torch.save(state(x=deque([1])), tmp_path / "other.pt")
    with pytest.raises(LnplaceError, match=r"other\.pt is refused: it holds collections\.deque"):
        load_checkpoint(tmp_path / "other.pt")


@pytest.mark.parametrize("content", [b"", b"hello", None], ids=["empty", "text", "cut off"])
def test_damaged_files_are_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "bad.pt"
    torch.save(state(), path)
    path.write_bytes(path.read_bytes()[:200] if content is None else content)
    with pytest.raises(LnplaceError, match=r"bad\.pt is refused: it is cut off, damaged or no checkpoint at all$"):
        load_checkpoint(path)


def test_missing_and_other_files_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(LnplaceError, match=r"none\.pt cannot be read: No such file or directory$"):
        load_checkpoint(tmp_path / "none.pt")
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(LnplaceError, match=r"list\.pt is not a checkpoint of fairseq"):
        load_checkpoint(tmp_path / "list.pt")


def test_nothing_is_allowed_for_good(tmp_path: Path) -> None:
    torch.save(state(x=argparse.Namespace()), tmp_path / "held.pt")
    load_checkpoint(tmp_path / "held.pt")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "held.pt")


def test_a_fairseq_that_asks_for_plain_unpickling_does_not_get_it(tmp_path: Path) -> None:
    newer = ModuleType("fairseq.checkpoint_utils")
    vars(newer)["torch"] = torch
    load_safely(newer, execute=lambda _: None)
    path, made = tmp_path / "evil.pt", tmp_path / "made"
    torch.save(Bomb(made), path)
    with open(path, "rb") as file, pytest.raises(LnplaceError, match=r"posix\.mkdir"):
        newer.torch.load(file, map_location="cpu", weights_only=False)
    assert not made.exists()
    assert newer.torch.Tensor is torch.Tensor


@pytest.mark.parametrize(
    ("version", "taken"), [("2.5.1", False), ("1.13.0+cu117", False), ("2.6.0", True), ("2.13.0+cpu", True)]
)
def test_old_torch_is_refused(version: str, taken: bool) -> None:
    module, fake = ModuleType("fairseq.checkpoint_utils"), ModuleType("torch")
    vars(fake)["__version__"] = version
    vars(module)["torch"] = fake
    if taken:
        load_safely(module, execute=lambda _: None)
    else:
        with pytest.raises(LnplaceError, match=r"^`torch` must be 2\.6 or newer, .* but is "):
            load_safely(module, execute=lambda _: None)
