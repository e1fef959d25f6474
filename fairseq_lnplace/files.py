"""Writing files and folders so that nothing half-written is ever found under its final name."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from fairseq_lnplace.errors import LnplaceError, must_be

__all__ = ["new_file", "new_folder", "write_json"]


def _partial(path: Path) -> Path:
    """Return the sibling that stands in for ``path`` while it is written, by this process alone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LnplaceError(f"The folder {path.parent} cannot be made: {error.strerror}") from error
    return path.with_name(f".{path.name}.{uuid4().hex[:12]}.partial")


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    """Say of an error in the block that ``path`` cannot be written."""
    try:
        yield
    except OSError as error:
        raise LnplaceError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Give a path to write to; it becomes ``path``, replacing an older one, when the block ends without an error.

    Raises:
        LnplaceError: there can be no such file.
    """
    partial = _partial(path)
    with _writable(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        partial.touch()
    try:
        yield partial
        with _writable(path):
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def new_folder(name: str, path: Path) -> Iterator[Path]:
    """Give an empty folder to fill; it becomes ``path`` when the block ends without an error.

    Args:
        name: the option that ``path`` came from, for the message.
        path: must not exist yet, or be an empty folder.

    Raises:
        LnplaceError: something is there already, or there can be no such folder.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise must_be(name, "a new or empty folder", f"{path}, which holds something")
    partial = _partial(path)
    with _writable(path):
        partial.mkdir()
    try:
        yield partial
        with _writable(path):
            os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON with a final newline."""
    with new_file(path) as partial:
        partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
