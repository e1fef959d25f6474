"""Parallel text made ready for fairseq: joint byte-pair encoding, binarised data, raw references beside it.

What a prepared folder holds:

    dict.{de,en}.txt  {train,valid,test}.de-en.{de,en}.{bin,idx}    as ``fairseq-preprocess`` writes them
    sentencepiece.bpe.model or bpecodes                             the names that ``from_pretrained`` looks for
    raw/{train,valid,test}.{de,en}                                  the text as it was, to score against
    tokenised/{valid,test}.{de,en}                                  its words, if something was done to make them
    prepared.json                                                   the settings, counts, check sums and versions
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from fairseq_lnplace.corpus.encoding import Encoding, binarise, count, encode, write_dictionary, write_manifest
from fairseq_lnplace.corpus.lines import read_lines, sha256, write_lines
from fairseq_lnplace.corpus.pairs import SPLITS
from fairseq_lnplace.corpus.pieces import Pieces
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.files import new_file, new_folder

__all__ = ["Settings", "prepare"]


@dataclass(frozen=True, kw_only=True)
class Settings(Encoding):
    """What ``prepare`` is asked for.

    Attributes:
        train, valid, test: paths without their ``.LANGUAGE``.
        max_pieces, max_ratio: limits on the training pairs, in pieces (``clean-corpus-n.perl`` after BPE): the most on
            a side, and how many times as many one side may have as the other.
    """

    source_lang: str
    target_lang: str
    train: str
    valid: str
    test: str
    max_pieces: int | None = None
    max_ratio: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, language in (("--source-lang", self.source_lang), ("--target-lang", self.target_lang)):
            if not re.fullmatch(r"\w+", language):  # fairseq cuts its file names at "-" and "."
                raise must_be(option, "of letters, digits and underscores only", repr(language))
        if self.source_lang == self.target_lang:
            raise must_be("--target-lang", "another language than --source-lang", repr(self.target_lang))
        for option, limit in (("--max-pieces", self.max_pieces), ("--max-ratio", self.max_ratio)):
            if limit is not None and not limit >= 1:
                raise must_be(option, "at least 1", limit)

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.source_lang, self.target_lang

    def path(self, split: str, language: str) -> Path:
        """Return the text file of a split's side."""
        return Path(f"{getattr(self, split)}.{language}")

    def keeps(self, lengths: Sequence[int]) -> bool:
        """Return whether a training pair of so many pieces a side is within the limits."""
        return (self.max_pieces is None or max(lengths) <= self.max_pieces) and (
            self.max_ratio is None or max(lengths) <= self.max_ratio * min(lengths)
        )


def _check_pairs(settings: Settings, split: str) -> None:
    """Look at every line of both files of a split."""
    source, target = (sum(1 for _ in read_lines(settings.path(split, language))) for language in settings.languages)
    if source != target:
        raise LnplaceError(
            f"Both sides must have as many lines, but {settings.path(split, settings.source_lang)} has {source} and "
            f"{settings.path(split, settings.target_lang)} has {target}"
        )


def _drop_pairs(settings: Settings, encoded: Sequence[Path], raw: Sequence[Path]) -> int:
    """Rewrite the parallel files of pieces, and of raw text, without the pairs outside the limits; count these."""
    dropped = kept = 0
    with ExitStack() as stack:
        columns = [read_lines(path, blank=True) for path in (*encoded, *raw)]
        parts = [stack.enter_context(new_file(path)) for path in (*encoded, *raw)]
        files = [stack.enter_context(part.open("w", encoding="utf-8", newline="\n")) for part in parts]
        for lines in zip(*columns, strict=True):
            if settings.keeps([line.count(" ") + 1 for line in lines[: len(encoded)]]):
                kept += 1
                for file, line in zip(files, lines, strict=True):
                    file.write(f"{line}\n")
            else:
                dropped += 1
        if not kept:
            raise LnplaceError(f"No training pair is within --max-pieces and --max-ratio, of {dropped}")
    return dropped


def _write_words(settings: Settings, raw: Path, words: Path) -> None:
    """Write every text with plain line ends, and its words."""
    for language in settings.languages:
        split_line = settings.words.splitter(language)
        for split in SPLITS:
            text = settings.path(split, language)
            write_lines(raw / f"{split}.{language}", read_lines(text))
            write_lines(words / f"{split}.{language}", map(split_line, read_lines(text)))


def _write_pieces(settings: Settings, pieces: Pieces, words: Path, encoded: Path) -> None:
    """Write the pieces of every text's words."""
    for language in settings.languages:
        for split in SPLITS:
            name = f"{split}.{language}"
            encode(pieces, words / name, encoded / name, settings.path(split, language))


def _count(settings: Settings, raw: Path, encoded: Path) -> tuple[dict[str, dict[str, int]], Counter[str]]:
    """Return the numbers of pairs and pieces of each split, and how often each piece occurs in training."""
    counts: dict[str, dict[str, int]] = {}
    frequencies: Counter[str] = Counter()
    for split in SPLITS:
        counts[split] = {"pairs": sum(1 for _ in read_lines(raw / f"{split}.{settings.source_lang}"))}
        for language in settings.languages:
            found = count(encoded / f"{split}.{language}")
            counts[split][f"{language} pieces"] = found.total()
            if split == "train":
                frequencies += found
    return counts, frequencies


def prepare(settings: Settings, dest: Path, workers: int = 1) -> dict[str, Any]:
    """Make ``dest`` out of parallel text and return what its ``prepared.json`` says.

    Raises:
        LnplaceError: something is wrong with the text, the vocabulary's size or ``dest``; nothing is written then.
    """
    for split in SPLITS:
        _check_pairs(settings, split)
    with new_folder("--dest", dest) as folder, tempfile.TemporaryDirectory(dir=folder) as scratch:
        raw, words, encoded = folder / "raw", Path(scratch, "words"), Path(scratch, "pieces")
        for each in (raw, words, encoded):
            each.mkdir()
        train = [f"train.{language}" for language in settings.languages]
        _write_words(settings, raw, words)
        pieces = settings.learn(chain.from_iterable(read_lines(words / name, blank=True) for name in train))
        pieces.save(folder)
        _write_pieces(settings, pieces, words, encoded)
        dropped = 0
        if settings.max_pieces or settings.max_ratio:
            dropped = _drop_pairs(settings, [encoded / name for name in train], [raw / name for name in train])
        if not settings.words.raw:
            shutil.copytree(words, folder / "tokenised", ignore=shutil.ignore_patterns("train.*"))

        counts, frequencies = _count(settings, raw, encoded)
        counts["train"] |= {"dropped": dropped} if dropped else {}
        size = write_dictionary(Path(scratch, "dict.txt"), pieces.symbols(frequencies), frequencies)
        languages = ("--source-lang", settings.source_lang, "--target-lang", settings.target_lang)
        prefixes = {split: encoded / split for split in SPLITS}
        binarise(prefixes, Path(scratch, "dict.txt"), folder, workers, *languages, "--joined-dictionary")
        entries = {
            "source_lang": settings.source_lang,
            "target_lang": settings.target_lang,
            **settings.record(),
            "dictionary": size,
            "counts": counts,
            "sha256": {path.name: sha256(path) for path in sorted(raw.iterdir())},
        }
        return write_manifest(folder, entries)
