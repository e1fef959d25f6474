"""IWSLT14 German-English out of its archive, as fairseq's ``prepare-iwslt14.sh`` makes it, but in raw text.

The archive's ``train.tags.de-en.{de,en}`` hold talks with tags. Lines with an address, a number or keywords go, titles
and descriptions stay. Pairs of 1 to 175 words a side are kept, if one side has no more than 1.5 times as many as the
other (``clean-corpus-n.perl -ratio 1.5 … 1 175``); words are Moses', in whatever form the text is prepared later. Every
23rd pair is for validation, and the five sets of development and test talks are the test set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fairseq_lnplace.corpus.lines import member, read_lines, read_parallel
from fairseq_lnplace.corpus.pairs import Pair
from fairseq_lnplace.corpus.words import Words

__all__ = ["EXPECTED", "corpus", "segments"]

# What fairseq's script gives. The paper says 153K/7K/7K, but describes no other way to make the data.
EXPECTED = {"train": 160_239, "valid": 7_283, "test": 6_750}

TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
MAX_WORDS, MAX_RATIO, VALID_EVERY = 175, 1.5, 23

_DROPPED_LINE = re.compile(r"<url>|<talkid>|<keywords>")
_TAG = re.compile(r"</?(?:title|description)>")
_SEGMENT = re.compile(r'<seg id="[0-9]*">\s*|\s*</seg>\s*')


def segments(path: Path) -> Iterator[str]:
    """Yield the sentences of a test set, XML or SGML: the lines that begin a segment, without their tags."""
    for line in read_lines(path, blank=True):
        if "<seg id" in line:
            yield _SEGMENT.sub("", line)


def _training_text(path: Path) -> Iterator[str]:
    """Yield a language's sentences, titles and descriptions; some are empty."""
    for line in read_lines(path, blank=True):
        if not _DROPPED_LINE.search(line):
            yield _TAG.sub("", line).strip()


def _kept(pairs: Iterator[Pair]) -> Iterator[Pair]:
    """Yield the pairs whose numbers of words are within the limits."""
    splitters = [Words("moses").splitter(language) for language in ("de", "en")]
    for pair in pairs:
        lengths = [len(split_line(side).split()) for split_line, side in zip(splitters, pair, strict=True)]
        if min(lengths) >= 1 and max(lengths) <= min(MAX_WORDS, MAX_RATIO * min(lengths)):
            yield pair


def corpus(folder: Path) -> dict[str, list[Pair]]:
    """Return the pairs of each split from the unpacked archive, in its order.

    Raises:
        LnplaceError: a file is missing, or the two languages differ in their numbers of lines.
    """
    sides = [member(folder, f"train.tags.de-en.{language}") for language in ("de", "en")]
    clean = list(_kept(Pair(*pair) for pair in read_parallel(sides, _training_text)))
    test = []
    for name in TEST_SETS:
        sets = [member(folder, f"IWSLT14.{name}.de-en.{language}.xml") for language in ("de", "en")]
        test += [Pair(*pair) for pair in read_parallel(sets, segments)]
    return {
        "train": [pair for number, pair in enumerate(clean, 1) if number % VALID_EVERY],
        "valid": clean[VALID_EVERY - 1 :: VALID_EVERY],
        "test": test,
    }
