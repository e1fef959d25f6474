"""What is measured: models of named architectures at initialisation, or out of checkpoints."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.models import (
    ARCH_MODEL_NAME_REGISTRY,
    ARCH_MODEL_REGISTRY,
    FairseqEncoderDecoderModel,
    FairseqLanguageModel,
    build_model,
)
from fairseq.tasks import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.tasks.translation import TranslationTask
from torch import Tensor, nn

from fairseq_lnplace.checkpoints import options as checkpoint_options
from fairseq_lnplace.compat import load_checkpoint
from fairseq_lnplace.diagnostics.text import Kind, Text
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.layers.initialisation import layers_of
from fairseq_lnplace.layers.profile import Profile
from fairseq_lnplace.plugin.models.method import LAYER
from fairseq_lnplace.plugin.training_args import training_args

__all__ = ["INITIAL", "Subject", "from_architecture", "from_checkpoint", "settle", "state_of"]

Sample = dict[str, Any]

INITIAL = "initialisation"
# the task and the criterion, each with its options, that a model is measured with where the user names no other
USUAL: dict[Kind, tuple[str, ...]] = {
    "translation": (
        *("--task", "translation", "--criterion", "label_smoothed_cross_entropy"),
        *("--label-smoothing", "0.1"),
    ),
    "lm": ("--task", "language_modeling", "--criterion", "cross_entropy"),
    "bert": ("--task", "masked_lm", "--criterion", "masked_lm"),
}

STACKS: dict[Kind, tuple[str, ...]] = {"translation": ("encoder", "decoder"), "lm": ("decoder",), "bert": ("encoder",)}


@dataclass(frozen=True)
class Subject:
    """One of fairseq's models and its loss, to be measured on fairseq's batches.

    Attributes:
        arch: the architecture's name.
        placement: its placement; empty for stock fairseq's models.
        state: "initialisation" or the checkpoint's folder and name.
        seed: what the model was initialised with, and its batches are drawn with.
        kind: which form of batches it reads.
        model: in training mode.
        criterion: fairseq's.
    """

    arch: str
    placement: str
    state: str
    seed: int
    kind: Kind
    model: nn.Module
    criterion: Any

    @property
    def label(self) -> str:
        """The name in tables and legends."""
        return self.arch if self.state == INITIAL else f"{self.arch}, {self.state}"

    @property
    def stacks(self) -> dict[str, list[nn.Module]]:
        """The layers of each stack, from the bottom, the encoder first."""
        stacks: dict[str, list[nn.Module]] = {}
        for name, module in self.model.named_modules():
            if found := LAYER.fullmatch(f"{name}."):
                stacks.setdefault(found[1], []).append(module)
        return stacks

    def run(self, batch: Sample) -> Any:
        """Return what the model makes of a batch."""
        return self.model(**batch["net_input"])

    def loss(self, batch: Sample) -> Tensor:
        """Return the loss of a batch in nats a token, as the gradient of fairseq-train takes it; shape ()."""
        loss, size, _ = self.criterion(self.model, batch)
        return loss / size  # type: ignore[no-any-return]

    def real(self, batch: Sample, stack: str) -> Tensor:
        """Return which positions of what a stack reads are no padding, B x T."""
        inputs = batch["net_input"]
        tokens: Tensor = inputs["src_tokens"]
        if stack == "decoder":
            tokens = inputs.get("prev_output_tokens", tokens)
        return tokens.ne(self.criterion.padding_idx)

    def output(self, batch: Sample) -> Tensor:
        """Return the last stack's output at the N real positions, N x C."""
        features: Tensor = self.model(**batch["net_input"], features_only=True)[0]
        return features[self.real(batch, list(self.stacks)[-1])]

    def opened(self) -> Subject:
        """Return itself.

        Raises:
            LnplaceError: the layers are not this package's.
        """
        if not next(layers_of(self.model), None):
            raise LnplaceError("`--arch` must be of this package's models, whose layers can be looked into")
        return self


def kind_of(arch: str) -> Kind:
    """Return the kind of an architecture's, or registered model's, models.

    Raises:
        LnplaceError: there is none of this name.
    """
    model = ARCH_MODEL_REGISTRY.get(arch)
    if model is None:
        raise must_be("--arch", "an architecture, such as transformer_postln_tiny", arch)
    if issubclass(model, FairseqEncoderDecoderModel):
        return "translation"
    return "lm" if issubclass(model, FairseqLanguageModel) else "bert"


def _task(kind: Kind, args: Any, text: Text) -> FairseqTask:
    """Return the stock task on the text's dictionaries."""
    if kind == "translation":
        return TranslationTask(args, text.source, text.target)
    if kind == "lm":
        return LanguageModelingTask(args, text.target)
    return MaskedLMTask(args, text.target)


def from_architecture(arch: str, extra: Sequence[str], text: Text, seed: int, layers: int | None = None) -> Subject:
    """Return a freshly initialised model of an architecture.

    Args:
        arch: its name.
        extra: options of fairseq-train.
        text: what it is to read.
        seed: of the initialisation.
        layers: of every stack, where not the architecture's own.

    Raises:
        LnplaceError: there is no such architecture, or an option is wrong.
    """
    kind = kind_of(arch)
    depth = [word for side in STACKS[kind] if layers for word in (f"--{side}-layers", str(layers))]
    args = training_args([".", *USUAL[kind], *extra, *depth, "--arch", arch])
    torch.manual_seed(seed)
    task = _task(kind, args, text)
    model = build_model(args, task)
    return Subject(arch, _placement(args), INITIAL, seed, kind, model.train(), task.build_criterion(args))


def from_checkpoint(path: Path, text: Text) -> Subject:
    """Return the model of a checkpoint.

    Raises:
        LnplaceError: it is not a checkpoint of fairseq, or its dictionaries are not the text's.
    """
    torch.manual_seed(1)  # of its dropout
    saved = checkpoint_options(load_checkpoint(path), "model")
    name = str(saved.get("arch") or saved.get("_name"))
    kind = kind_of(name if name in ARCH_MODEL_REGISTRY else str(saved.get("_name")))
    arch = name if name in ARCH_MODEL_NAME_REGISTRY else str(saved.get("_name"))
    args = training_args([".", *USUAL[kind], "--arch", arch])
    try:
        (model,), cfg = checkpoint_utils.load_model_ensemble([str(path)], task=_task(kind, args, text))
    except (RuntimeError, LnplaceError) as error:
        raise LnplaceError(f"{path} does not fit {text.name}: {' '.join(str(error).split())[:300]}") from error
    task = _task(kind, cfg.task, text)
    criterion = task.build_criterion(cfg.criterion)
    return Subject(name, str(saved.get("placement") or ""), state_of(path), 1, kind, model.train(), criterion)


def state_of(path: Path) -> str:
    """Return what a checkpoint is called in tables: its folder, which names the run, and its name."""
    return f"{path.resolve().parent.name}/{path.stem}"


def _placement(args: Namespace) -> str:
    """Return the placement of parsed options."""
    return str(getattr(args, "placement", None) or "")


def settle(subject: Subject, samples: Iterable[Sample]) -> None:
    """Let a method that measures its scales in the first training forwards (Admin) do so on these batches."""
    if any(isinstance(module, Profile) and not module.done for module in subject.model.modules()):
        training = subject.model.training
        subject.model.train()
        with torch.no_grad():
            for sample in samples:
                subject.loss(sample)
        subject.model.train(training)
