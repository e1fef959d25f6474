"""Sentence pairs: which ones to keep, how they are split, and how they are written down."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.files import new_folder, write_json

__all__ = ["SPLITS", "Filter", "Pair", "write_corpus"]

SPLITS = ("train", "valid", "test")

_CODE = re.compile(r"[{}<>\\|=_@#]|://|::|\w\(\)")
# Frequent words that exist in one of the two languages only.
_GERMAN = re.compile(
    r"\b(der|die|das|den|dem|des|und|ist|sind|eine?[nmr]?|nicht|mit|von|zu|auf|für|sie|wird)\b", re.IGNORECASE
)
_ENGLISH = re.compile(
    r"\b(the|of|and|to|is|are|this|that|with|for|you|your|not|from|by|be|on|can|it|if)\b", re.IGNORECASE
)


class Pair(NamedTuple):
    """A German sentence and its English translation."""

    german: str
    english: str


@dataclass
class Filter:
    """Keeps the pairs worth training on, and counts by reason the ones it drops.

    A sentence that was seen before, on either side and in whatever case, is dropped, so no sentence stands in two
    splits.
    """

    min_words: int = 3
    max_words: int = 50
    max_ratio: float = 2.0
    min_letters: float = 0.8
    dropped: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.min_words <= self.max_words:
            raise must_be("--min-words", f"between 1 and --max-words ({self.max_words})", self.min_words)
        self._seen: set[tuple[str, str]] = set()

    def __call__(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Yield the pairs to keep, in their order."""
        for pair in pairs:
            if reason := self._fault(pair):
                self.dropped[reason] = self.dropped.get(reason, 0) + 1
            else:
                yield pair

    def fault(self, sentence: str) -> str | None:
        """Return why a sentence by itself is not worth training on, or None if it is."""
        if not self.min_words <= len(sentence.split()) <= self.max_words:
            return "length"
        if sum(c.isalpha() or c == " " for c in sentence) < self.min_letters * len(sentence):
            return "letters"
        return "code" if _CODE.search(sentence) else None

    def _fault(self, pair: Pair) -> str | None:
        """Return why the pair is dropped, or None to keep it; the first reason that holds is the one that counts."""
        faults = [self.fault(side) for side in pair]
        if "length" in faults:
            return "length"
        lengths = [len(side.split()) for side in pair]
        if max(lengths) > self.max_ratio * min(lengths):
            return "ratio"
        for reason in ("letters", "code"):
            if reason in faults:
                return reason
        if pair.german == pair.english:
            return "identical"
        if len(_ENGLISH.findall(pair.german)) > len(_GERMAN.findall(pair.german)):
            return "not German"
        keys = {("de", pair.german.casefold()), ("en", pair.english.casefold())}
        if not self._seen.isdisjoint(keys):
            return "seen before"
        self._seen |= keys
        return None


def write_corpus(
    dest: Path, splits: Mapping[str, Iterable[Pair]], card: Mapping[str, object]
) -> dict[str, dict[str, int]]:
    """Write ``{train,valid,test}.{de,en}``, one sentence a line, and ``corpus.json``: the card and the counts.

    The counts are returned, too. Pairs are read one by one, so that a split need not fit into memory.

    Raises:
        LnplaceError: ``dest`` holds something already, or a split is empty.
    """
    counts: dict[str, dict[str, int]] = {}
    with new_folder("--dest", dest) as folder:
        for split in SPLITS:
            counts[split] = {"pairs": 0}
            with (
                (folder / f"{split}.de").open("w", encoding="utf-8", newline="\n") as german,
                (folder / f"{split}.en").open("w", encoding="utf-8", newline="\n") as english,
            ):
                for pair in splits[split]:
                    counts[split]["pairs"] += 1
                    german.write(f"{pair.german}\n")
                    english.write(f"{pair.english}\n")
            if not counts[split]["pairs"]:
                raise must_be(split, "at least one pair of sentences", "empty: there is too little text")
        write_json(folder / "corpus.json", {**card, "pairs": {split: counts[split]["pairs"] for split in SPLITS}})
    return counts
