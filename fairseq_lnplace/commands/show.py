"""``lnplace show``: a schedule or a placement, each shown by a module of its own."""

from __future__ import annotations

import argparse

from fairseq_lnplace import placements
from fairseq_lnplace.errors import must_be

HELP = "show a placement (equation, constants, parameters, diagram) or a learning-rate schedule"
EXAMPLE = "lnplace show deepnorm --encoder-layers 18 --decoder-layers 18 --draw deepnorm.svg"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take what to show; its own options follow, and `lnplace show postln --help` lists them."""
    parser.add_argument("what", help="a placement (lnplace list), or schedule")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="what follows depends on the first word")


def run(args: argparse.Namespace) -> None:
    """Hand the options on to what shows them."""
    if args.what == "schedule":
        from fairseq_lnplace.commands import show_schedule

        show_schedule.main(args.options)
    elif args.what in placements.names():
        from fairseq_lnplace.commands import show_placement

        show_placement.main([args.what, *args.options])
    else:
        raise must_be("what", f"schedule or one of {', '.join(placements.names())}", args.what)
