"""``lnplace export``: a checkpoint that needs nothing of this package."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "write a checkpoint in a form that needs nothing of this package"
EXAMPLE = "lnplace export runs/admin/checkpoint_best.pt --to fairseq --output runs/admin/stock.pt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the input, the form and the output."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint of this package's models")
    parser.add_argument(
        "--to",
        choices=("fairseq", "ctranslate2"),
        default="fairseq",
        help="stock fairseq's own form, or CTranslate2's, by its own converter",
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="PATH",
        help="what to write: a checkpoint, or CTranslate2's folder",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="ctranslate2: folder of the dictionaries, if not the training's own"
    )
    parser.add_argument("--quantization", metavar="TYPE", help="ctranslate2: type of the weights, such as int8")


def run(args: argparse.Namespace) -> None:
    """Export and say what was written."""
    from fairseq_lnplace.errors import must_be
    from fairseq_lnplace.export.ctranslate2 import to_ctranslate2  # imports torch
    from fairseq_lnplace.export.stock import to_fairseq

    if args.to == "ctranslate2":
        said = to_ctranslate2(args.checkpoint, args.output, args.data, args.quantization)
    else:
        for option in ("data", "quantization"):
            if getattr(args, option) is not None:
                raise must_be(f"--{option}", "left out with --to fairseq", getattr(args, option))
        said = to_fairseq(args.checkpoint, args.output)
    print(f"{args.output}: {said}")
