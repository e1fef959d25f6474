"""Translate a prepared test set with a checkpoint and score it against the text as it was.

A score never leaves this module without its signature, what was done to the text, the checkpoint and the options it was
made with.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fairseq_lnplace.checkpoints import model_identity, options
from fairseq_lnplace.compat import load_checkpoint
from fairseq_lnplace.corpus.encoding import MANIFEST, Encoding, read_manifest
from fairseq_lnplace.corpus.lines import read_lines
from fairseq_lnplace.corpus.words import Words
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.scoring import refuse_tokenised, score, score_words
from fairseq_lnplace.versions import versions

__all__ = ["Decoding", "Translator", "evaluate", "scores"]


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


@dataclass(frozen=True)
class Translator:
    """A trained model with its task, whose dictionaries come from the prepared data.

    Attributes:
        identity: the model's name, architecture and placement.
        device: what it runs on.
        bpe: fairseq's name for the data's byte-pair encoding.
        words: what was done to the data's text before that.
    """

    model: Any
    cfg: Any
    task: Any
    identity: dict[str, str]
    device: str
    bpe: str
    words: Words

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
        bpe, words = _text_of(data)
        return cls(model, cfg, task, identity, torch.cuda.get_device_name() if cuda else "cpu", bpe, words)

    def translate(self, subset: str, decoding: Decoding) -> list[str]:
        """Return the translations of a split in the corpus' order: words as the data's text has them, its BPE removed.

        This is ``fairseq-generate --remove-bpe`` without its log: same batches, same beam search.

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
                    bpe_symbol=self.bpe,
                    extra_symbols_to_ignore=generator.symbols_to_strip_from_output,
                )
        return [translations[index] for index in range(len(dataset))]

    def detokenise(self, translations: Sequence[str]) -> list[str]:
        """Return translations as text; it stays lower-cased where the data is."""
        return list(map(self.words.joiner(self.task.cfg.target_lang), translations))


def _text_of(data: Path) -> tuple[str, Words]:
    """Return a folder's byte-pair encoding and what its words are; without a manifest, sentencepiece on raw text."""
    if not (data / MANIFEST).is_file():
        return "sentencepiece", Words()
    encoding = Encoding.of(read_manifest(data))
    return encoding.bpe, encoding.words


def scores(
    translations: Sequence[str], references: Sequence[str], words: Words, language: str, compound_split: bool = False
) -> dict[str, Any]:
    """Return the scores of both kinds: ``bleu`` and ``chrf`` on detokenised text, ``tokenised_bleu`` on Moses' words.

    Args:
        translations: as of :meth:`Translator.translate`.
        references: raw text.
        words: what was done to the text of the model's data.
        language: of both.
        compound_split: whether the words are split at their hyphens, too.

    Raises:
        LnplaceError: the numbers of lines differ, or the references look tokenised.
    """
    text = list(map(words.joiner(language), translations))
    moses = words if words.tokeniser == "moses" else Words("moses", words.lowercase)
    split_line = moses.splitter(language)
    tokenised = translations if moses == words else list(map(split_line, text))
    return {
        **score(text, references, words.lowercase),
        "tokenised_bleu": score_words(tokenised, list(map(split_line, references)), moses, compound_split),
    }


def evaluate(
    checkpoint: Path,
    data: Path,
    subset: str,
    decoding: Decoding,
    references: Path | None = None,
    compound_split: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """Return the record of an evaluation, and the detokenised translations.

    Args:
        references: raw text, one line a sentence; by default what ``lnplace prepare`` kept beside the data.
        compound_split: as of :func:`scores`.

    Raises:
        LnplaceError: whatever ``Translator`` and ``scores`` refuse.
    """
    start = time.perf_counter()
    translator = Translator.load(checkpoint, data, decoding.cpu)
    task = translator.task.cfg  # the checkpoint's own may leave the languages to be found in the data
    references = references or data / "raw" / f"{subset}.{task.target_lang}"
    if not references.is_file():
        raise must_be("--references", f"the raw text of {subset}", f"{references}, which is not there")
    truth = list(read_lines(references))
    refuse_tokenised(truth)
    translations = translator.translate(subset, decoding)
    record = {
        **scores(translations, truth, translator.words, task.target_lang, compound_split),
        "text": {"bpe": translator.bpe, **translator.words.record()},  # what was undone for `bleu` and `chrf`
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
        "versions": versions("fairseq", "torch", "sacrebleu", "sacremoses"),
    }
    return record, translator.detokenise(translations)
