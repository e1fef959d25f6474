"""``lnplace prepare-classes``: sentences with labels into data for fine-tuning a masked language model."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

HELP = "prepare sentences with labels for --task sentence_prediction"
EXAMPLE = (
    "lnplace prepare-classes --model-data data/prepared/text --train mine/train --valid mine/valid "
    "--dest data/prepared/mine"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the files, the model's data and the destination."""
    for split, required in (("train", True), ("valid", True), ("test", False)):
        parser.add_argument(
            f"--{split}", required=required, default="", metavar="PATH", help="PATH.input0, PATH.input1 and PATH.label"
        )
    parser.add_argument(
        "--model-data", type=Path, required=True, metavar="DIR", help="what `lnplace prepare-text` made for the model"
    )
    parser.add_argument("--dest", type=Path, required=True, metavar="DIR", help="new folder for the data")
    parser.add_argument("--note", default="", metavar="TEXT", help="kept in prepared.json: where the text comes from")
    parser.add_argument("--workers", type=int, default=1, help="processes that binarise")


def run(args: argparse.Namespace) -> None:
    """Prepare the data and print the counts."""
    from fairseq_lnplace.corpus.prepare_classes import ClassSettings, prepare_classes  # imports fairseq

    settings = ClassSettings(**{field.name: getattr(args, field.name) for field in fields(ClassSettings)})
    manifest = prepare_classes(settings, args.dest, args.workers)
    for split, counts in manifest["counts"].items():
        counted = ", ".join(f"{count} {label}" for label, count in counts.items())
        print(f"{split}: {counted}; always the same answer is right in {manifest['majority'][split]:.1%}")
    print(args.dest)
