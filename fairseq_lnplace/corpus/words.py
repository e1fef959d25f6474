"""From raw text to words and back: Moses' tokenisation, through sacremoses, and lower-casing.

The papers' sets were made by Moses' Perl scripts; sacremoses is their port to Python. What is done to a set's text is
written into its ``prepared.json``, and ``lnplace evaluate`` undoes it before sacreBLEU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sacremoses import MosesDetokenizer, MosesTokenizer

from fairseq_lnplace.errors import must_be

__all__ = ["Words"]


@dataclass(frozen=True)
class Words:
    """What is done to raw text before it is cut into pieces.

    Attributes:
        tokeniser: ``moses`` (``tokenizer.perl``, with its escapes such as ``&apos;``), or ``none``.
        lowercase: whether the words are lower-cased, after tokenisation (``lowercase.perl``).
        split_hyphens: Moses' ``-a``: ``well-known`` is three words, ``well @-@ known``.
    """

    tokeniser: str = "none"
    lowercase: bool = False
    split_hyphens: bool = False

    def __post_init__(self) -> None:
        if self.tokeniser not in ("none", "moses"):
            raise must_be("--tokeniser", "none or moses", self.tokeniser)
        if self.split_hyphens and self.tokeniser == "none":
            raise must_be("--split-hyphens", "beside --tokeniser moses", "beside none")

    @property
    def raw(self) -> bool:
        """Whether nothing is done at all."""
        return self == Words()

    def record(self) -> dict[str, Any]:
        """Return the settings by name."""
        return asdict(self)

    def splitter(self, language: str) -> Callable[[str], str]:
        """Return the function from a raw line to its words, with single spaces between them."""
        if self.tokeniser == "none":
            return str.lower if self.lowercase else str
        moses = MosesTokenizer(language)

        def split(line: str) -> str:
            # The apostrophe of typographers is Moses' apostrophe; fairseq's scripts do so for the test sets.
            line = line.replace("’", "'")
            words: str = moses.tokenize(line, return_str=True, aggressive_dash_splits=self.split_hyphens)
            return words.lower() if self.lowercase else words

        return split

    def joiner(self, language: str) -> Callable[[str], str]:
        """Return the function from words back to text, which stays lower-cased if they are."""
        if self.tokeniser == "none":
            return str
        moses = MosesDetokenizer(language)
        return lambda words: str(moses.detokenize(words.split()))
