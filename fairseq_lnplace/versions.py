"""The versions of Python, this package and others, for the record beside a result."""

from __future__ import annotations

import platform
from importlib import metadata

__all__ = ["versions"]


def versions(*packages: str) -> dict[str, str]:
    """Return the installed version of Python, of this package and of the named ones."""
    found = {"python": platform.python_version()}
    for package in ("fairseq_lnplace", *packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
