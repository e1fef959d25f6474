"""Plain text made ready for language models and masked language models, by ``fairseq-preprocess --only-source``.

A text holds one sentence a line and a blank line between documents; fairseq's ``--sample-break-mode complete_doc`` sees
the blank ones. What a prepared folder holds:

    dict.txt  {train,valid,test}.{bin,idx}          as ``fairseq-preprocess`` writes them
    sentencepiece.bpe.model or bpecodes             the names that ``from_pretrained`` looks for
    prepared.json                                   the settings, counts, check sums and versions
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_lnplace.corpus.encoding import Encoding, binarise, count, encode, write_dictionary, write_manifest
from fairseq_lnplace.corpus.lines import read_lines, sha256, write_lines
from fairseq_lnplace.files import new_folder

__all__ = ["TextSettings", "prepare_text"]


@dataclass(frozen=True, kw_only=True)
class TextSettings(Encoding):
    """What ``prepare_text`` is asked for: the text files of the splits (test may be left out) and their language."""

    train: str
    valid: str
    test: str = ""
    language: str = "en"

    def texts(self) -> dict[str, Path]:
        """Return the files by split."""
        given = {"train": self.train, "valid": self.valid, "test": self.test}
        return {split: Path(path) for split, path in given.items() if path}


def prepare_text(settings: TextSettings, dest: Path, workers: int = 1) -> dict[str, Any]:
    """Make ``dest`` out of plain text and return what its ``prepared.json`` says.

    Raises:
        LnplaceError: something is wrong with the text, the vocabulary's size or ``dest``; nothing is written then.
    """
    texts = settings.texts()
    with new_folder("--dest", dest) as folder, tempfile.TemporaryDirectory(dir=folder) as name:
        scratch = Path(name)
        split_line = settings.words.splitter(settings.language)
        counts: dict[str, dict[str, int]] = {}
        for split, text in texts.items():
            write_lines(scratch / f"{split}.words", map(split_line, read_lines(text, blank=True)))
            sentences = sum(1 for line in read_lines(text, blank=True) if line)
            counts[split] = {"sentences": sentences}
        pieces = settings.learn(line for line in read_lines(scratch / "train.words", blank=True) if line)
        pieces.save(folder)
        frequencies: Counter[str] = Counter()
        for split, text in texts.items():
            encode(pieces, scratch / f"{split}.words", scratch / split, text, blank=True)
            found = count(scratch / split)
            counts[split]["pieces"] = found.total()
            if split == "train":
                frequencies = found
        size = write_dictionary(scratch / "dict.txt", pieces.symbols(frequencies), frequencies)
        binarise({split: scratch / split for split in texts}, scratch / "dict.txt", folder, workers, "--only-source")
        entries = {
            "language": settings.language,
            **settings.record(),
            "dictionary": size,
            "counts": counts,
            "sha256": {split: sha256(text) for split, text in texts.items()},
        }
        return write_manifest(folder, entries)
