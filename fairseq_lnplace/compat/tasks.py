"""Tasks of fairseq 0.12.2 that end in a traceback with any model, or with one whose options are a dataclass."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from fairseq_lnplace.compat.raised import error

__all__ = ["ask_for_multi_models", "check_kind", "let_models_win", "name_args"]


def name_args(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute `translation_from_pretrained_bart`, whose code reads `args` where its base has long had `cfg`."""
    execute(module)
    task = module.TranslationFromPretrainedBARTTask
    if not hasattr(task, "args"):
        task.args = property(lambda self: self.cfg)


def ask_for_multi_models(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute `multilingual_translation` or `semisupervised_translation`, and say what they ask of a model.

    They look for their own options among the model's before they look at the model.
    """
    execute(module)
    task = vars(module).get("SemisupervisedTranslationTask") or module.MultilingualTranslationTask
    build_model = task.build_model

    @wraps(build_model)
    def build_or_tell(self: Any, args: Any, from_checkpoint: bool = False) -> Any:
        check_model(args)
        return build_model(self, args, from_checkpoint)

    task.build_model = build_or_tell


def check_model(args: Any) -> None:
    """Raise LnplaceError unless the model of this configuration is one for several pairs of languages."""
    from fairseq.models import ARCH_MODEL_REGISTRY, FairseqMultiModel

    name = str(getattr(args, "arch", None) or getattr(args, "_name", None))
    model = ARCH_MODEL_REGISTRY.get(name)
    if model is not None and not issubclass(model, FairseqMultiModel):
        raise error(f"`--arch` must be a model of several pairs, as multilingual_transformer, here, but is {name}")


def let_models_win(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute `denoising` or `multilingual_denoising`, which has an option that every Transformer has, too.

    argparse refuses the second one; they mean the same and are kept by the same name.
    """
    execute(module)
    for task in vars(module).values():
        if not (isinstance(task, type) and "add_args" in vars(task)):
            continue
        add_args = vars(task)["add_args"].__func__

        def add_with_others(parser: Any, add_args: Callable[[Any], None] = add_args) -> None:
            for group in (parser, *parser._action_groups):
                group.conflict_handler = "resolve"
            add_args(parser)

        setattr(task, "add_args", staticmethod(add_with_others))  # noqa: B010 (no attribute of every type)


def check_kind(arch: str | None, task: str | None) -> None:
    """Raise LnplaceError where one of fairseq's three usual tasks is to train a model of another's kind.

    `translation` is what fairseq takes where no task is named, as with a language model's architecture alone.
    """
    from fairseq import models

    kinds = {
        "translation": models.FairseqEncoderDecoderModel,
        "language_modeling": models.FairseqLanguageModel,
        "masked_lm": models.FairseqEncoderModel,
    }
    model = models.ARCH_MODEL_REGISTRY.get(arch, object)
    fitting = [name for name, kind in kinds.items() if issubclass(model, kind)]
    if task in kinds and fitting and task not in fitting:
        raise error(f"`--task` must be {fitting[0]} with --arch {arch}, but is {task}")
