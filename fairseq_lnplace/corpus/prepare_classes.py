"""Sentences, or pairs of them, with a class each, made ready for fairseq's ``sentence_prediction``.

The text is encoded as that of the language model that is to be fine-tuned. What a prepared folder holds, as fairseq
lays out GLUE:

    input0/  input1/  label/                        each with dict.txt and {train,valid,test}.{bin,idx}
    prepared.json                                   the settings, counts, check sums and versions
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_lnplace.corpus.encoding import (
    Encoding,
    binarise,
    encode,
    read_manifest,
    write_dictionary,
    write_manifest,
)
from fairseq_lnplace.corpus.lines import read_lines, sha256, write_lines
from fairseq_lnplace.corpus.pairs import SPLITS
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.files import new_folder

__all__ = ["ClassSettings", "prepare_classes"]


@dataclass(frozen=True, kw_only=True)
class ClassSettings:
    """What ``prepare_classes`` is asked for.

    Attributes:
        train, valid, test: paths without their ``.input0``, ``.input1`` (for pairs) and ``.label``; test may be left
            out.
        model_data: the folder that ``lnplace prepare-text`` made for the language model.
        note: where the text comes from.
    """

    train: str
    valid: str
    test: str = ""
    model_data: Path
    note: str = ""

    def prefixes(self) -> dict[str, str]:
        """Return the paths by split."""
        return {split: given for split in SPLITS if (given := getattr(self, split))}

    def inputs(self) -> list[str]:
        """Return ``input0``, and ``input1`` where there are pairs."""
        return ["input0", *(["input1"] if Path(f"{self.train}.input1").exists() else [])]


def _labels(settings: ClassSettings) -> dict[str, Counter[str]]:
    """Return how often each label occurs in each split, after looking at every line of every file."""
    found: dict[str, Counter[str]] = {}
    for split, prefix in settings.prefixes().items():
        found[split] = Counter(read_lines(Path(f"{prefix}.label")))
        for name in settings.inputs():
            path = Path(f"{prefix}.{name}")
            lines = sum(1 for _ in read_lines(path))
            if lines != found[split].total():
                raise LnplaceError(
                    f"Every sentence must have a label, but {path} has {lines} lines and {prefix}.label "
                    f"{found[split].total()}"
                )
        if unknown := set(found[split]) - set(found["train"]):
            raise must_be(f"--{split}", "of labels that --train has", f"{prefix}.label with {min(unknown)!r}")
        if odd := [label for label in found[split] if len(label.split()) > 1]:
            raise must_be(f"--{split}", "of labels without spaces", f"{prefix}.label with {odd[0]!r}")
    return found


def prepare_classes(settings: ClassSettings, dest: Path, workers: int = 1) -> dict[str, Any]:
    """Make ``dest`` and return what its ``prepared.json`` says.

    Raises:
        LnplaceError: something is wrong with the text, the labels, the model's data or ``dest``; nothing is written
            then.
    """
    labels = _labels(settings)
    model = read_manifest(settings.model_data)
    if "language" not in model:
        raise must_be("--model-data", "a folder that `lnplace prepare-text` made", settings.model_data)
    encoding = Encoding.of(model)
    pieces = encoding.load(settings.model_data)
    split_line = encoding.words.splitter(model["language"])
    prefixes = settings.prefixes()
    with new_folder("--dest", dest) as folder, tempfile.TemporaryDirectory(dir=folder) as name:
        scratch = Path(name)
        for part in settings.inputs():
            for split, prefix in prefixes.items():
                text = Path(f"{prefix}.{part}")
                write_lines(scratch / "words", map(split_line, read_lines(text)))
                encode(pieces, scratch / "words", scratch / f"{split}.{part}", text)
            files = {split: scratch / f"{split}.{part}" for split in prefixes}
            binarise(files, settings.model_data / "dict.txt", folder / part, workers, "--only-source")
        write_dictionary(scratch / "labels.txt", sorted(labels["train"]), labels["train"])
        files = {split: Path(f"{prefix}.label") for split, prefix in prefixes.items()}
        binarise(files, scratch / "labels.txt", folder / "label", workers, "--only-source")
        entries = {
            "note": settings.note,
            "classes": len(labels["train"]),
            "counts": {split: dict(sorted(found.items())) for split, found in labels.items()},
            # The accuracy of whoever always gives the split's most frequent label.
            "majority": {split: max(found.values()) / found.total() for split, found in labels.items()},
            "model_data": {"sha256 of dict.txt": sha256(settings.model_data / "dict.txt"), **encoding.record()},
            "sha256": {
                f"{split}.{part}": sha256(Path(f"{prefix}.{part}"))
                for split, prefix in prefixes.items()
                for part in (*settings.inputs(), "label")
            },
        }
        return write_manifest(folder, entries)
