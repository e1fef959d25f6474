"""Translate a prepared test set with a checkpoint and score it with sacreBLEU against the text as it was.

A score never leaves this module without its signature, the checkpoint and the options it was made with.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics import BLEU, CHRF

from fairseq_lnplace import checkpoints
from fairseq_lnplace.corpus.prepare import read_lines
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.versions import versions

__all__ = ["Decoding", "evaluate", "looks_tokenised", "score", "translate"]

# Traces of a tokeniser: a comma or full stop that stands alone, Moses' escapes and its split hyphen. The signs that
# French sets apart (! ? : ;) are none.
_TOKENISED = re.compile(r"\s[.,](?:\s|$)|&(?:apos|quot|amp|lt|gt|#9[13]|#124);|\s@-@\s")
_PUNCTUATED = re.compile(r"[.,&]|@-@")


@dataclass(frozen=True)
class Decoding:
    """Beam search and batching; a hypothesis has at most ``max_len_a * source_length + max_len_b`` pieces."""

    beam: int = 5
    lenpen: float = 1.0
    max_len_a: float = 1.2
    max_len_b: int = 10
    max_tokens: int = 4096
    batch_size: int | None = None
    cpu: bool = False

    def __post_init__(self) -> None:
        for name in ("beam", "max_tokens", "batch_size"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise must_be(f"--{name.replace('_', '-')}", "at least 1", value)
        if self.max_len_a < 0 or self.max_len_a == 0 and self.max_len_b < 1:
            raise must_be("--max-len-a", "0 or more, and --max-len-b at least 1 with it", self.max_len_a)


def looks_tokenised(lines: Sequence[str]) -> bool:
    """Return whether more than half of the lines with punctuation bear the marks of a tokeniser."""
    punctuated = [line for line in lines if _PUNCTUATED.search(line)]
    return 2 * sum(bool(_TOKENISED.search(line)) for line in punctuated) > len(punctuated)


def score(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return corpus BLEU and chrF (0 to 100) with their signatures and BLEU's own report.

    Raises:
        LnplaceError: the numbers of lines differ, or the references are tokenised, which would flatter the score.
    """
    if len(hypotheses) != len(references):
        raise LnplaceError(f"There must be one reference a sentence, but {len(hypotheses)} have {len(references)}")
    if looks_tokenised(references):
        raise LnplaceError("References for sacreBLEU must be raw text, but these are tokenised: take the original text")
    result: dict[str, Any] = {}
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        scored = metric.corpus_score(hypotheses, [references])
        result[name] = {"score": scored.score, "signature": str(metric.get_signature()), "text": str(scored)}
    return result


def translate(checkpoint: Path, data: Path, subset: str, decoding: Decoding) -> tuple[list[str], dict[str, Any]]:
    """Return the detokenised translations in the corpus' order, and what they were made from.

    This is ``fairseq-generate --remove-bpe sentencepiece`` without its log: the same model, batches and beam search.

    Raises:
        LnplaceError: the checkpoint does not translate, or does not fit the data.
    """
    from fairseq import checkpoint_utils, utils
    from fairseq.dataclass.configs import GenerationConfig

    state = checkpoints.load(checkpoint)
    identity = checkpoints.model_identity(state)
    del state
    if not (data / "dict.en.txt").is_file() and not any(data.glob("dict.*.txt")):
        raise must_be("--data", "a folder that `lnplace prepare` or fairseq-preprocess made", data)
    try:
        # BLEU during training is switched off: it would ask for that run's tokeniser.
        overrides = {"data": str(data), "eval_bleu": False}
        (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], overrides)
    except (RuntimeError, FileNotFoundError) as error:
        raise LnplaceError(f"{checkpoint} does not fit {data}: {' '.join(str(error).split())[:300]}") from error
    if getattr(task, "target_dictionary", None) is None or not hasattr(cfg.task, "target_lang"):
        raise must_be("--checkpoint", "of a translation task", f"of {cfg.task._name}")
    try:
        task.load_dataset(subset, task_cfg=cfg.task)
    except FileNotFoundError as error:
        raise must_be("--gen-subset", f"a split that {data} holds", repr(subset)) from error

    cuda = torch.cuda.is_available() and not decoding.cpu
    if cuda:
        model.cuda()
    model.prepare_for_inference_(cfg)
    generation = GenerationConfig(
        beam=decoding.beam, lenpen=decoding.lenpen, max_len_a=decoding.max_len_a, max_len_b=decoding.max_len_b
    )
    generator = task.build_generator([model], generation)
    dataset = task.dataset(subset)
    batches = task.get_batch_iterator(
        dataset,
        max_tokens=decoding.max_tokens,
        max_sentences=decoding.batch_size,
        max_positions=utils.resolve_max_positions(task.max_positions(), model.max_positions()),
        required_batch_size_multiple=8,
    ).next_epoch_itr(shuffle=False)
    translations: dict[int, str] = {}
    for sample in batches:
        sample = utils.move_to_cuda(sample) if cuda else sample
        for index, found in zip(sample["id"].tolist(), task.inference_step(generator, [model], sample), strict=True):
            translations[index] = task.target_dictionary.string(
                found[0]["tokens"].int().cpu(),
                bpe_symbol="sentencepiece",
                extra_symbols_to_ignore=generator.symbols_to_strip_from_output,
            )
    about = {
        **identity,
        "source_lang": cfg.task.source_lang,
        "target_lang": cfg.task.target_lang,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
    }
    return [translations[index] for index in range(len(dataset))], about


def evaluate(
    checkpoint: Path, data: Path, subset: str, decoding: Decoding, references: Path | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the record of an evaluation and the translations.

    Args:
        references: raw text, a line a sentence; by default the one that ``lnplace prepare`` kept.

    Raises:
        LnplaceError: whatever ``translate`` and ``score`` refuse.
    """
    start = time.perf_counter()
    ...
