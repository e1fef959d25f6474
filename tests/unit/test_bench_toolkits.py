"""Training beside other toolkits: what is written for them, read from them, and their clock. None of them is run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import yaml

from fairseq_lnplace.bench import clocked
from fairseq_lnplace.bench.data import made_up
from fairseq_lnplace.bench.setting import Setting
from fairseq_lnplace.bench.toolkits import (
    ARCH,
    SIZES,
    Toolkit,
    fairseq_pieces,
    joeynmt_pieces,
    main,
    opennmt_pieces,
    toolkits,
    train,
    write_inputs,
)
from fairseq_lnplace.errors import LnplaceError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = made_up(tmp_path_factory.mktemp("corpus"), words=40)
    for name in folder.glob("test.*"):  # which stands in for valid
        name.rename(folder / name.name.replace("test", "valid"))
    return folder


def test_the_others_read_the_same_pieces_and_sizes(corpus: Path, tmp_path: Path) -> None:
    with Setting((ARCH,), data=corpus, extra=SIZES).sides() as sides:
        write_inputs(sides[0], tmp_path, updates=50)
        args = sides[1].args()
    vocabulary = (tmp_path / "vocabulary").read_text().split()
    assert vocabulary == [f"w{number}" for number in range(36)]
    lines = {name: (tmp_path / f"train.{name}").read_text().splitlines() for name in ("src", "tgt")}
    assert {name: len(found) for name, found in lines.items()} == {"src": 4000, "tgt": 4000}
    assert {piece for found in lines.values() for line in found for piece in line.split()} <= set(vocabulary)
    onmt, joey = (yaml.safe_load((tmp_path / f"{name}.yaml").read_text()) for name in ("opennmt", "joeynmt"))
    assert (onmt["train_steps"], joey["training"]["updates"]) == (50, 50)
    stack = joey["model"]["encoder"]
    assert stack == joey["model"]["decoder"]
    sizes = (args.encoder_layers, args.encoder_embed_dim, args.encoder_ffn_embed_dim, args.encoder_attention_heads)
    assert sizes == (onmt["layers"], onmt["hidden_size"], onmt["transformer_ff"], onmt["heads"])
    assert sizes == (stack["num_layers"], stack["hidden_size"], stack["ff_size"], stack["num_heads"])
    assert args.max_tokens == onmt["batch_size"] == joey["training"]["batch_size"]
    assert [args.dropout] == onmt["dropout"] == [stack["dropout"]]
    assert args.label_smoothing == onmt["label_smoothing"] == joey["training"]["label_smoothing"]


def test_the_order_of_the_sides(corpus: Path) -> None:
    with Setting((ARCH,), data=corpus, extra=SIZES).sides() as sides:
        found = toolkits(sides, Path("/environments"), 50)
    assert [each.name for each in found] == ["stock", ARCH, "OpenNMT-py", "JoeyNMT"]
    assert [each.python for each in found[2:]] == [
        Path("/environments/opennmt/bin/python"),
        Path("/environments/joeynmt/bin/python"),
    ]


def test_pieces_of_an_update(tmp_path: Path) -> None:
    lines = ['{"epoch": 1, "wpb": "7"}', '{"epoch": 1, "wpb": "1617.5", "bsz": "96"}']
    assert fairseq_pieces("\n".join(lines), tmp_path) == 1617.5
    log = "Step 1/ 2; sents: 88; bsz: 1872/1785/109; 217/207\nStep 2/ 2; sents: 120; bsz:  900/ 815/ 60; 1/2"
    assert opennmt_pieces(log, tmp_path) == 1300
    (tmp_path / "joeynmt").mkdir()
    state = {"stats_state": {"total_tokens": 900, "steps": 3, "best_ckpt_score": float("inf")}}
    torch.save(state, tmp_path / "joeynmt" / "latest.ckpt")
    assert joeynmt_pieces("", tmp_path) == 300


def test_the_clock_starts_after_the_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "import sys, torch",
        "from torch.optim import SGD",
        "parameter = torch.nn.Parameter(torch.ones(1))",
        "for _ in range(int(sys.argv[1])): SGD([parameter]).step()",
    ]
    (tmp_path / "toy.py").write_text("\n".join(lines))
    handles = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(clocked.time, "process_time", iter([2.0**n for n in range(9)]).__next__)
    register = clocked.register_optimizer_step_post_hook
    monkeypatch.setattr(clocked, "register_optimizer_step_post_hook", lambda hook: handles.append(register(hook)))
    try:
        clocked.main("record", "2", "5", "toy", "7")
    finally:
        handles[0].remove()
    assert float(Path("record").read_text()) == 2.0**4 - 2.0**1


def test_a_training_in_a_process_of_its_own(tmp_path: Path) -> None:
    python = tmp_path / "python"
    for script, error in (
        ('echo 5 > "$2"; echo "$3 $4 $5: bsz: 10/ 30/ 2"', None),
        ('echo 5 > "$2"; exit 3', "toy could not train; the end of .*toy.log tells why"),
        ("true", "toy could not train"),  # nothing was timed, and the other's record is gone
    ):
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o700)
        toy = Toolkit("toy", python, ("module",), opennmt_pieces)
        if error is None:
            assert train(toy, tmp_path, updates=12) == (5 / 2, 30)
            assert (tmp_path / "toy.log").read_text() == "10 12 module: bsz: 10/ 30/ 2\n"
        else:
            with pytest.raises(LnplaceError, match=error):
                train(toy, tmp_path, updates=12)


def test_options_out_of_range(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--data", str(corpus), "--environments", str(tmp_path), "--dest", str(tmp_path / "dest")]
    assert main([*given, "--updates", "10"]) == 1
    assert capsys.readouterr().err == "bench_toolkits: `--updates` must be at least 11, but is 10\n"
    assert not (tmp_path / "dest").exists()
