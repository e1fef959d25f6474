"""fairseq's commands end with the one sentence of our error on stderr and status 1, without a traceback."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable
from types import ModuleType, TracebackType

__all__ = ["in_every_command", "print_sentence", "sentence_of"]

# As Python prints an exception, also one of a spawned trainer or a DataLoader's worker, which reaches this process as
# text ("Caught LnplaceError in DataLoader worker process 0. Original Traceback ...").
_OURS = re.compile(r"^fairseq_lnplace\.errors\.LnplaceError: (?!Caught LnplaceError in )(.+)$", re.MULTILINE)

# How a training ends in which a value was not finite; the runner of experiments knows it by this line.
_DIVERGED = re.compile(r"^(FloatingPointError: .*the first value that is not finite came from .+)$", re.MULTILINE)


def sentence_of(error: BaseException) -> str | None:
    """Return the sentence of ours that this error is, holds or comes from, or None."""
    text = "".join(traceback.format_exception(error))
    found = _OURS.search(text) or _DIVERGED.search(text)
    return found[1] if found else None


def in_every_command(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute `fairseq_cli` and print our errors, and no others, as their sentence."""
    execute(module)
    usual = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sentence = sentence_of(error)
        if sentence is None:
            usual(kind, error, trace)
        else:
            print_sentence(sentence)

    sys.excepthook = excepthook


def print_sentence(sentence: str) -> None:
    """Print the sentence on stderr, after the command's name unless it begins with an error's."""
    name = "" if _DIVERGED.match(sentence) else f"{os.path.basename(sys.argv[0])}: "
    print(name + sentence, file=sys.stderr)
