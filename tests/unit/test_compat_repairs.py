"""The smaller repairs: what they mend is broken without them, and nobody else notices them."""

from __future__ import annotations

import logging
import subprocess
import sys
import traceback
import warnings
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
from fairseq import options
from fairseq.data import LanguagePairDataset, TokenBlockDataset, data_utils
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from fairseq.ngram_repeat_block import NGramRepeatBlock
from helpers import batch, tiny_model, tiny_task, varied

from fairseq_lnplace.compat import hydra_train, one_sentence, score
from fairseq_lnplace.compat.numpy_names import add_names
from fairseq_lnplace.compat.quiet import quieten
from fairseq_lnplace.errors import LnplaceError


def nothing(module: ModuleType) -> None:
    """Stands in for the execution of a module."""


def test_numpy_names_are_there_for_fairseq_alone() -> None:
    mask = data_utils.compute_mask_indices((2, 20), None, 0.5, 4, mask_type="uniform", mask_other=2)  # uses np.int
    assert mask.shape == (2, 20)
    assert not hasattr(numpy, "int")
    assert data_utils.np.random is numpy.random


def test_blocks_of_sentences() -> None:
    """`--sample-break-mode eos` uses np.compat."""
    blocks = TokenBlockDataset([torch.ones(3), torch.ones(2)], [3, 2], None, pad=1, eos=2, break_mode="eos")
    assert [len(blocks[number]) for number in range(2)] == [3, 2]


def test_buckets_of_lengths() -> None:
    """`--num-batch-buckets` uses np.percentile's `interpolation` and np.compat."""
    assert data_utils.get_buckets([1, 2, 3, 4, 5, 6, 7, 9], 2).tolist() == [4, 9]
    assert data_utils.np.percentile([1, 2], 50) == 1.5
    words, dictionary = (
        [torch.ones(length, dtype=torch.int64) for length in (1, 2, 5, 7)],
        tiny_task().source_dictionary,
    )
    pairs = LanguagePairDataset(
        *(words, [1, 2, 5, 7], dictionary), *(words, [1, 2, 5, 7], dictionary), num_buckets=2, shuffle=False
    )
    assert [len(pairs[number]["source"]) for number in range(4)] == [2, 2, 7, 7]
    assert pairs.num_tokens(0) == 2


def test_a_numpy_with_all_names_is_left_alone() -> None:
    module, old = ModuleType("m"), ModuleType("numpy")
    vars(old).update(int=int, float=float, compat=None, percentile=lambda a, q, interpolation="linear": None)
    vars(module)["np"] = old
    add_names(module, nothing)
    assert module.np is old


def test_stock_encoder_never_takes_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", None)  # calling it would be an error
    cfg = TransformerConfig()
    cfg.encoder.embed_dim, cfg.encoder.ffn_embed_dim, cfg.encoder.attention_heads = 8, 16, 2
    layer = TransformerEncoderLayerBase(cfg)
    layer.load_state_dict(layer.state_dict())  # what armed the fast path
    layer.eval()
    padding = torch.tensor([[False, False, True]])
    assert layer(torch.ones(3, 1, 8), padding).shape == (3, 1, 8)


def repeats(words: list[int], size: int) -> bool:
    grams = [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]
    return len(set(grams)) < len(grams)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("scripted", [False, True])
def test_no_ngram_is_repeated(size: int, scripted: bool) -> None:
    """A walk over ten words, of which each next one is the least that may come."""
    rule: Any = NGramRepeatBlock(size)
    rule = torch.jit.script(rule) if scripted else rule
    tokens = torch.full((1, 20), 1)  # room for more than there are words
    tokens[0, 0] = 2
    words = [2] if size > 1 else []  # the end, too, which may come nevertheless
    for step in range(9):
        scores = rule(tokens, torch.zeros(1, 13), 1, 1, step)[0]
        assert [
            word for word in range(13) if repeats([*words, word], size)
        ] == scores.isinf().nonzero().flatten().tolist()
        words.append(next(word for word in range(3, 13) if not scores[word].isinf()))
        tokens[0, step + 1] = words[-1]
    assert len(set(words)) > 2


def test_generation_repeats_no_ngram() -> None:
    task, model = tiny_task(), varied(tiny_model("preln_final"))
    repeated = []
    for rule in ({}, {"no_repeat_ngram_size": 2}):
        generator = task.build_generator([model], Namespace(beam=3, min_len=12, max_len_a=0, max_len_b=15, **rule))
        found = task.inference_step(generator, [model], batch())
        repeated.append([repeats(each["tokens"].tolist(), 2) for beam in found for each in beam])
    assert any(repeated[0])
    assert not any(repeated[1])


def test_score_reads_files_of_sentences() -> None:
    fake = ModuleType("sacrebleu")

    def corpus_bleu(system: list[str], references: list[list[str]]) -> Any:
        return system, references

    vars(fake).update(corpus_bleu=corpus_bleu, other=5)
    module = ModuleType("fairseq_cli.score")

    def execute(module: ModuleType) -> None:
        exec(
            "def go(a, b):\n    import sacrebleu, json\n    return sacrebleu.corpus_bleu(a, [b]), sacrebleu.other",
            vars(module),
        )

    sys.modules["sacrebleu"], real = fake, sys.modules.get("sacrebleu")
    try:
        score.read_files(module, execute)
        assert module.go(iter(["a\n", "b"]), iter(["c\n"])) == ((["a", "b"], [["c"]]), 5)
    finally:
        if real:
            sys.modules["sacrebleu"] = real
        else:
            del sys.modules["sacrebleu"]


@pytest.fixture
def filters() -> Iterator[None]:
    with warnings.catch_warnings():
        yield


def test_only_named_warnings_are_quiet(filters: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "warnoptions", [])
    warnings.simplefilter("always")
    quieten(ModuleType("fairseq"), nothing)
    with warnings.catch_warnings(record=True) as seen:
        warnings.warn("\nThe version_base parameter is not specified.\nPlease", UserWarning, stacklevel=1)
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, then", UserWarning, stacklevel=1
        )
        warnings.warn_explicit("old", FutureWarning, "f.py", 1, module="fairseq.tasks.fairseq_task")
        assert seen == []
        warnings.warn_explicit("old", FutureWarning, "f.py", 1, module="fairseq_other")
        warnings.warn_explicit("your data is odd", UserWarning, "f.py", 1, module="fairseq.tasks")
        assert [str(warning.message) for warning in seen] == ["old", "your data is odd"]


def test_whoever_asks_for_warnings_gets_them(filters: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "warnoptions", ["default"])
    before = list(warnings.filters)
    quieten(ModuleType("fairseq"), nothing)
    assert list(warnings.filters) == before


def test_only_the_tensorboard_line_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    quieten(ModuleType("fairseq"), nothing)
    log = logging.getLogger("fairseq.tasks.text_to_speech")
    with caplog.at_level(logging.INFO):
        log.info("Please install tensorboardX: pip install tensorboardX")
        log.info("Please do")
    assert caplog.messages == ["Please do"]


def caught(*steps: Exception) -> Exception:
    """Raise each exception while handling the one before it; return the last."""
    error: Exception | None = None
    for step in steps:
        try:
            if error is None:
                raise step
            try:
                raise error
            except Exception:
                raise step  # noqa: B904 (as fairseq does)
        except Exception as now:
            error = now
    assert error is not None
    return error


def test_sentence_of_our_error() -> None:
    assert one_sentence.sentence_of(caught(LnplaceError("`a` must be b, but is c"))) == "`a` must be b, but is c"


def test_sentence_of_an_error_that_fairseq_wrapped() -> None:
    assert one_sentence.sentence_of(caught(LnplaceError("why"), Exception("Cannot load model parameters"))) == "why"


def test_no_sentence_of_others() -> None:
    assert one_sentence.sentence_of(caught(ValueError("x"), RuntimeError("y"))) is None


class Broken(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        raise LnplaceError("from a worker")


def test_sentence_of_a_data_loaders_worker() -> None:
    with pytest.raises(LnplaceError) as found:
        list(torch.utils.data.DataLoader(Broken(), num_workers=1))
    assert one_sentence.sentence_of(found.value) == "from a worker"


def test_sentence_of_a_spawned_trainer() -> None:
    text = "".join(traceback.format_exception(caught(LnplaceError("from rank 1"))))
    error = torch.multiprocessing.ProcessRaisedException(f"\n\n-- Process 1 terminated:\n{text}", 1, 1)
    assert one_sentence.sentence_of(error) == "from rank 1"


def test_commands_print_our_sentence_and_leave_other_errors_to_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: left.append(error))
    monkeypatch.setattr(sys, "argv", ["/bin/fairseq-train"])
    one_sentence.in_every_command(ModuleType("fairseq_cli"), nothing)
    ours, other = caught(LnplaceError("why")), caught(ValueError("x"))
    sys.excepthook(type(ours), ours, ours.__traceback__)
    sys.excepthook(type(other), other, other.__traceback__)
    assert capsys.readouterr() == ("", "fairseq-train: why\n")
    assert left == [other]


@pytest.mark.parametrize(("error", "ends"), [(LnplaceError("why"), SystemExit), (ValueError("x"), ValueError)])
def test_hydra_train_exits_with_our_sentence(
    error: Exception, ends: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    def train(cfg: object) -> None:
        raise error

    module = ModuleType("fairseq_cli.hydra_train")
    vars(module).update(_hydra_main=train, cli_main=lambda: None)
    hydra_train.in_hydra_train(module, nothing)
    with pytest.raises(ends):
        module._hydra_main({})
    assert capsys.readouterr().err.endswith("why\n" if ends is SystemExit else "")


def test_bf16_is_for_every_device() -> None:
    """fairseq 0.12.2 takes --bf16 for a TPU's, and then fails in torch_xla, which is not there."""
    parser = options.get_training_parser()
    words = ["data", "--arch", "transformer", "--bf16", "--cpu"]
    args = options.parse_args_and_arch(parser, words)
    assert args.bf16
    assert not args.tpu
    known, _ = options.parse_args_and_arch(options.get_training_parser(), [*words, "--unknown"], parse_known=True)
    assert not known.tpu


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("+lr_scheduler._name=x +lr_scheduler.a=1 b=2", "~lr_scheduler +lr_scheduler._name=x +lr_scheduler.a=1 b=2"),
        ("lr_scheduler._name=x lr_scheduler.a=1", "~lr_scheduler +lr_scheduler._name=x +lr_scheduler.a=1"),
        ("++criterion._name=x", "~criterion +criterion._name=x"),
        ("~lr_scheduler +lr_scheduler._name=x", "~lr_scheduler +lr_scheduler._name=x"),
        ("lr_scheduler=x lr_scheduler._name=x", "lr_scheduler=x lr_scheduler._name=x"),
        ("+model._name=x optimizer._name=adam", "+model._name=x optimizer._name=adam"),
        ("--config-name mine +lr_scheduler._name=x", "--config-name mine +lr_scheduler._name=x"),
    ],
)
def test_hydra_train_names_a_group_that_has_a_default(given: str, meant: str) -> None:
    assert hydra_train.without_defaults(given.split()) == meant.split()


def test_a_command_ends_with_the_sentence_and_status_1(tmp_path: Path) -> None:
    (tmp_path / "fairseq_cli").mkdir()
    (tmp_path / "fairseq_cli" / "__init__.py").write_text("")
    code = f"""
import importlib.machinery, sys
sys.path.insert(0, {str(tmp_path)!r})
import fairseq_cli
LnplaceError = type("LnplaceError", (ValueError,), {{"__module__": "fairseq_lnplace.errors"}})
raise LnplaceError("why")
"""
    root = Path(__file__).parents[2]
    pth = (root / "fairseq_lnplace" / "fairseq_lnplace.pth").read_text()
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.append({str(root)!r})\n{pth}{code}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "-c: why\n")


def test_a_thread_in_the_midst_of_a_batch_does_not_abort_the_process() -> None:
    """Of two readers one always has room, and stands in torch when the process ends; the other waits for room."""
    script = """
import torch
from fairseq.data.iterators import BufferedIterator

class Batches:
    def __len__(self): return 10**6
    def __iter__(self):
        while True:
            batch = torch.full((64, 50), 1)
            for row in batch: row.copy_(torch.arange(50))
            yield batch

readers = [BufferedIterator(size, Batches()) for size in (10**6, 1)]
for reader in readers: next(reader)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (0, "")
