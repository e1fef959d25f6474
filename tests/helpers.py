"""Tiny models for tests, built as `fairseq-train` builds them: its parser, a registered architecture, a stock task."""

from __future__ import annotations

from argparse import Namespace
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch
from fairseq import options as fairseq_options
from fairseq.data import Dictionary
from fairseq.data.language_pair_dataset import collate
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import build_model
from fairseq.tasks import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer
from omegaconf import OmegaConf
from torch import Tensor, nn

import fairseq_lnplace  # noqa: F401 (importing registers)

SIZE = {"embed_dim": 8, "ffn_embed_dim": 12, "attention_heads": 2}
# kind of model -> (stock task, prefix of the architectures, depth by side)
KINDS = {
    "translation": ("translation", "transformer_", {"encoder": 3, "decoder": 2}),
    "lm": ("language_modeling", "transformer_lm_", {"decoder": 3}),
    "bert": ("masked_lm", "bert_", {"encoder": 3}),
}


def dictionary(words: int = 12) -> Dictionary:
    """Return a dictionary of so many words and fairseq's four special symbols."""
    symbols = Dictionary()
    for number in range(words):
        symbols.add_symbol(f"word{number}")
    symbols.finalize(padding_factor=1)
    return symbols


def task_of(kind: str, args: Namespace, symbols: Dictionary) -> FairseqTask:
    """Return the stock task, on a dictionary of ours and without data."""
    if kind == "translation":
        return TranslationTask(args, symbols, symbols)
    if kind == "lm":
        return LanguageModelingTask(args, symbols)
    return MaskedLMTask(args, symbols)


@cache
def _parsed(*argv: str) -> Namespace:
    return fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), list(argv))


def arguments(arch: str, kind: str = "translation", **options: Any) -> Namespace:
    """Return the parsed command line of a tiny model; an option is a value, True for a flag, False to leave it out."""
    task, _, depths = KINDS[kind]
    given: dict[str, Any] = {"dropout": 0, "attention_dropout": 0, "activation_dropout": 0}
    for side, depth in depths.items():
        given |= {f"{side}_{name}": value for name, value in SIZE.items()} | {f"{side}_layers": depth}
    argv = ["data", "--task", task, "--arch", arch]
    for name, value in (given | options).items():
        if value is not False and value is not None:
            argv += ["--" + name.replace("_", "-"), *([] if value is True else [str(value)])]
    return Namespace(**vars(_parsed(*argv)))


def tiny_task(kind: str = "translation", args: Namespace | None = None) -> FairseqTask:
    """Return the stock task of ``kind``, on the tiny dictionary and without data; ``args`` as of :func:`arguments`."""
    return task_of(kind, args or arguments(KINDS[kind][1] + "postln", kind), dictionary())


def tiny_model(placement: str, kind: str = "translation", **options: Any) -> nn.Module:
    """Return a freshly initialised tiny model of ``kind`` (see KINDS) in training mode and float32.

    Args:
        placement: the placement's name.
        kind: translation, lm or bert.
        options: further command-line options by name; they win over the tiny size and over dropout 0.
    """
    return _built(arguments(KINDS[kind][1] + placement, kind, **options), kind)


def stock_model(normalize_before: bool, **options: Any) -> nn.Module:
    """Return stock fairseq's own `transformer` of the tiny size, Pre-LN or Post-LN; ``options`` as of tiny_model."""
    before = {f"{side}_normalize_before": normalize_before for side in ("encoder", "decoder")}
    model = _built(arguments("transformer", **before | options), "translation")
    for name, buffer in model.named_buffers():
        if name.endswith("_float_tensor"):
            buffer.zero_()  # fairseq leaves its one number as it finds it in memory, which may be no number
    return model


def _built(args: Namespace, kind: str) -> nn.Module:
    torch.manual_seed(1)
    return build_model(args, tiny_task(kind, args))  # type: ignore[no-any-return]


def batch(
    source: tuple[int, ...] = (5, 3, 7), target: tuple[int, ...] = (4, 6, 2), words: int = 12, seed: int = 1
) -> dict[str, Any]:
    """Return a translation batch, collated as `fairseq-train` does: padding left of the sources, right of the targets.

    Args:
        source, target: the numbers of random words of each sentence, without the end symbol.
        words: the number of words of :func:`dictionary`.
        seed: what the words are drawn with.
    """
    draw, symbols = torch.Generator().manual_seed(seed), dictionary(words)

    def sentence(length: int) -> Tensor:
        real = torch.randint(symbols.nspecial, len(symbols), (length,), generator=draw)
        return torch.cat([real, torch.tensor([symbols.eos()])])

    pairs = [
        {"id": number, "source": sentence(s), "target": sentence(t)}
        for number, (s, t) in enumerate(zip(source, target, strict=True))
    ]
    return collate(pairs, symbols.pad(), symbols.eos())


def fill_in(model: nn.Module) -> nn.Module:
    """Give every parameter, and Admin's measured starts, a value of its own that is not its start; turn to float64.

    Matrices and scales get numbers of order 0.4, norms' weights numbers around 1.
    """
    model.double()
    named: list[tuple[str, Tensor]] = [*model.named_parameters()]
    named += [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("profiled_skip")]
    with torch.no_grad():
        for seed, (name, tensor) in enumerate(named):
            noise = torch.randn(tensor.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
            is_norm = name.endswith(("norm.weight", "profiled_skip")) or (".norms." in name and name.endswith("weight"))
            tensor.copy_(0.4 * noise + float(is_norm))
        for name, buffer in model.named_buffers():
            if name.endswith("profile.done"):
                buffer.fill_(1000)  # the starts are given, not to be measured
    return model


def varied(model: Any, seed: int = 4) -> Any:
    """Return the model in evaluation and float64, with weights that let its sentences differ, in length, too."""
    draw, eos = torch.Generator().manual_seed(seed), tiny_task().target_dictionary.eos()
    model.double().eval()
    norm = model.decoder.layer_norm or model.decoder.layers[-1].final_layer_norm
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7, generator=draw)
        if model.decoder.output_projection is not None and getattr(norm, "bias", None) is not None:
            norm.weight.fill_(1)
            norm.bias.copy_(torch.eye(norm.dim)[0])  # so that the first column says which words are liked: to end
            model.decoder.output_projection.weight[eos, 0] = 1
    return model


@cache
def _configuration(kind: str, optimizer: str, criterion: str) -> Any:
    """Return fairseq's whole configuration for a tiny model; converting a command line to it takes longest."""
    given = {"optimizer": optimizer, "criterion": criterion, "lr": 0.1, "cpu": True}
    return convert_namespace_to_omegaconf(arguments(KINDS[kind][1] + "postln", kind, **given))


def tiny_trainer(
    save_dir: Path,
    placement: str,
    kind: str = "translation",
    optimizer: str = "sgd",
    criterion: str = "",
    **options: Any,
) -> Trainer:
    """Return fairseq's trainer of a tiny model, on the CPU.

    Args:
        save_dir: where it writes.
        placement, kind: as of :func:`tiny_model`.
        optimizer: fairseq's name of it; its learning rate is 0.1.
        criterion: likewise; by default what suits the kind.
        options: further options by name, as a parsed command line has them.
    """
    usual = "masked_lm" if kind == "bert" else "label_smoothed_cross_entropy"
    cfg = deepcopy(_configuration(kind, optimizer, criterion or usual))
    cfg.model._name = KINDS[kind][1] + placement
    for name, value in {"save_dir": str(save_dir), "placement": placement, **options}.items():
        groups = [group for group in cfg.values() if OmegaConf.is_config(group) and name in group]
        assert groups, name
        for group in groups:
            group[name] = value
    torch.manual_seed(1)
    task = task_of(kind, cfg.task, dictionary())
    return Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))


def sample_of(kind: str, **sizes: Any) -> dict[str, Any]:
    """Return a batch of ``kind``; ``sizes`` as of :func:`batch`."""
    made = batch(**sizes)
    if kind != "translation":  # BERT predicts every word, a language model the next
        words = made["target"] if kind == "bert" else made["net_input"]["prev_output_tokens"]
        made["net_input"] = {"src_tokens": words, "src_lengths": made["net_input"]["src_lengths"]}
    return made
