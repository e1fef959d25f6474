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
def _writable(path: Path, partial: Path) -> Iterator[None]:
    """Say that ``path`` cannot be written where ``partial`` cannot; other files' errors are left alone."""
    try:
        yield
    except OSError as error:
        if str(error.filename) == str(partial) or error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LnplaceError(f"{path} cannot be written: {error.strerror}") from error
        raise


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Give a path to write to; it becomes ``path``, replacing an older one, when the block ends without an error.

    Raises:
        LnplaceError: there can be no such file.
    """
    partial = _partial(path)
    if path.is_dir():
        raise LnplaceError(f"{path} cannot be written: it is a folder")
    try:
        with _writable(path, partial):
            partial.touch()
            yield partial
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
    try:
        with _writable(path, partial):
            partial.mkdir()
            yield partial
            os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON with a final newline."""
    with new_file(path) as partial:
        partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
