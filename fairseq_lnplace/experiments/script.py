"""What the scripts that run experiments share: their command line, their exit status, what they once took."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fairseq_lnplace.errors import LnplaceError, must_be

__all__ = ["check_positive", "earlier_cost", "exit_status", "own_and_extra"]


def own_and_extra(argv: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return a script's own words and those after ``--``, which are fairseq-train's."""
    words = list(sys.argv[1:] if argv is None else argv)
    split = words.index("--") if "--" in words else len(words)
    return words[:split], words[split + 1 :]


def exit_status(script: str, work: Callable[[], None]) -> int:
    """Do the work; return 0, 1 after a mistake, which is told in one sentence, or 130 after Ctrl-C."""
    try:
        work()
    except LnplaceError as error:
        print(f"{script}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{script}: stopped; the same command continues", file=sys.stderr)
        return 130
    return 0


def check_positive(args: argparse.Namespace, *names: str) -> None:
    """Check options that count something and may be left open.

    Raises:
        LnplaceError: one is below 1.
    """
    for name in names:
        if (value := getattr(args, name)) is not None and value < 1:
            raise must_be(f"--{name}", "at least 1", value)


def earlier_cost(path: Path, command: str, *names: str) -> dict[str, float | None]:
    """Return what the same command took, if an earlier call did all of its work and wrote that down; else None."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: known.get(name) if known.get("command") == command else None for name in names}
