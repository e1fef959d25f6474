"""Options that make fairseq 0.12.2 end in a traceback are refused in a sentence, before any work."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from fairseq_lnplace.compat.bfloat16 import without_tpu
from fairseq_lnplace.compat.checkpoints import load_safely
from fairseq_lnplace.compat.raised import error
from fairseq_lnplace.compat.tasks import check_kind

__all__ = ["compare_kinds", "count_devices", "need_gpu", "need_warmup"]

STARTED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")  # by torchrun


def need_warmup(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute fairseq's `inverse_sqrt`, which divides by the number of warm-up updates (issue 1341)."""
    execute(module)
    schedule = module.InverseSquareRootSchedule
    init = schedule.__init__

    @wraps(init)
    def checked_init(self: Any, cfg: Any, optimizer: Any) -> None:
        if cfg.warmup_updates < 1:
            raise error(
                "`--warmup-updates` must be at least 1 with inverse_sqrt (inverse_sqrt_nowarmup needs none), but is "
                f"{cfg.warmup_updates}"
            )
        init(self, cfg, optimizer)

    schedule.__init__ = checked_init


def count_devices(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute `fairseq.distributed.utils`, which starts one process for each GPU and has none to start without."""
    load_safely(module, execute)
    infer = module.infer_init_method

    @wraps(infer)
    def checked_infer(cfg: Any, force_distributed: bool = False) -> None:
        started = all(name in os.environ for name in STARTED) or cfg.distributed_port > 0
        devices = module.torch.cuda.device_count()
        if cfg.distributed_init_method is None and not started and cfg.distributed_world_size > max(devices, 1):
            raise error(
                f"`--distributed-world-size` must be at most {max(devices, 1)}, for there are {devices} GPUs, but is "
                f"{cfg.distributed_world_size}"
            )
        infer(cfg, force_distributed)

    module.infer_init_method = checked_infer  # type: ignore[attr-defined]


def need_gpu(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute fairseq's optimizer for `--fp16`, which lays its 32-bit copies out on the current GPU."""
    execute(module)
    optimizer = module.FP16Optimizer
    usual = optimizer.build_fp32_params

    @classmethod  # type: ignore[misc]
    def build_or_tell(cls: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return usual(*args, **kwargs)
        except (AssertionError, RuntimeError):
            if module.torch.cuda.is_available():
                raise
            raise error("`--fp16` must be left out without a GPU (--bf16 needs none), but is given") from None

    optimizer.build_fp32_params = build_or_tell


def compare_kinds(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute `fairseq.options`, and compare what a training's task and its architecture are for."""
    without_tpu(module, execute)
    parse = module.parse_args_and_arch

    @wraps(parse)
    def parse_and_compare(*args: Any, **kwargs: Any) -> Any:
        parsed = parse(*args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        check_kind(getattr(namespace, "arch", None), getattr(namespace, "task", None))
        return parsed

    vars(module)["parse_args_and_arch"] = parse_and_compare
