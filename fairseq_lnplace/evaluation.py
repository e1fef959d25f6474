"""Translate a prepared test set with a checkpoint and score it with sacreBLEU against the text as it was.

A score never leaves this module without its signature, the checkpoint and the options it was made with.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics import BLEU, CHRF

from fairseq_lnplace.checkpoints import model_identity, options
from fairseq_lnplace.compat import load_checkpoint
from fairseq_lnplace.corpus.lines import read_lines
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.versions import versions

__all__ = ["Decoding", "Translator", "evaluate", "looks_tokenised", "score"]

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
        if self.max_len_a < 0 or (self.max_len_a == 0 and self.max_len_b < 1):
            raise must_be("--max-len-a", "0 or more, and --max-len-b at least 1 with it", self.max_len_a)


def looks_tokenised(lines: Sequence[str]) -> bool:
    """Return whether more than half of the lines with punctuation bear the marks of a tokeniser."""
    punctuated = [line for line in lines if _PUNCTUATED.search(line)]
    return 2 * sum(bool(_TOKENISED.search(line)) for line in punctuated) > len(punctuated)


def _refuse_tokenised(references: Sequence[str]) -> None:
    if looks_tokenised(references):
        raise LnplaceError(
            "References for sacreBLEU must be raw text, but these look tokenised, which raises the score"
        )


def score(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return corpus BLEU and chrF (0 to 100) with their signatures and BLEU's own report.

    Raises:
        LnplaceError: the numbers of lines differ, or the references look tokenised.
    """
    if len(hypotheses) != len(references):
        raise LnplaceError(f"There must be one reference a sentence, but {len(hypotheses)} have {len(references)}")
    _refuse_tokenised(references)
    result: dict[str, Any] = {}
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        scored = metric.corpus_score(hypotheses, [references])
        result[name] = {"score": scored.score, "signature": str(metric.get_signature()), "text": str(scored)}
    return result


@dataclass(frozen=True)
class Translator:
    """A trained model with its task, whose dictionaries come from the prepared data."""

    model: Any
    cfg: Any
    task: Any
    identity: dict[str, str]
    device: str

    @classmethod
    def load(cls, checkpoint: Path, data: Path, cpu: bool = False) -> Translator:
        """Load a checkpoint onto the GPU if there is one, else the CPU.

        Raises:
            LnplaceError: the checkpoint does not translate, or does not fit the data.
        """
        from fairseq import checkpoint_utils

        state = load_checkpoint(checkpoint)
        identity = model_identity(options(state, "model"))
        if "target_lang" not in options(state, "task"):
            raise must_be("--checkpoint", "of a translation model", f"of {identity}")
        if not any(data.glob("dict.*.txt")):
            raise must_be("--data", "a folder that `lnplace prepare` or fairseq-preprocess made", data)
        try:
            # BLEU during training is switched off: it would ask for that run's tokeniser.
            (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task(
                [str(checkpoint)], {"data": str(data), "eval_bleu": False}
            )
        except (RuntimeError, FileNotFoundError) as error:
            raise LnplaceError(f"{checkpoint} does not fit {data}: {' '.join(str(error).split())[:300]}") from error
        cuda = torch.cuda.is_available() and not cpu
        if cuda:
            model.cuda()
        model.prepare_for_inference_(cfg)
        return cls(model, cfg, task, identity, torch.cuda.get_device_name() if cuda else "cpu")

    def translate(self, subset: str, decoding: Decoding) -> list[str]:
        """Return the detokenised translations of a split in the corpus' order.

        This is ``fairseq-generate --remove-bpe sentencepiece`` without its log: same batches, same beam search.

        Raises:
            LnplaceError: there is no such split, or one of its sentences is too long for the model or a batch.
        """
        from fairseq import utils
        from fairseq.dataclass.configs import GenerationConfig

        try:
            self.task.load_dataset(subset, task_cfg=self.cfg.task)
        except FileNotFoundError as error:
            raise must_be("--gen-subset", f"a split that {self.cfg.task.data} holds", repr(subset)) from error
        dataset = self.task.dataset(subset)
        try:
            batches = self.task.get_batch_iterator(
                dataset,
                max_tokens=decoding.max_tokens,
                max_sentences=decoding.batch_size,
                max_positions=utils.resolve_max_positions(self.task.max_positions(), self.model.max_positions()),
                required_batch_size_multiple=8,
            ).next_epoch_itr(shuffle=False)
        except Exception as error:  # fairseq raises nothing more special
            raise LnplaceError(f"{subset} cannot be cut into batches: {' '.join(str(error).split())}") from error
        generation = GenerationConfig(
            beam=decoding.beam, lenpen=decoding.lenpen, max_len_a=decoding.max_len_a, max_len_b=decoding.max_len_b
        )
        generator = self.task.build_generator([self.model], generation)
        translations: dict[int, str] = {}
        for sample in batches:
            if self.device != "cpu":
                sample = utils.move_to_cuda(sample)
            found = self.task.inference_step(generator, [self.model], sample)
            for index, hypotheses in zip(sample["id"].tolist(), found, strict=True):
                translations[index] = self.task.target_dictionary.string(
                    hypotheses[0]["tokens"].int().cpu(),
                    bpe_symbol="sentencepiece",
                    extra_symbols_to_ignore=generator.symbols_to_strip_from_output,
                )
        return [translations[index] for index in range(len(dataset))]


def evaluate(
    checkpoint: Path, data: Path, subset: str, decoding: Decoding, references: Path | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the record of an evaluation, and the translations.

    Args:
        references: raw text, one line a sentence; by default what ``lnplace prepare`` kept beside the data.

    Raises:
        LnplaceError: whatever ``Translator`` and ``score`` refuse.
    """
    start = time.perf_counter()
    translator = Translator.load(checkpoint, data, decoding.cpu)
    task = translator.task.cfg  # the checkpoint's own may leave the languages to be found in the data
    references = references or data / "raw" / f"{subset}.{task.target_lang}"
    if not references.is_file():
        raise must_be("--references", f"the raw text of {subset}", f"{references}, which is not there")
    truth = list(read_lines(references))
    _refuse_tokenised(truth)
    translations = translator.translate(subset, decoding)
    record = {
        **score(translations, truth),
        "subset": subset,
        "sentences": len(truth),
        "references": str(references),
        "source_lang": task.source_lang,
        "target_lang": task.target_lang,
        "checkpoint": str(checkpoint),
        "model": translator.identity,
        "parameters": sum(parameter.numel() for parameter in translator.model.parameters()),
        "decoding": asdict(decoding),
        "device": translator.device,
        "seconds": round(time.perf_counter() - start, 1),
        "versions": versions("fairseq", "torch", "sacrebleu"),
    }
    return record, translations
