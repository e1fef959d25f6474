"""`--bf16` on a GPU or CPU: fairseq 0.12.2's command line takes it for a TPU's and then misses torch_xla."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Any

__all__ = ["without_tpu"]


def without_tpu(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute `fairseq.options` and let `--bf16` mean a TPU only where torch_xla is installed."""
    execute(module)
    parse = module.parse_args_and_arch

    def parse_args_and_arch(*args: Any, **kwargs: Any) -> Any:
        parsed = parse(*args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        if getattr(namespace, "bf16", False) and getattr(namespace, "tpu", False) and find_spec("torch_xla") is None:
            namespace.tpu = False
        return parsed

    vars(module)["parse_args_and_arch"] = parse_args_and_arch
