"""Two tasks of GLUE that Xiong et al. 2020 fine-tune on: MRPC (paraphrases) and RTE (entailment).

Only their training and development sets have labels; the latter is for validation, as in the paper.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_lnplace.corpus.lines import member, read_lines, write_lines
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.files import new_folder, write_json

__all__ = ["EXPECTED", "TASKS", "Example", "write_examples"]

EXPECTED = {"MRPC": {"train": 3_668, "valid": 408}, "RTE": {"train": 2_490, "valid": 277}}


class Example(NamedTuple):
    """A pair of sentences and its label, by the names of fairseq's files."""

    input0: str
    input1: str
    label: str


def _rows(path: Path, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yield the named columns of a table with tabs between them; quotation marks are text.

    Raises:
        LnplaceError: a column is missing, as a whole or in a row.
    """
    for number, row in enumerate(csv.DictReader(read_lines(path), delimiter="\t", quoting=csv.QUOTE_NONE), 2):
        values = [row.get(column) or "" for column in columns]
        if not all(values):
            missing = columns[values.index("")]
            raise LnplaceError(f"Every row must have the column {missing}, but line {number} of {path} has not")
        yield values


def _rte(folder: Path) -> dict[str, list[Example]]:
    """Read RTE's ``train.tsv`` and ``dev.tsv``."""
    columns = ("sentence1", "sentence2", "label")
    names = {"train": "train.tsv", "valid": "dev.tsv"}
    return {split: [Example(*row) for row in _rows(member(folder, name), columns)] for split, name in names.items()}


def _mrpc(folder: Path) -> dict[str, list[Example]]:
    """Read MRPC's training text; ``mrpc_dev_ids.tsv`` names the pairs of it that are GLUE's development set."""
    held_out = {tuple(line.split("\t")) for line in read_lines(member(folder, "mrpc_dev_ids.tsv"))}
    splits: dict[str, list[Example]] = {"train": [], "valid": []}
    columns = ("#1 ID", "#2 ID", "#1 String", "#2 String", "Quality")
    for first, second, *example in _rows(member(folder, "msr_paraphrase_train.txt"), columns):
        splits["valid" if (first, second) in held_out else "train"].append(Example(*example))
    return splits


TASKS: dict[str, Callable[[Path], dict[str, list[Example]]]] = {"MRPC": _mrpc, "RTE": _rte}


def write_examples(
    dest: Path, splits: Mapping[str, Sequence[Example]], card: Mapping[str, object]
) -> dict[str, dict[str, int]]:
    """Write ``{train,valid}.{input0,input1,label}`` and ``corpus.json``: the card and the counts, which are returned.

    Raises:
        LnplaceError: ``dest`` holds something already.
    """
    counts = {split: {"pairs": len(examples)} for split, examples in splits.items()}
    with new_folder("--dest", dest) as folder:
        for split, examples in splits.items():
            for name in Example._fields:
                write_lines(folder / f"{split}.{name}", (getattr(example, name) for example in examples))
        write_json(folder / "corpus.json", {**card, "counts": counts})
    return counts
