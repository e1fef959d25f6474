"""``lnplace diagnose``: measure a model from outside; each measurement is shown by a module of its own."""

from __future__ import annotations

import argparse
import importlib

from fairseq_lnplace.errors import must_be

HELP = "measure gradients, activations, depth or the paper's theory: tables, JSON, CSV and figures"
EXAMPLE = "lnplace diagnose gradients --arch transformer_postln_tiny transformer_preln_final_tiny --seeds 3"

MEASUREMENTS = ("gradients", "activations", "depth", "theory")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take what to measure; its own options follow, and `lnplace diagnose gradients --help` lists them."""
    parser.add_argument("what", help=", ".join(MEASUREMENTS))
    parser.add_argument("options", nargs=argparse.REMAINDER, help="what follows depends on the first word")


def run(args: argparse.Namespace) -> None:
    """Hand the options on to what measures."""
    if args.what not in MEASUREMENTS:
        raise must_be("what", f"one of {', '.join(MEASUREMENTS)}", args.what)
    importlib.import_module(f"fairseq_lnplace.commands.diagnose_{args.what}").MEASUREMENT.run(args.options)
