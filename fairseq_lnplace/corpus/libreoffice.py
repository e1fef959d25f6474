"""German-English sentence pairs out of LibreOffice's help pages (MPL-2.0), which exist in both languages.

A page has the same relative path in both languages and a paragraph the same id, so the alignment is exact down to
the paragraph. Below that, sentences are paired in order where both sides have equally many.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from lxml import html

from fairseq_lnplace.corpus.pairs import SPLITS, Filter, Pair
from fairseq_lnplace.errors import LnplaceError

__all__ = ["corpus", "page_pairs", "paragraphs", "sentences", "split_of"]

_PARAGRAPH = re.compile(r"(par|hd)_id")
_CODE_CLASSES = ("code", "bascode", "pycode", "sqlcode", "smathcode")
_ASCII = str.maketrans(
    dict.fromkeys("„“”‟«»", '"')
    | dict.fromkeys("‚‘’‛‹›", "'")
    | dict.fromkeys("‐‑‒–—―−", "-")
    | {"…": "...", "\N{SOFT HYPHEN}": None}
)
_BOUNDARY = re.compile(r"""(?<=[.!?])\s+(?=["'(]?[A-ZÄÖÜ0-9])""")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'])(?:z\. ?B|d\. ?h|u\. ?a|o\. ?ä|bzw|bspw|ca|etc|evtl|ggf|inkl|max|min|Nr|usw|vgl|Abb|Abs|Bsp"
    r"|e\.g|i\.e|vs|No|Dr|Mr|Mrs|St|resp|approx|[A-Za-z]|\d+)\.$"
)


def paragraphs(page: Path) -> dict[str, str]:
    """Return the text of a page's paragraphs and headings by id, code left out, typography brought to ASCII."""
    tree = html.parse(str(page), html.HTMLParser(encoding="utf-8"))
    found: dict[str, str] = {}
    for element in tree.xpath(
        "//*[@id='DisplayArea']//*[self::p or self::h1 or self::h2 or self::h3 or self::h4 or self::h5 or self::h6]"
    ):
        if _PARAGRAPH.match(element.get("id", "")) and not element.get("class", "").startswith(_CODE_CLASSES):
            text = unicodedata.normalize("NFC", element.text_content()).translate(_ASCII)
            found.setdefault(element.get("id"), " ".join(text.split()))  # split() knows the no-break spaces too
    return found


def sentences(paragraph: str) -> list[str]:
    """Split a paragraph after ``.``, ``!`` or ``?`` before a capital or a digit, but not after an abbreviation."""
    done: list[str] = []
    start = 0
    for boundary in _BOUNDARY.finditer(paragraph):
        sentence = paragraph[start : boundary.start()]
        if not _ABBREVIATION.search(sentence):
            done.append(sentence)
            start = boundary.end()
    return [*done, paragraph[start:]]


def page_pairs(german: Path, english: Path) -> Iterator[Pair]:
    """Yield one page's pairs: sentence by sentence where the counts agree, else the paragraph as a whole."""
    translations = paragraphs(english)
    for key, paragraph in paragraphs(german).items():
        translation = translations.get(key)
        if paragraph and translation:
            left, right = sentences(paragraph), sentences(translation)
            yield from map(Pair, left, right) if len(left) == len(right) else [Pair(paragraph, translation)]


def split_of(page: str) -> str:
    """Return the split of a page by a hash of its relative path: 4 % test, 4 % valid, and no page in two splits."""
    bucket = int(hashlib.sha256(page.encode()).hexdigest(), 16) % 100
    return "test" if bucket < 4 else "valid" if bucket < 8 else "train"


def pages_in(folder: Path) -> list[str]:
    """Return the relative paths of a language's pages, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))


def corpus(help_folder: Path, keep: Filter) -> dict[str, list[Pair]]:
    """Return the pairs of each split from an unpacked ``.../libreoffice/help`` with its ``de`` and ``en-US`` folders.

    Raises:
        LnplaceError: there are no pages in both languages.
    """
    german, english = help_folder / "de" / "text", help_folder / "en-US" / "text"
    pages = [page for page in pages_in(german) if (english / page).is_file()]
    if not pages:
        raise LnplaceError(f"`--pages` must hold help pages in de/text and en-US/text, but {help_folder} has none")
    splits: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    for page in pages:
        splits[split_of(page)] += keep(page_pairs(german / page, english / page))
    return splits
