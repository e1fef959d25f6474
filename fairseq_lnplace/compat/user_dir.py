"""`--user-dir` with this package: by a link, from another folder, beside another copy of it or another of its name.

Two copies would register everything twice, which fairseq tells by a traceback and a paragraph; a relative folder is
looked for by fairseq-hydra-train where its results go.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from fairseq_lnplace.compat.raised import error

__all__ = ["tell_which_copy"]

PACKAGE = "fairseq_lnplace"
SIGN = os.path.join("placements", "methods.py")  # a file that tells a copy of this package, whatever it is called


def tell_which_copy(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute `fairseq.utils` and have `--user-dir` compared with the copy of this package that is imported."""
    execute(module)
    usual = module.import_user_module

    @wraps(usual)
    def import_user_module(args: Any) -> None:
        if getattr(args, "user_dir", None):
            args.user_dir = located(args.user_dir)
            check_copy(os.path.abspath(args.user_dir))
        try:
            usual(args)
        except FileNotFoundError as missing:
            if missing.filename is not None:
                raise  # from within the module
            raise error(f"`--user-dir` must be a folder, but there is none at {args.user_dir}") from None
        if getattr(args, "user_dir", None) and os.path.basename(os.path.abspath(args.user_dir)) == PACKAGE:
            check_name(sys.modules.get(PACKAGE))

    module.import_user_module = import_user_module  # type: ignore[attr-defined]


def located(user_dir: str) -> str:
    """Return a user directory as it is meant: Hydra has left the folder that a relative one was given in."""
    if os.path.isabs(user_dir) or os.path.exists(user_dir) or "hydra.core.hydra_config" not in sys.modules:
        return user_dir
    from hydra.core.hydra_config import HydraConfig
    from hydra.utils import get_original_cwd

    before = os.path.join(get_original_cwd(), user_dir) if HydraConfig.initialized() else user_dir
    return before if os.path.exists(before) else user_dir


def check_copy(user_dir: str) -> None:
    """Check that a user directory is, where it is a copy of this package, the one that is imported, by whichever path.

    Raises:
        LnplaceError: it is another copy.
    """
    package = sys.modules.get(PACKAGE)
    if not os.path.exists(os.path.join(user_dir, SIGN)):
        return
    if package is None:
        if os.path.basename(user_dir) != PACKAGE and os.path.basename(os.path.realpath(user_dir)) == PACKAGE:
            sys.path.insert(0, os.path.dirname(os.path.realpath(user_dir)))
        return
    check_name(package)
    folders: list[str] = package.__path__  # type: ignore[assignment]
    if not any(os.path.samefile(user_dir, folder) for folder in folders):
        raise error(
            f"`--user-dir` must be {folders[0]}, where {PACKAGE} is imported from, but is another copy: {user_dir}"
        )
    if user_dir not in folders:
        folders.append(user_dir)  # a link to it, which fairseq would compare as text


def check_name(package: ModuleType | None) -> None:
    """Raise LnplaceError where the module of this package's name is another's."""
    folder = next(iter(getattr(package, "__path__", [])), "")
    if package is not None and not os.path.exists(os.path.join(folder, SIGN)):
        raise error(f"`{PACKAGE}` must be this package, but another of its name comes first on Python's path: {folder}")
