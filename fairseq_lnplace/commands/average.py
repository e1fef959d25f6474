"""``lnplace average``: one checkpoint out of several."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_lnplace.errors import LnplaceError

HELP = "average the weights of several checkpoints of one model"
EXAMPLE = "lnplace average runs/preln --last 5 --output runs/preln/average.pt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the inputs, how to choose among them, and the output."""
    parser.add_argument("inputs", nargs="+", type=Path, metavar="PATH", help="checkpoints, or one folder with --last")
    parser.add_argument("--last", type=int, metavar="N", help="average the last N checkpoints of the folder")
    parser.add_argument("--by", choices=("epoch", "update"), default="epoch", help="which of the folder's to count")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the checkpoint to write")


def run(args: argparse.Namespace) -> None:
    """Average and say what was averaged."""
    from fairseq_lnplace.averaging import average, last_checkpoints  # imports torch

    if args.last is None:
        paths = args.inputs
    elif len(args.inputs) == 1 and args.inputs[0].is_dir():
        paths = last_checkpoints(args.inputs[0], args.last, args.by)
    else:
        raise LnplaceError("`--last` must go with exactly one folder")
    average(paths, args.output)
    print(f"{args.output}: the average of {', '.join(path.name for path in paths)}")
