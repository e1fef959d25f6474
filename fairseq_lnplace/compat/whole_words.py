"""`--mask-whole-words` of fairseq 0.12.2's masked-LM task asks for `self.args`, which its tasks no longer have.

What it looks for there is how words are cut into pieces (`--bpe`). Can go when fairseq asks for it where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["find_pieces"]


def find_pieces(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute the module and let its task find the options of `--bpe` where it looks for them."""
    execute(module)
    if not hasattr(module.MaskedLMTask, "args"):
        module.MaskedLMTask.args = property(_pieces)


def _pieces(task: Any) -> Any:
    """Return the options of `--bpe` (None without it), which stand beside the task's in the whole configuration."""
    from omegaconf import OmegaConf

    whole = task.cfg._get_parent() if OmegaConf.is_config(task.cfg) else None
    return task.cfg if whole is None else whole.bpe
