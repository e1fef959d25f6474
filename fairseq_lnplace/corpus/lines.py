"""Text files, line by line: read strictly, written with plain ends, summed up."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from fairseq_lnplace.errors import LnplaceError

__all__ = ["member", "read_lines", "read_parallel", "sha256", "write_lines"]


def read_lines(path: Path, blank: bool = False) -> Iterator[str]:
    """Yield the lines of a text file, without white space at their ends.

    Args:
        blank: whether a line may be blank, as between documents.

    Raises:
        LnplaceError: the file is not there, not UTF-8 or empty, or one of its lines is blank and must not be.
    """
    number = 0
    try:
        # Lines end at "\n" alone, as for wc and fairseq; a form feed or U+2028 inside one is white space.
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, 1):
                if "\0" in line:
                    raise LnplaceError(f"Text must be UTF-8, but {path} has a zero byte in line {number}")
                if not (text := line.strip()) and not blank:
                    raise LnplaceError(f"Every line must hold a sentence, but line {number} of {path} is empty")
                yield text
    except UnicodeDecodeError as error:
        raise LnplaceError(f"Text must be UTF-8, but {path} is not, after line {number}: {error.reason}") from error
    except OSError as error:
        raise LnplaceError(f"{path} cannot be read: {error.strerror}") from error
    if not number:
        raise LnplaceError(f"{path} is empty")


def read_parallel(paths: Sequence[Path], read: Callable[[Path], Iterator[str]]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of several files side by side, each file read by ``read``.

    Raises:
        LnplaceError: one of them ends before another, or cannot be read.
    """
    for number, lines in enumerate(zip_longest(*map(read, paths)), 1):
        if None in lines:
            short = paths[lines.index(None)]
            raise LnplaceError(f"Both sides must have as many sentences, but {short} has only {number - 1}")
        yield lines


def member(folder: Path, name: str) -> Path:
    """Return the file of a name, wherever in an unpacked archive it is.

    Raises:
        LnplaceError: there is none.
    """
    found = next(folder.rglob(name), None)
    if found is None:
        raise LnplaceError(f"{name} is missing among the files of {folder}")
    return found


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines as UTF-8 that end with ``\\n`` on every system."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
