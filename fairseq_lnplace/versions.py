"""The versions of Python, this package and others, for the record beside a result."""

from __future__ import annotations

import platform
from importlib import metadata

from fairseq_lnplace import __version__

__all__ = ["versions"]


def versions(*packages: str) -> dict[str, str]:
    """Return the installed version of Python, of this package and of the named ones."""
    found = {"python": platform.python_version(), "fairseq_lnplace": __version__}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
