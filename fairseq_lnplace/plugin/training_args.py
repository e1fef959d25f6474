"""A command line of fairseq-train, read without it."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Sequence
from contextlib import redirect_stderr

from fairseq import options

from fairseq_lnplace.errors import LnplaceError

__all__ = ["training_args"]


def training_args(words: Sequence[str]) -> Namespace:
    """Return the options of ``fairseq-train WORDS``, the architecture's filled in.

    Raises:
        LnplaceError: fairseq-train does not take them.
    """
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return options.parse_args_and_arch(options.get_training_parser(), [*words])  # type: ignore[no-any-return]
    except SystemExit as error:
        reason = said.getvalue().strip().rpartition("error: ")[2].splitlines()
        raise LnplaceError(f"fairseq-train refuses its options: {' '.join(reason)[:300]}") from error
