"""``lnplace prepare``: parallel text into data that fairseq trains on and ``lnplace evaluate`` scores against."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

HELP = "prepare parallel text: joint sentencepiece model, binarised data, raw references"
EXAMPLE = (
    "lnplace prepare --source-lang de --target-lang en --train data/toy/train --valid data/toy/valid "
    "--test data/toy/test --vocab-size 300 --dest data/prepared/toy"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the languages, the three pairs of text files, the vocabulary's size and the destination."""
    parser.add_argument("--source-lang", required=True, help="language to translate from, as in the files' names")
    parser.add_argument("--target-lang", required=True, help="language to translate into")
    for split in ("train", "valid", "test"):
        parser.add_argument(f"--{split}", required=True, metavar="PATH", help=f"{split} text: PATH.SOURCE, PATH.TARGET")
    parser.add_argument("--vocab-size", type=int, required=True, metavar="N", help="pieces, shared by both languages")
    parser.add_argument("--dest", type=Path, required=True, metavar="DIR", help="new folder for the data")
    parser.add_argument("--note", default="", metavar="TEXT", help="kept in prepared.json: where the text comes from")
    parser.add_argument("--workers", type=int, default=1, help="processes that binarise")


def run(args: argparse.Namespace) -> None:
    """Prepare the data and print the counts."""
    from fairseq_lnplace.corpus.prepare import Settings, prepare  # imports fairseq and sentencepiece

    settings = Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)})
    manifest = prepare(settings, args.dest, args.workers)
    for split, counts in manifest["counts"].items():
        print(f"{split}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    print(f"dictionary: {manifest['dictionary']} symbols")
    print(args.dest)
