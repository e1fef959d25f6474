"""English running text out of LibreOffice's help pages, and sentences with the application that they are about.

For a masked language model at the demo's scale: the text to train it on, and a classification task to fine-tune it on.
A page's split is that of the parallel corpus (``libreoffice.split_of``), and every sentence is kept where it is met
first, training pages before validation pages before test pages. So no page and no sentence of one split, in whatever
case, stands in another one, neither of the text nor of the task.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_lnplace.corpus.libreoffice import pages_in, paragraphs, sentences, split_of
from fairseq_lnplace.corpus.lines import write_lines
from fairseq_lnplace.corpus.pairs import SPLITS, Filter
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.files import new_folder, write_json

__all__ = ["Texts", "english", "write_texts"]

# By the first folder of a page's path. Pages about several applications (shared) or about small ones are in the running
# text only.
APPLICATIONS = {
    "swriter": "writer",
    "scalc": "calc",
    "sbasic": "basic",
    "simpress": "impress_draw",
    "sdraw": "impress_draw",
}


@dataclass
class Texts:
    """One split: its pages as lists of sentences, and the sentences of each application."""

    documents: list[list[str]] = field(default_factory=list)
    by_application: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in APPLICATIONS.values()})

    def examples(self, most: int | None = None) -> Iterator[tuple[str, str]]:
        """Yield sentences with their application, at most ``most`` of each, chosen by the sentences' SHA-256."""
        for application, found in self.by_application.items():
            for sentence in sorted(found, key=lambda each: hashlib.sha256(each.encode()).digest())[:most]:
                yield sentence, application


def english(help_folder: Path, keep: Filter) -> dict[str, Texts]:
    """Return the English text of each split from an unpacked ``.../libreoffice/help`` with its ``en-US`` folder.

    Raises:
        LnplaceError: there are no pages.
    """
    folder = help_folder / "en-US" / "text"
    if not (pages := pages_in(folder)):
        raise LnplaceError(f"`--pages` must hold help pages in en-US/text, but {help_folder} has none")
    splits = {split: Texts() for split in SPLITS}
    seen: set[str] = set()
    for page in sorted(pages, key=lambda page: (SPLITS.index(split_of(page)), page)):
        document = []
        for sentence in (each for text in paragraphs(folder / page).values() for each in sentences(text)):
            if keep.fault(sentence) is None and sentence.casefold() not in seen:
                seen.add(sentence.casefold())
                document.append(sentence)
        texts = splits[split_of(page)]
        if document:
            texts.documents.append(document)
        if application := APPLICATIONS.get(page.split("/")[0]):
            texts.by_application[application] += document
    return splits


def write_texts(dest: Path, splits: dict[str, Texts], card: dict[str, object]) -> dict[str, dict[str, int]]:
    """Write the text and the task of each split, and ``corpus.json``: the card and the counts, which are returned.

    ``{train,valid,test}.txt`` has one sentence a line and a blank line after each page; ``.input0`` and ``.label`` have
    the task's sentences and labels, in training as many of each label as the rarest one has.

    Raises:
        LnplaceError: ``dest`` holds something already, or a split lacks an application.
    """
    counts: dict[str, dict[str, int]] = {}
    for split, texts in splits.items():
        for application, found in texts.by_application.items():
            if not found:
                raise must_be(
                    f"{split}", f"of pages about {application}, too", "of others only: there is too little text"
                )
    with new_folder("--dest", dest) as folder:
        for split, texts in splits.items():
            lines = (line for document in texts.documents for line in (*document, ""))
            write_lines(folder / f"{split}.txt", lines)
            most = min(map(len, texts.by_application.values())) if split == "train" else None
            examples = list(texts.examples(most))
            write_lines(folder / f"{split}.input0", (sentence for sentence, _ in examples))
            write_lines(folder / f"{split}.label", (label for _, label in examples))
            counts[split] = {
                "documents": len(texts.documents),
                "sentences": sum(map(len, texts.documents)),
                **Counter(label for _, label in examples),
            }
        write_json(folder / "corpus.json", {**card, "counts": counts})
    return counts
