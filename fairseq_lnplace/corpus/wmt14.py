"""WMT14 English-German out of its archives, as fairseq's ``prepare-wmt14en2de.sh`` makes it, but in raw text.

Training text is Europarl v7, Common Crawl and News Commentary, in this order: v9, which is WMT14's own (the script's
``--icml17``), or v12, which is WMT17's and what the script takes otherwise. Its punctuation is normalised and what
cannot be printed becomes a space (``normalize-punctuation.perl``, ``remove-non-printing-char.perl``). The test set is
newstest2014, all 3,003 sentences; the validation set newstest2013 as in the papers, or every 100th training pair as in
the script. Pairs of uneven or great length are dropped later, by their pieces (``lnplace prepare --max-ratio``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import regex
from sacremoses import MosesPunctNormalizer

from fairseq_lnplace.corpus.iwslt14 import segments
from fairseq_lnplace.corpus.lines import member, read_lines, read_parallel
from fairseq_lnplace.corpus.pairs import Pair

__all__ = ["COMMENTARIES", "EXPECTED", "VALID_SETS", "corpus"]

EXPECTED = {"valid": 3_000, "test": 3_003}  # of newstest2013 and newstest2014
COMMENTARIES = ("v9", "v12")
VALID_SETS = ("newstest2013", "split")
VALID_EVERY = 100


def _training_pairs(folder: Path, commentary: str) -> Iterator[Pair]:
    """Yield every pair of the training text, normalised; sides may be empty."""
    normalisers = [MosesPunctNormalizer(language, perl_parity=True) for language in ("de", "en")]
    for name in ("europarl-v7", "commoncrawl", f"news-commentary-{commentary}"):
        sides = [member(folder, f"{name}.de-en.{language}") for language in ("de", "en")]
        for pair in read_parallel(sides, lambda path: read_lines(path, blank=True)):
            normal = (each.normalize(side) for each, side in zip(normalisers, pair, strict=True))
            yield Pair(*(" ".join(regex.sub(r"\p{C}", " ", side).split()) for side in normal))


def corpus(folder: Path, commentary: str = "v9", valid: str = "newstest2013") -> dict[str, Iterable[Pair]]:
    """Return the pairs of each split from the unpacked archives; the training pairs are read as they are asked for.

    Raises:
        LnplaceError: a file is missing, or the two languages differ in their numbers of lines.
    """
    tests = [member(folder, name) for name in ("newstest2014-deen-ref.de.sgm", "newstest2014-deen-src.en.sgm")]

    def numbered(held_out: bool) -> Iterator[Pair]:
        for number, pair in enumerate(_training_pairs(folder, commentary), 1):
            if all(pair) and (number % VALID_EVERY == 0) == held_out:
                yield pair

    if valid == "split":
        return {"train": numbered(False), "valid": numbered(True), "test": _pairs(read_parallel(tests, segments))}
    sides = [member(folder, f"newstest2013.{language}") for language in ("de", "en")]
    return {
        "train": (pair for pair in _training_pairs(folder, commentary) if all(pair)),
        "valid": _pairs(read_parallel(sides, read_lines)),
        "test": _pairs(read_parallel(tests, segments)),
    }


def _pairs(sides: Iterable[tuple[str, ...]]) -> Iterator[Pair]:
    return (Pair(*pair) for pair in sides)
