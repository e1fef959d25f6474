"""Options and tasks at which fairseq 0.12.2 ends in a traceback: they work, or are refused in a sentence."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed
from fairseq.optim.lr_scheduler.inverse_square_root_schedule import InverseSquareRootSchedule
from fairseq.tasks.multilingual_masked_lm import MultiLingualMaskedLMTask
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.semisupervised_translation import SemisupervisedTranslationTask
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from helpers import arguments, dictionary, tiny_model, tiny_trainer

from fairseq_lnplace.compat.options import STARTED
from fairseq_lnplace.compat.tasks import check_model
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.plugin.models.bert import BertLNPlaceModel


def parsed(*words: str) -> Namespace:
    return options.parse_args_and_arch(options.get_training_parser(), ["data", *words])  # type: ignore[no-any-return]


@pytest.mark.parametrize("updates", [0, -3])
def test_inverse_sqrt_without_warmup(updates: int) -> None:
    with pytest.raises(LnplaceError, match=rf"^`--warmup-updates` must be at least 1 .* but is {updates}$"):
        InverseSquareRootSchedule(Namespace(warmup_updates=updates, lr=[0.1]), None)


def test_more_processes_than_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in STARTED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    cfg = convert_namespace_to_omegaconf(arguments("transformer_postln", cpu=True, distributed_world_size=2))
    with pytest.raises(LnplaceError, match=r"^`--distributed-world-size` must be at most 1, for there are 0 GPUs"):
        distributed.infer_init_method(cfg.distributed_training)
    cfg.distributed_training.distributed_world_size = 1
    distributed.infer_init_method(cfg.distributed_training)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cfg.distributed_training.distributed_world_size = cfg.distributed_training.distributed_num_procs = 2
    distributed.infer_init_method(cfg.distributed_training)
    assert cfg.distributed_training.distributed_init_method.startswith("tcp://localhost:")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_tokens": 0}, "`--max-tokens` must be at least 1, but is 0"),
        ({"batch_size": 0}, "`--batch-size` must be at least 1, but is 0"),
        ({"update_freq": [2, 0]}, "`--update-freq` must be at least 1, but is 0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_trainer_refuses(given: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(LnplaceError) as found:
        tiny_trainer(tmp_path, "postln", **given)
    assert str(found.value) == told


def test_half_precision_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gpu(*_: object, **__: object) -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", no_gpu)
    monkeypatch.setattr(torch.Tensor, "cuda", no_gpu)
    trainer = tiny_trainer(tmp_path, "postln", fp16=True)
    with pytest.raises(LnplaceError) as found:
        trainer.optimizer  # noqa: B018 (which is built when it is asked for)
    assert str(found.value) == "`--fp16` must be left out without a GPU (--bf16 needs none), but is given"
    assert tiny_trainer(tmp_path, "postln", bf16=True).optimizer is not None


BLOCKS = [("bert", "postln", "max_positions"), ("lm", "preln_final", "max_target_positions")]


@pytest.mark.parametrize(("kind", "placement", "name"), BLOCKS)
def test_blocks_longer_than_the_model(kind: str, placement: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(LnplaceError) as found:
        tiny_trainer(tmp_path, placement, kind, tokens_per_sample=64, **{name: 16})
    flag = "--" + name.replace("_", "-")
    assert str(found.value) == f"`--tokens-per-sample` must be at most 16, the model's {flag}, but is 64"
    tiny_trainer(tmp_path, placement, kind, tokens_per_sample=16, **{name: 16})
    tiny_trainer(tmp_path, placement, kind, tokens_per_sample=64, sample_break_mode="eos", **{name: 16})
    # no training, which evaluates sentence by sentence and has the option's default
    tiny_model(placement, kind, tokens_per_sample=64, **{name: 16})


def test_positions_follow_the_blocks_of_an_old_task() -> None:
    """The older tasks keep their options as `args`, and not as `cfg`."""
    args = arguments("bert_postln", "bert", tokens_per_sample=24)
    task = MultiLingualMaskedLMTask(args, dictionary())
    assert BertLNPlaceModel.build_model(args, task).max_positions() == 24


@pytest.mark.parametrize(
    ("arch", "task", "fitting"),
    [
        ("transformer_lm_postln", "translation", "language_modeling"),
        ("bert_postln", "translation", "masked_lm"),
        ("bert_postln", "language_modeling", "masked_lm"),
        ("transformer_postln", "masked_lm", "translation"),
        ("transformer_lm", "masked_lm", "language_modeling"),
    ],
)
def test_an_architecture_of_another_kind_than_the_task(arch: str, task: str, fitting: str) -> None:
    words = ["--arch", arch, *(["--task", task] if task != "translation" else [])]  # which is fairseq's default
    with pytest.raises(LnplaceError) as found:
        parsed(*words)
    assert str(found.value) == f"`--task` must be {fitting} with --arch {arch}, but is {task}"
    assert parsed("--arch", arch, "--task", fitting).task == fitting


@pytest.mark.parametrize("task", [MultilingualTranslationTask, SemisupervisedTranslationTask])
def test_tasks_of_several_pairs_ask_for_their_models(task: Any) -> None:
    with pytest.raises(LnplaceError) as found:
        task.build_model(object.__new__(task), Namespace(arch="transformer_postln"))
    assert str(found.value) == (
        "`--arch` must be a model of several pairs, as multilingual_transformer, here, but is transformer_postln"
    )
    check_model(Namespace(arch="multilingual_transformer"))
    check_model(Namespace(arch="one of nobody's"))


def test_translation_from_pretrained_bart_has_its_options() -> None:
    task = object.__new__(TranslationFromPretrainedBARTTask)
    task.cfg = Namespace(langs="de,en")
    assert task.args.langs == "de,en"


@pytest.mark.parametrize("task", ["denoising", "multilingual_denoising"])
def test_denoising_shares_an_option_with_the_model(task: str) -> None:
    words = ["--arch", "transformer_postln", "--task", task, "--max-source-positions", "7"]
    assert parsed(*words).max_source_positions == 7


def test_a_user_dir_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LnplaceError) as found:
        utils.import_user_module(Namespace(user_dir=str(tmp_path / "nowhere")))
    assert str(found.value) == f"`--user-dir` must be a folder, but there is none at {tmp_path}/nowhere"
    broken = tmp_path / "broken_plugin"
    broken.mkdir()
    (broken / "__init__.py").write_text("open('no such file')")
    with pytest.raises(FileNotFoundError, match="no such file"):
        utils.import_user_module(Namespace(user_dir=str(broken)))
