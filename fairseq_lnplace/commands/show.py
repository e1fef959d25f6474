"""``lnplace show``: a schedule or a placement, each shown by a module of its own."""

from __future__ import annotations

import argparse

from fairseq_lnplace.errors import must_be

HELP = "draw a learning-rate schedule"
EXAMPLE = "lnplace show schedule inverse_sqrt_nowarmup --lr 5e-4 --updates 20000 --plot schedule.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take what to show; its own options follow, and `lnplace show schedule --help` lists them."""
    parser.add_argument("what", help="schedule")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="what follows depends on the first word")


def run(args: argparse.Namespace) -> None:
    """Hand the options on to what shows them."""
    if args.what == "schedule":
        from fairseq_lnplace.commands import show_schedule

        show_schedule.main(args.options)
    else:
        raise must_be("what", "schedule", args.what)
