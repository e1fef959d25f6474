"""``lnplace prepare-text``: plain text into data for masked language models and language models."""

from __future__ import annotations

import argparse
from dataclasses import fields

from fairseq_lnplace.commands.prepare import add_encoding_arguments, print_counts

HELP = "prepare plain text for --task masked_lm or language_modeling"
EXAMPLE = (
    "lnplace prepare-text --train data/toy/train.en --valid data/toy/valid.en --vocab-size 200 "
    "--dest data/prepared/text"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the text files, the encoding and the destination."""
    what = "one sentence a line, a blank line between documents"
    parser.add_argument("--train", required=True, metavar="FILE", help=f"training text: {what}")
    parser.add_argument("--valid", required=True, metavar="FILE", help="validation text")
    parser.add_argument("--test", default="", metavar="FILE", help="test text, if there is any")
    parser.add_argument("--language", default="en", metavar="LANG", help="for Moses")
    add_encoding_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Prepare the data and print the counts."""
    from fairseq_lnplace.corpus.prepare_text import TextSettings, prepare_text  # imports fairseq and sentencepiece

    settings = TextSettings(**{field.name: getattr(args, field.name) for field in fields(TextSettings)})
    print_counts(prepare_text(settings, args.dest, args.workers), args.dest)
