"""fairseq ends with a paragraph and a traceback where this package is imported already, but from another folder.

That is so where it is installed and used as a checkout at once: two copies would register everything twice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

__all__ = ["tell_which_copy"]

PACKAGE = "fairseq_lnplace"


def tell_which_copy(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute `fairseq.utils` and have `--user-dir` compared with the copy of this package that is imported."""
    execute(module)
    usual = module.import_user_module

    @wraps(usual)
    def import_user_module(args: Any) -> None:
        if PACKAGE in sys.modules and getattr(args, "user_dir", None):
            user_dir = os.path.abspath(args.user_dir)
            if os.path.basename(user_dir) == PACKAGE and os.path.isdir(user_dir):
                check_copy(user_dir)
        usual(args)

    module.import_user_module = import_user_module  # type: ignore[attr-defined]


def check_copy(user_dir: str) -> None:
    """Check that a user directory is the folder that this package is imported from, by whichever path.

    Raises:
        LnplaceError: it is another copy.
    """
    from fairseq_lnplace.errors import LnplaceError

    folders: list[str] = sys.modules[PACKAGE].__path__  # type: ignore[assignment]
    if not any(os.path.samefile(user_dir, folder) for folder in folders):
        raise LnplaceError(
            f"`--user-dir` must be {folders[0]}, where {PACKAGE} is imported from, but is another copy: {user_dir}"
        )
    if user_dir not in folders:
        folders.append(user_dir)  # a link to it, which fairseq would compare as text
