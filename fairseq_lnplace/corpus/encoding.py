"""How a set's text becomes what fairseq reads: words, then pieces, then ``fairseq-preprocess``."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_lnplace.corpus.lines import read_lines, write_lines
from fairseq_lnplace.corpus.pieces import PIECES, Pieces
from fairseq_lnplace.corpus.words import Words
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.files import write_json
from fairseq_lnplace.versions import versions

__all__ = [
    "MANIFEST",
    "Encoding",
    "binarise",
    "count",
    "encode",
    "read_manifest",
    "write_dictionary",
    "write_manifest",
]

MANIFEST = "prepared.json"
SPECIAL_SYMBOLS = 4  # fairseq's own <s> <pad> </s> <unk>


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The options that a set of any kind is prepared by.

    Attributes:
        vocab_size: pieces for ``sentencepiece``, merge operations for ``subword_nmt``.
        bpe: fairseq's name for the byte-pair encoding.
        tokeniser, lowercase, split_hyphens: as of ``Words``.
        note: where the text comes from.
    """

    vocab_size: int
    bpe: str = "sentencepiece"
    tokeniser: str = "none"
    lowercase: bool = False
    split_hyphens: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if self.vocab_size < 1:
            raise must_be("--vocab-size", "at least 1", self.vocab_size)
        if self.bpe not in PIECES:
            raise must_be("--bpe", " or ".join(PIECES), self.bpe)
        _ = self.words  # which refuses what contradicts itself

    @property
    def words(self) -> Words:
        """What is done to raw text before it is cut into pieces."""
        return Words(self.tokeniser, self.lowercase, self.split_hyphens)

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> Encoding:
        """Return the encoding of a prepared set; a manifest of version 0.1 names sentencepiece's size only."""
        return cls(vocab_size=manifest["vocab_size"], note=manifest["note"], **manifest.get("encoding", {}))

    def record(self) -> dict[str, Any]:
        """Return what the manifest says of it, for :meth:`of`."""
        return {
            "vocab_size": self.vocab_size,
            "note": self.note,
            "encoding": {"bpe": self.bpe, **self.words.record()},
        }

    def learn(self, lines: Iterable[str]) -> Pieces:
        """Learn the pieces from words.

        Raises:
            LnplaceError: ``vocab_size`` is impossible for this text.
        """
        return PIECES[self.bpe].learn(lines, self.vocab_size)

    def load(self, folder: Path) -> Pieces:
        """Read the pieces of a prepared folder."""
        return PIECES[self.bpe].load(folder)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return what ``prepared.json`` of a folder says.

    Raises:
        LnplaceError: there is none, or a broken one.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LnplaceError(f"{folder} was not made by lnplace: {MANIFEST} cannot be read") from error
    return manifest


def write_manifest(folder: Path, entries: dict[str, Any]) -> dict[str, Any]:
    """Write ``prepared.json`` of a folder, and return it: the entries, and the versions of what made the rest."""
    manifest = {**entries, "versions": versions("fairseq", "sentencepiece", "sacremoses", "subword-nmt")}
    write_json(folder / MANIFEST, manifest)
    return manifest


def encode(pieces: Pieces, words: Path, dest: Path, text: Path, blank: bool = False) -> None:
    """Write the pieces of a file of words, line by line.

    Raises:
        LnplaceError: there are none in a line, and there must be; ``text`` is the file that the words are of.
    """

    def encoded() -> Iterator[str]:
        for number, line in enumerate(read_lines(words, blank=True), 1):
            if not (found := pieces.encode(line)) and not blank:
                raise LnplaceError(
                    f"Every line must hold a sentence, but line {number} of {text} has only invisible signs"
                )
            yield " ".join(found)

    write_lines(dest, encoded())


def count(encoded: Path) -> Counter[str]:
    """Return how often each piece occurs in a file of pieces."""
    return Counter(piece for line in read_lines(encoded, blank=True) for piece in line.split(" ") if piece)


def write_dictionary(path: Path, symbols: Iterable[str], counts: Counter[str]) -> int:
    """Write fairseq's dictionary, the most frequent symbols first, as adaptive softmax wants them; return its size."""
    ranked = sorted(symbols, key=lambda symbol: -counts[symbol])
    write_lines(path, (f"{symbol} {counts[symbol]}" for symbol in ranked))
    return len(ranked) + SPECIAL_SYMBOLS


def binarise(prefixes: dict[str, Path], dictionary: Path, dest: Path, workers: int, *options: str) -> None:
    """Run ``fairseq-preprocess`` in this process, and leave neither its log file nor its log handler behind.

    Args:
        prefixes: by split, what ``--trainpref`` and its like are given.
        options: ``--only-source``, or the languages and ``--joined-dictionary``.
    """
    from fairseq.options import get_preprocessing_parser
    from fairseq_cli import preprocess

    argv = ["--srcdict", str(dictionary), "--destdir", str(dest), "--workers", str(workers), *options]
    for split, prefix in prefixes.items():
        argv += [f"--{split}pref", str(prefix)]
    logger = logging.getLogger("fairseq_cli.preprocess")
    handlers, level = list(logger.handlers), logger.level
    logger.setLevel(logging.WARNING)
    try:
        preprocess.main(get_preprocessing_parser().parse_args(argv))
    finally:
        logger.setLevel(level)
        for handler in set(logger.handlers) - set(handlers):
            logger.removeHandler(handler)
            handler.close()
        (dest / "preprocess.log").unlink(missing_ok=True)  # it would name the temporary folders
