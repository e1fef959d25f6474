"""``lnplace export``: a checkpoint that needs nothing of this package."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "write a checkpoint in a form that needs nothing of this package"
EXAMPLE = "lnplace export runs/admin/checkpoint_best.pt --to fairseq --output runs/admin/stock.pt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the input, the form and the output."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint of this package's models")
    parser.add_argument("--to", choices=("fairseq",), default="fairseq", help="stock fairseq's own form")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the checkpoint to write")


def run(args: argparse.Namespace) -> None:
    """Export and say what was written."""
    from fairseq_lnplace.export import TARGETS  # imports torch

    print(f"{args.output}: {TARGETS[args.to](args.checkpoint, args.output)}")
