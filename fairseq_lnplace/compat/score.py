"""`fairseq-score --sacrebleu` hands open files to sacrebleu, which since 2.0 takes lists of sentences only.

Seen as "TypeError: BLEU: Each element of `refs` should be a sequence of strings".
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType
from typing import Any

__all__ = ["read_files"]


def read_files(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute `fairseq_cli.score`, whose own `import sacrebleu` yields one that reads files."""
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
    execute(module)


def _import(name: str, *args: Any, **kwargs: Any) -> ModuleType:
    """Do what the `import` statement does, but for sacrebleu."""
    found = builtins.__import__(name, *args, **kwargs)
    if name != "sacrebleu":
        return found
    stand_in = ModuleType(name)
    vars(stand_in).update(corpus_bleu=partial(_corpus_bleu, found.corpus_bleu), __getattr__=partial(getattr, found))
    return stand_in


def _corpus_bleu(corpus_bleu: Callable[..., Any], system: Iterable[str], references: Iterable[Iterable[str]]) -> Any:
    """Score the lines of one file against those of others."""
    return corpus_bleu(_lines(system), [_lines(reference) for reference in references])


def _lines(file: Iterable[str]) -> list[str]:
    return [line.rstrip("\n") for line in file]
