"""The benchmark: its clock, its count of operations, its sides, and the command."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import subprocess
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import arguments, batch, stock_model, tiny_model, tiny_trainer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fairseq_lnplace.bench.data import batches, made_up
from fairseq_lnplace.bench.flops import training_flops
from fairseq_lnplace.bench.generate import bench_generate, search_of, texts_of
from fairseq_lnplace.bench.memory import bench_depth, bench_memory, peak_bytes
from fairseq_lnplace.bench.processes import Work, apart, in_fresh_process
from fairseq_lnplace.bench.profile import OPTIMIZER, OTHER, bench_profile, by_kind, kind_of, profiled
from fairseq_lnplace.bench.report import draw, table
from fairseq_lnplace.bench.setting import Setting
from fairseq_lnplace.bench.sides import sides_of
from fairseq_lnplace.bench.timing import Clock, compared, in_turn
from fairseq_lnplace.bench.train import agreement, bench_train, training
from fairseq_lnplace.cli import main
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.layers import linear
from fairseq_lnplace.layers.dropout import Dropout
from fairseq_lnplace.plugin.models.translation import resolve

PRELN, POSTLN = "transformer_preln_final_tiny", "transformer_postln_tiny"
NARROW = (
    *("--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32", "--encoder-layers", "2"),
    *("--decoder-layers", "2", "--cpu"),
)
CPU = Clock(torch.device("cpu"), 1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up(tmp_path_factory.mktemp("corpus"), words=40)


def setting(corpus: Path, *archs: str, **others: Any) -> Setting:
    given = {"data": corpus, "max_tokens": 100, "batches": 2, "rounds": 2, "cpu": True, "extra": NARROW[:-1], **others}
    return Setting(archs or (PRELN,), **given)


def test_the_made_up_corpus_has_the_demo_corpus_lengths(corpus: Path) -> None:
    with setting(corpus).sides() as sides:
        task = sides[0].trainer().task
    samples = batches(task, "train", 10**6, 1)
    source, target = (
        samples[0][part] if part == "target" else samples[0]["net_input"][part] for part in ("src_tokens", "target")
    )
    pad = task.target_dictionary.pad()
    assert float(source.ne(pad).sum(1).double().mean()) == pytest.approx(21.0, rel=0.1)  # as counted in the demo corpus
    assert float(target.ne(pad).sum(1).double().mean()) == pytest.approx(18.9, rel=0.1)
    assert len(task.target_dictionary) == 40
    assert int(target.max()) < 40


def test_sides_take_turns_and_only_the_warm_up_is_left_out() -> None:
    clock = count()
    seconds = in_turn({name: partial(next, clock) for name in "ab"}, rounds=3)
    assert seconds == {"a": [2, 4, 6], "b": [3, 5, 7]}


def test_speeds_are_compared_within_their_round() -> None:
    figures = compared({"stock": [2.0, 4.0, 6.0], "ours": [1.0, 4.0, 2.0]}, "stock")
    assert figures["ours"]["seconds"] == 2.0
    assert figures["ours"]["speed"] == 2.0  # of 2/1, 4/4, 6/2
    assert figures["ours"]["speed_range"] == [1.0, 3.0]
    assert figures["stock"]["speed"] == 1.0
    assert figures["stock"]["spread"] == pytest.approx(2 / 4)  # quartiles 3 and 5


def test_operations_are_those_that_torch_counts_in_stock() -> None:
    sample = batch((5, 5), (4, 4))  # no padding
    model = stock_model(True).train()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # it counts no fused attention
        model(**sample["net_input"])[0].sum().backward()
    cfg = arguments(PRELN, "translation")
    resolve(cfg)
    vocabulary, pad = len(model.decoder.dictionary), model.decoder.dictionary.pad()
    assert training_flops(cfg, vocabulary, [sample], pad) == pytest.approx(counter.get_total_flops(), rel=1e-6)


@pytest.mark.parametrize("arch", [PRELN, POSTLN])
def test_both_sides_have_the_same_size_and_agree(corpus: Path, arch: str) -> None:
    with setting(corpus, arch).sides() as sides:
        models = [side.trainer().model for side in sides]
        samples = batches(sides[0].trainer().task, "train", 100, 2)
        differences = agreement(sides, samples)
    shared = set(models[1].state_dict())
    assert {name: p.shape for name, p in models[0].state_dict().items() if name in shared} == {
        name: p.shape for name, p in models[1].state_dict().items()
    }
    assert 0 <= differences[arch]["loss_difference"] < 1e-5
    assert 0 <= differences[arch]["gradient_difference"] < 1e-4


@pytest.mark.slow
def test_another_equation_is_timed_but_not_compared(corpus: Path) -> None:
    baseline, other = bench_train(setting(corpus, "transformer_deepnorm_tiny", against=POSTLN, rounds=1, batches=1))
    assert baseline["loss_difference"] == 0.0
    assert "loss_difference" not in other
    assert other["tokens_per_second"] > 0


@pytest.mark.slow
def test_the_same_text_is_generated(corpus: Path) -> None:
    stock, ours = bench_generate(setting(corpus, rounds=1, batches=1), beam=3, double=True)
    assert stock["identical"] == ours["identical"] == 1.0
    assert ours["score_difference"] < 1e-6
    assert ours["sentences_per_second"] > 0


@pytest.mark.slow
def test_a_checkpoints_search_is_profiled_and_ctranslate2_translates_the_same_batches(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with setting(corpus).sides() as sides:
        trainer = sides[1].trainer()
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(tmp_path / "ours.pt"), {})
    options = ["--data", str(corpus), "--max-tokens", "100", "--batches", "1", "--rounds", "1", "--beam", "1", "--cpu"]
    command = ["bench", "ctranslate2", *options, "--output", str(tmp_path / "bench")]
    assert main([*command, "--checkpoint", str(tmp_path / "ours.pt"), "--json"]) == 0
    stock, ours, ctranslate2 = json.loads(capsys.readouterr().out)["rows"]
    assert [each["side"] for each in (stock, ours, ctranslate2)] == ["stock", "fairseq_lnplace", "CTranslate2"]
    assert stock["identical"] == ours["identical"] == ctranslate2["identical"] == 1.0
    assert all(each["sentences_per_second"] > 0 for each in (stock, ours, ctranslate2))
    profile = ["bench", "profile", *options, "--output", str(tmp_path / "bench")]
    assert main([*profile, "--checkpoint", str(tmp_path / "ours.pt"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["side"] for row in rows} == {"stock", "transformer_preln_final"}
    assert "softmax and loss" in {row["operations"] for row in rows}
    assert OPTIMIZER not in {row["operations"] for row in rows}
    assert main(command) == 1
    assert capsys.readouterr().err == (
        "lnplace: `--checkpoint` must be given, to compare with CTranslate2, but is left out\n"
    )


def test_what_is_no_translation_model_of_ours_is_refused(corpus: Path) -> None:
    with pytest.raises(LnplaceError, match="`--arch` must be an architecture of transformer_lnplace"):
        sides_of(["transformer_lm_postln"], "stock", corpus)
    with pytest.raises(LnplaceError, match="but is transformer_wmt_en_de"):
        sides_of([PRELN], "transformer_wmt_en_de", corpus)


def test_compiled_sides_stand_beside_their_eager_ones(corpus: Path) -> None:
    stock, eager, compiled = sides_of([PRELN], "stock", corpus, ("--seed", "3"), compiled=True)
    assert [each.name for each in (stock, eager, compiled)] == ["stock", PRELN, f"{PRELN} compiled"]
    assert [each.args().seed for each in (stock, eager, compiled)] == [3, 3, 3]
    assert ["--compile" in each.argv for each in (eager, compiled)] == [False, True]
    with pytest.raises(LnplaceError, match="`--arch` must be given once for each architecture"):
        sides_of([PRELN], PRELN, corpus, compiled=True)


def test_the_peak_of_memory_follows_what_is_held() -> None:
    before = peak_bytes(CPU.device)
    held = torch.ones(64 * 2**20)  # 256 MiB
    assert peak_bytes(CPU.device) >= held.numel() * 4
    del held
    assert peak_bytes(CPU.device) >= before


def test_a_table_and_a_picture(tmp_path: Path) -> None:
    rows = [
        {"side": name, "speed": speed, "speed_range": [1.0, 2.0]} for name, speed in (("stock", 1.0), ("ours", 1.4))
    ]
    assert [column.header for column in table(rows, "").columns] == ["side", "speed", "rounds"]
    draw(rows, "speeds", tmp_path / "speed.png")
    draw([{**row, "layers": 2, "seconds": 1.0, "peak_mib": 3.0} for row in rows], "depth", tmp_path / "depth.png")
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("speed.png", "depth.png"))


@pytest.mark.slow
def test_the_command_writes_a_record(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    narrow = " ".join(NARROW[:-1])
    argv = ["bench", "train", "--arch", POSTLN, "--data", str(corpus), "--options", narrow, "--max-tokens", "100"]
    assert main([*argv, "--batches", "1", "--rounds", "1", "--cpu", "--json", "--output", str(tmp_path)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((tmp_path / "train.json").read_text())
    assert [row["side"] for row in record["rows"]] == ["stock", POSTLN]
    assert record["clock"] == "CPU time"
    assert all(0 < row["share_of_peak"] < 1 for row in record["rows"])
    assert (tmp_path / "train.png").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["train", "--rounds", "0"], "`--rounds` must be at least 1, but is 0"),
        (["generate", "--beam", "0"], "`--beam` must be at least 1, but is 0"),
        (["depth", "--layers", "2,x"], "`--layers` must be positive numbers with commas between, but is 2,x"),
        (["train", "--beam", "4"], "`--beam` must be left out with train, but is 4"),
        (["generate", "--compile"], "`--compile` must be left out with generate, but is True"),
        (["profile", "--beam", "4"], "`--beam` must be left out with profile, but is 4"),
        (["profile", "--checkpoint", "x", "--compile"], "`--compile` must be left out with profile, but is True"),
        (
            ["train", "--arch", PRELN, "--against", PRELN],
            f"`--arch` must be given once for each architecture, and not the baseline's, but is {PRELN}",
        ),
        (
            ["train", "--options", "--nonsense 1"],
            "fairseq-train refuses its options: unrecognized arguments: --nonsense",
        ),
        (["train", "--against", POSTLN, "--options", "--nonsense 1"], "refuses its options: unrecognized arguments"),
        (["generate", "--checkpoint", "/nowhere.pt"], "/nowhere.pt"),
        (["train", "--data", "/nowhere"], "`--data` must be a folder that `lnplace prepare` made, but is /nowhere"),
    ],
)
def test_mistakes_end_in_one_sentence(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *options]) == 1
    assert message in capsys.readouterr().err


def test_operations_are_put_together_by_kind() -> None:
    assert [kind_of(name) for name in ("aten::addmm", "aten::_log_softmax_backward_data", "aten::expand")] == [
        "matrix products",
        "softmax and loss",
        OTHER,
    ]
    calls = [("products", "mm", 3.0), ("products", "bmm", 2.0), ("products", "mm", 1.0), ("loss", "exp", 2.0)]
    *rows, between = by_kind(calls, rounds=[4.0, 6.0])
    assert [(row["operations"], row["seconds"], row["share"], row["calls"], row["most"]) for row in rows] == [
        ("products", 3.0, 0.6, 1, "mm"),
        ("loss", 1.0, 0.2, 0, "exp"),
    ]
    assert (between["seconds"], between["share"]) == (1.0, pytest.approx(0.2))


@pytest.mark.slow
def test_a_profile_has_the_parts_of_training(corpus: Path, tmp_path: Path) -> None:
    rows = bench_profile(setting(corpus, rounds=1))
    for side in ("stock", PRELN):
        own = {row["operations"]: row for row in rows if row["side"] == side}
        assert sum(row["share"] for row in own.values()) == pytest.approx(1)
        assert {"matrix products", "attention", "softmax and loss", "dropout", "norms", OPTIMIZER} <= own.keys()
        assert all(0 < row["share"] < 1 for row in own.values())
    draw(rows, "a caption", tmp_path / "profile.png")
    assert (tmp_path / "profile.png").stat().st_size > 10_000


@pytest.mark.slow
def test_memory_is_measured_in_a_process_of_its_own(corpus: Path) -> None:
    rows = bench_memory(setting(corpus, rounds=1))
    assert [row["side"] for row in rows] == ["stock", PRELN]
    assert all(0 < row["peak_mib"] < row["peak_total_mib"] for row in rows)
    deep = bench_depth(setting(corpus, rounds=1, against=POSTLN), [1, 3])
    assert [(row["side"], row["layers"]) for row in deep] == [(POSTLN, 1), (PRELN, 1), (POSTLN, 3), (PRELN, 3)]


def process_of(folder: Path, name: str) -> Work:
    """Return a work that writes down which process does it."""
    return lambda: (folder / name).write_text(str(os.getpid()))


@pytest.mark.slow
def test_each_side_is_timed_in_a_process_of_its_own(tmp_path: Path) -> None:
    with apart({name: partial(process_of, tmp_path, name) for name in "ab"}, CPU) as works:
        seconds = in_turn(works, rounds=2)
    assert all(taken > 0 for name in "ab" for taken in seconds[name])
    assert len({os.getpid(), *((tmp_path / name).read_text() for name in "ab")}) == 3
    with pytest.raises(LnplaceError, match="does not fit"), apart({"a": misfit}, CPU):
        raise AssertionError("built nevertheless")
    with pytest.raises(LnplaceError, match="The system ended the process"), apart({"a": partial(os._exit, 1)}, CPU):
        raise AssertionError("built nevertheless")
    with pytest.raises(RuntimeError, match="no such word"):
        in_fresh_process(1, {}.__getitem__, "no such word")
    assert multiprocessing.active_children() == []


def misfit() -> Work:
    raise LnplaceError("x.pt does not fit the sides")


@pytest.mark.slow
def test_measured_processes_end_with_the_first(tmp_path: Path) -> None:
    """However that ends."""
    script = f"""
import os
from functools import partial
from pathlib import Path
from test_bench import CPU, apart, process_of

if __name__ == "__main__":
    with apart({{"a": partial(process_of, Path({str(tmp_path)!r}), "a")}}, CPU) as works:
        works["a"]()
        os._exit(9)
"""
    (tmp_path / "measure.py").write_text(script)
    path = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[1])))
    done = subprocess.run(
        [sys.executable, tmp_path / "measure.py"], env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert done.returncode == 9
    process = Path("/proc", (tmp_path / "a").read_text(), "stat")
    for _ in range(50):
        if not process.exists() or process.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("it goes on")


def test_a_side_trains_and_searches(corpus: Path, tmp_path: Path) -> None:
    with setting(corpus).sides() as sides:
        for side in sides:
            assert len(training(side, setting(corpus))()) == 2
        stock, ours = texts_of(sides, setting(corpus), 2, tmp_path / "weights.pt", False, True)[0]
        assert stock["identical"] == ours["identical"] == 1.0
        again = search_of(sides[1], setting(corpus), 2, tmp_path / "weights.pt", False, True).run()
        assert len(again) > 2
        rows = profiled("ours", setting(corpus, rounds=1), training, sides[1], setting(corpus))
    assert {"matrix products", OPTIMIZER} <= {row["operations"] for row in rows}


def test_a_search_is_a_translation_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final", "lm")
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(tmp_path / "lm.pt"), {})
    assert main(["bench", "generate", "--checkpoint", str(tmp_path / "lm.pt")]) == 1
    told = capsys.readouterr().err
    assert "`--checkpoint` must be of a translation model of this package, but is of transformer_lm" in told


def without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, *_: None)


def test_compile_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("postln", compile=True)
    without_a_compiler(monkeypatch)
    with pytest.raises(LnplaceError, match="`--compile` must be left out without a C\\+\\+ compiler"):
        model.train()
    model.eval()  # a checkpoint of such a run still translates


def test_compile_does_not_go_with_activation_checkpointing() -> None:
    with pytest.raises(LnplaceError, match="`--compile` must be left out with --checkpoint-activations"):
        tiny_model("postln", compile=True, checkpoint_activations=True)


@pytest.mark.skipif(" " in torch.__file__, reason="torch does not quote its own path for the compiler")
def test_torchs_limit_of_graphs_is_out_of_the_way() -> None:
    """Beyond it layers run as they are, and RealFormer's reach 8 with sentences alone, of one word, and padded."""
    with torch._dynamo.config.patch(recompile_limit=8):  # put back afterwards
        tiny_model("realformer", compile=True).train()
        assert torch._dynamo.config.recompile_limit >= 100
    assert torch._dynamo.config.recompile_limit == 8


def test_compiled_dropout_keeps_what_its_gradient_keeps() -> None:
    dropout = torch.compile(Dropout(0.25).train(), backend="aot_eager", dynamic=True)
    x = torch.full((40, 50), 3.0, requires_grad=True)
    torch.manual_seed(1)
    first, second = dropout(x), dropout(x)
    assert not torch.equal(first, second)
    first.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(first, x * x.grad)
    assert float(first.eq(0).double().mean()) == pytest.approx(0.25, abs=0.05)
    assert float(first.max()) == pytest.approx(4.0)


@pytest.mark.slow
@pytest.mark.skipif(" " in torch.__file__, reason="torch does not quote its own path for the compiler")
@pytest.mark.parametrize("short_first", [True, False])
def test_code_for_other_vectors_is_not_taken_out_of_torchs_cache(short_first: bool, tmp_path: Path) -> None:
    """On a CPU with AVX-512 it wrote past the ends of arrays; the other way round it left half of them alone."""
    script = """
import torch
from torch import nn
from fairseq_lnplace.plugin.compiling import set_compiled

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(40)

    def forward(self, x):
        return torch.relu(self.norm(x)) + x

layer, x = Layer(), torch.linspace(-2, 2, 840).view(3, 7, 40).square()
eager = layer(x)
set_compiled(layer, True)
torch.testing.assert_close(layer(x), eager)
"""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    for short in (short_first, not short_first):
        vectors = {"ATEN_CPU_CAPABILITY": "avx2"} if short else {}
        subprocess.run([sys.executable, "-c", script], env=environment | vectors, check=True)


@pytest.mark.slow
@pytest.mark.skipif(" " in torch.__file__, reason="torch does not quote its own path for the compiler")
@pytest.mark.parametrize(("placement", "onednns"), [("preln_final", True), ("admin", False)])
def test_compiled_training_equals_eager(placement: str, onednns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "ONEDNN_IS_FASTER", onednns)
    eager, compiled = tiny_model(placement), tiny_model(placement, compile=True)
    assert list(eager.state_dict()) == list(compiled.state_dict())
    compiled.load_state_dict(eager.state_dict())
    for model in (eager, compiled):
        model.train()
    for sample in (batch(), batch((9, 2), (3, 8)), batch((4, 4), (4, 4))):
        outputs = [model(**sample["net_input"])[0].log_softmax(-1) for model in (eager, compiled)]
        for output in outputs:
            output.mean().backward()
        torch.testing.assert_close(outputs[1], outputs[0], atol=1e-5, rtol=0)
    for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4)
    copied = copy.deepcopy(compiled)  # as fairseq's EMA does
    assert list(copied.state_dict()) == list(eager.state_dict())
    with torch.no_grad():  # and the search, uncompiled
        sample = batch()
        expected = eager.eval()(**sample["net_input"])[0]
        torch.testing.assert_close(compiled.eval()(**sample["net_input"])[0], expected, atol=1e-6, rtol=0)
