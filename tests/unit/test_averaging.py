from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_lnplace.averaging import average, last_checkpoints
from fairseq_lnplace.cli import main
from fairseq_lnplace.compat import load_checkpoint
from fairseq_lnplace.errors import LnplaceError


def save(path: Path, weights: dict[str, torch.Tensor], updates: int = 0, **model: Any) -> Path:
    state = {
        "args": None,
        "cfg": {"model": {"_name": "transformer_lnplace", "placement": "postln", **model}},
        "model": weights,
        "optimizer_history": [{"num_updates": updates}],
        "last_optimizer_state": {"exp_avg": torch.ones(5)},
        "extra_state": {},
    }
    torch.save(state, path)
    return path


def test_the_mean_in_every_type(tmp_path: Path) -> None:
    values = [[1.0, -2.0], [4.0, 0.5], [1.0, 3.0]]
    paths = [
        save(
            tmp_path / f"{step}.pt",
            {
                "a": torch.tensor(value),
                "half": torch.tensor(value).half(),
                "brain": torch.tensor(value).bfloat16(),
                "double": torch.tensor(value).double(),
                "steps": torch.tensor(step),
            },
            updates=step,
        )
        for step, value in enumerate(values)
    ]
    average(paths, tmp_path / "out" / "mean.pt")
    state = load_checkpoint(tmp_path / "out" / "mean.pt")
    for name, dtype in (("a", "float32"), ("half", "float16"), ("brain", "bfloat16"), ("double", "float64")):
        expected = torch.tensor([2.0, 0.5], dtype=getattr(torch, dtype))
        assert state["model"][name].dtype == expected.dtype
        assert torch.equal(state["model"][name], expected), name
    assert torch.equal(state["model"]["steps"], torch.tensor(2))
    assert list(state["model"]) == ["a", "half", "brain", "double", "steps"]
    assert state["optimizer_history"] == [{"num_updates": 2}]
    assert "last_optimizer_state" not in state


def test_equal_checkpoints_average_to_themselves_bit_for_bit(tmp_path: Path) -> None:
    weights = {
        "a": torch.rand(100, generator=torch.Generator().manual_seed(1)) * 1e-3,
        "big": torch.full((3,), 6e4).half(),
    }
    paths = [save(tmp_path / f"{step}.pt", weights) for step in range(3)]
    average(paths, tmp_path / "mean.pt")
    for name, weight in load_checkpoint(tmp_path / "mean.pt")["model"].items():
        assert torch.equal(weight, weights[name])


def test_an_input_may_be_the_output(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{step}.pt", {"a": torch.tensor([float(step)])}) for step in (1, 3)]
    average(paths, paths[1])
    assert load_checkpoint(paths[1])["model"]["a"].item() == 2


def test_a_checkpoint_of_the_old_form(tmp_path: Path) -> None:
    from argparse import Namespace

    state = {"args": Namespace(arch="transformer"), "model": {"a": torch.tensor([1.0])}, "extra_state": {}}
    torch.save(state, tmp_path / "old.pt")
    average([tmp_path / "old.pt"], tmp_path / "mean.pt")
    assert load_checkpoint(tmp_path / "mean.pt")["args"].arch == "transformer"
    new = save(tmp_path / "new.pt", {"a": torch.tensor([1.0])})
    with pytest.raises(LnplaceError, match=r"old.pt is of arch transformer and .*new.pt of name transformer_lnplace"):
        average([tmp_path / "old.pt", new], tmp_path / "other.pt")


def test_other_models_are_refused_and_nothing_written(tmp_path: Path) -> None:
    first = save(tmp_path / "a.pt", {"w": torch.zeros(2)})
    others = {
        "of name transformer_lnplace, placement preln": save(
            tmp_path / "b.pt", {"w": torch.zeros(2)}, placement="preln"
        ),
        "placement postln and .* of name transformer,": save(
            tmp_path / "c.pt", {"w": torch.zeros(2)}, _name="transformer"
        ),
        "differs from .*a.pt in w$": save(tmp_path / "d.pt", {"w": torch.zeros(3)}),
        "differs from .*a.pt in v$": save(tmp_path / "e.pt", {"w": torch.zeros(2), "v": torch.zeros(1)}),
        "f.pt differs from .*a.pt in w$": save(tmp_path / "f.pt", {}),
    }
    for message, other in others.items():
        with pytest.raises(LnplaceError, match=message):
            average([first, other], tmp_path / "mean.pt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", "b.pt", "c.pt", "d.pt", "e.pt", "f.pt"]


def test_the_last_ones_by_number_not_by_name(tmp_path: Path) -> None:
    names = ["checkpoint2.pt", "checkpoint9.pt", "checkpoint10.pt", "checkpoint_1_900.pt", "checkpoint_2_1000.pt"]
    for name in [*names, "checkpoint_best.pt", "checkpoint_last.pt", "checkpoint.best_loss_1.00.pt", "average.pt"]:
        (tmp_path / name).touch()
    assert [path.name for path in last_checkpoints(tmp_path, 2, "epoch")] == ["checkpoint9.pt", "checkpoint10.pt"]
    assert [path.name for path in last_checkpoints(tmp_path, 1, "update")] == ["checkpoint_2_1000.pt"]
    with pytest.raises(LnplaceError, match=r"`--last` must be at most the number of checkpoints by epoch in .* \(3\)"):
        last_checkpoints(tmp_path, 4, "epoch")
    with pytest.raises(LnplaceError, match="`--last` must be at least 1, but is 0"):
        last_checkpoints(tmp_path, 0, "epoch")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for epoch in (1, 2, 3):
        save(tmp_path / f"checkpoint{epoch}.pt", {"a": torch.tensor([float(epoch)])})
    output = tmp_path / "mean.pt"
    assert main(["average", str(tmp_path), "--last", "2", "--output", str(output)]) == 0
    assert "checkpoint2.pt, checkpoint3.pt" in capsys.readouterr().out
    assert load_checkpoint(output)["model"]["a"].item() == 2.5
    assert main(["average", str(tmp_path / "checkpoint1.pt"), str(output), "--output", str(tmp_path / "two.pt")]) == 0
    assert load_checkpoint(tmp_path / "two.pt")["model"]["a"].item() == 1.75
    for argv in (
        [str(tmp_path / "empty"), "--last", "2"],
        [str(tmp_path / "missing.pt")],
        [str(tmp_path)],
        [str(tmp_path / "checkpoint1.pt"), "--last", "1"],
    ):
        capsys.readouterr()
        assert main(["average", *argv, "--output", str(tmp_path / "no.pt")]) == 1
        assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "no.pt").exists()
