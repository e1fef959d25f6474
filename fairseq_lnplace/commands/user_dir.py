"""``lnplace user-dir``: the path that fairseq's ``--user-dir`` takes."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "print the path to give to fairseq's --user-dir"
EXAMPLE = 'fairseq-train --user-dir "$(lnplace user-dir)" --arch transformer_preln_final ...'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This command takes no options."""


def run(args: argparse.Namespace) -> None:
    """Print the path."""
    print(Path(__file__).resolve().parent.parent)
