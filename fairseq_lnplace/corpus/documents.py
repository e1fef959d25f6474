"""Plain text of one's own: documents with a blank line between them, some of them held out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from fairseq_lnplace.corpus.lines import read_lines
from fairseq_lnplace.errors import must_be
from fairseq_lnplace.files import new_folder, write_json

__all__ = ["documents", "write_documents"]


def documents(texts: Iterable[Path]) -> Iterator[Iterator[str]]:
    """Yield the lines of each document, to be read before the next is asked for; one ends at a blank line or a file."""
    for text in texts:
        for has_words, lines in groupby(read_lines(text, blank=True), key=bool):
            if has_words:
                yield lines


def write_documents(dest: Path, texts: Sequence[Path], every: int = 200) -> dict[str, dict[str, int]]:
    """Write ``train.txt`` and ``valid.txt``, one of ``every`` documents to the latter, and return the counts.

    199:1 is how Xiong et al. 2020 split their text for BERT.

    Raises:
        LnplaceError: ``dest`` holds something already, a text cannot be read, or there are too few documents.
    """
    counts = {split: {"documents": 0, "sentences": 0} for split in ("train", "valid")}
    with new_folder("--dest", dest) as folder:
        with (
            (folder / "train.txt").open("w", encoding="utf-8", newline="\n") as train,
            (folder / "valid.txt").open("w", encoding="utf-8", newline="\n") as valid,
        ):
            for number, document in enumerate(documents(texts), 1):
                split, file = ("train", train) if number % every else ("valid", valid)
                counts[split]["documents"] += 1
                for line in document:
                    counts[split]["sentences"] += 1
                    file.write(f"{line}\n")
                file.write("\n")
        if not counts["valid"]["documents"]:
            found = counts["train"]["documents"]
            raise must_be("--text", f"at least {every} documents with blank lines between them", f"{found} of them")
        write_json(folder / "corpus.json", {"source": [str(text) for text in texts], "counts": counts})
    return counts
