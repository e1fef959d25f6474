"""Keeps out of sight what fairseq 0.12.2's use of today's hydra and torch has them say, which no user can change.

Whoever asks Python for warnings (`-W`, `PYTHONWARNINGS`) still sees every one of them.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from types import ModuleType

__all__ = ["quieten"]

# Beginnings of messages: those of hydra about the configuration that fairseq ships and how it asks for it, ...
_HYDRA = (
    r"\s*hydra\.experimental\.\w+\(\) is no longer experimental",
    r"\s*The version_base parameter is not specified",
    r"In 'config': Usage of deprecated keyword in package header",
    r"\s*'config' is validated against ConfigStore schema",
    r"\s*The strict flag in the compose API is deprecated",
    r"\s*Future Hydra versions will no longer change working directory",
)
# ... and those of torch about what fairseq's loops and layers pass to it.
_TORCH = (
    r"'pin_memory' argument is set as true but no accelerator is found",
    r"Support for mismatched \w+ and \w+ is deprecated",
)


def quieten(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Set the filters, then execute fairseq."""
    if not sys.warnoptions:
        for message in _HYDRA + _TORCH:
            warnings.filterwarnings("ignore", message, UserWarning)
        for category in (FutureWarning, DeprecationWarning, SyntaxWarning):
            warnings.filterwarnings("ignore", category=category, module=r"(fairseq|fairseq_cli|hydra)(\.|$)")
    # Said once per process, of a package that only one speech task uses.
    log = logging.getLogger("fairseq.tasks.text_to_speech")
    log.addFilter(lambda record: not record.getMessage().startswith("Please install tensorboardX"))
    execute(module)
