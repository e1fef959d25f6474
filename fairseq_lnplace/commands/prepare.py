"""``lnplace prepare``: parallel text into data that fairseq trains on and ``lnplace evaluate`` scores against."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

HELP = "prepare parallel text: joint byte-pair encoding, binarised data, raw references"
EXAMPLE = (
    "lnplace prepare --source-lang de --target-lang en --train data/toy/train --valid data/toy/valid "
    "--test data/toy/test --vocab-size 300 --dest data/prepared/toy"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the languages, the three pairs of text files, the encoding, the limits and the destination."""
    parser.add_argument("--source-lang", required=True, help="language to translate from, as in the files' names")
    parser.add_argument("--target-lang", required=True, help="language to translate into")
    for split in ("train", "valid", "test"):
        parser.add_argument(f"--{split}", required=True, metavar="PATH", help=f"{split} text: PATH.SOURCE, PATH.TARGET")
    add_encoding_arguments(parser)
    parser.add_argument("--max-pieces", type=int, metavar="N", help="drop longer training pairs, in pieces a side")
    parser.add_argument("--max-ratio", type=float, metavar="R", help="drop training pairs less even than 1:R in pieces")


def add_encoding_arguments(parser: argparse.ArgumentParser) -> None:
    """Add how text becomes pieces, and where the result goes."""
    parser.add_argument(
        "--vocab-size", type=int, required=True, metavar="N", help="pieces (sentencepiece) or merges (subword_nmt)"
    )
    parser.add_argument(
        "--bpe", default="sentencepiece", choices=("sentencepiece", "subword_nmt"), help="byte-pair encoding"
    )
    parser.add_argument("--tokeniser", default="none", choices=("none", "moses"), help="cut the text into words before")
    parser.add_argument("--lowercase", action="store_true", help="lower-case the words")
    parser.add_argument("--split-hyphens", action="store_true", help="Moses' -a: well-known becomes well @-@ known")
    parser.add_argument("--dest", type=Path, required=True, metavar="DIR", help="new folder for the data")
    parser.add_argument("--note", default="", metavar="TEXT", help="kept in prepared.json: where the text comes from")
    parser.add_argument("--workers", type=int, default=1, help="processes that binarise")


def print_counts(manifest: Mapping[str, Any], dest: Path) -> None:
    """Print what a manifest counts, and the folder."""
    for split, counts in manifest["counts"].items():
        print(f"{split}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    print(f"dictionary: {manifest['dictionary']} symbols")
    print(dest)


def run(args: argparse.Namespace) -> None:
    """Prepare the data and print the counts."""
    from fairseq_lnplace.corpus.prepare import Settings, prepare  # imports fairseq and sentencepiece

    settings = Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)})
    print_counts(prepare(settings, args.dest, args.workers), args.dest)
