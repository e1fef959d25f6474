"""The ``lnplace`` command: each sub-command is one module of ``fairseq_lnplace.commands``."""

from __future__ import annotations

import argparse
import importlib
import logging
import signal
import sys
from collections.abc import Sequence

from fairseq_lnplace.errors import LnplaceError

# In the order of `lnplace --help`. A module here has HELP (one line), EXAMPLE (one command line),
# add_arguments(parser) and run(args), which prints the result and raises LnplaceError on a mistake.
COMMANDS: dict[str, str] = {
    "list": "list_",
    "corpus": "corpus",
    "prepare": "prepare",
    "prepare-text": "prepare_text",
    "prepare-classes": "prepare_classes",
    "evaluate": "evaluate",
    "average": "average",
    "diagnose": "diagnose",
    "report": "report",
    "export": "export",
    "show": "show",
    "user-dir": "user_dir",
    "bench": "bench",
    "doctor": "doctor",
}


def build_parser(names: Sequence[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Return the parser with the given sub-commands; only their modules are imported."""
    parser = argparse.ArgumentParser(
        prog="lnplace", description="The laboratory for the placement of normalisation in Transformers."
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in names:
        module = importlib.import_module(f"fairseq_lnplace.commands.{COMMANDS[name]}")
        sub = subparsers.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=f"example: {module.EXAMPLE}",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command; return its exit status (0 on success, 1 on a mistake told in one sentence)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    named = argv[:1] if argv and argv[0] in COMMANDS else tuple(COMMANDS)
    args = build_parser(named).parse_args(argv)
    # stdout is for results; fairseq has set up a chatty log there.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s: %(message)s", force=True)
    try:
        args.run(args)
    except LnplaceError as error:
        print(f"lnplace: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `lnplace list | head`
        sys.stderr.close()
    except KeyboardInterrupt:  # ends as by the signal itself, so that a script that called it ends, too
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    return 0
