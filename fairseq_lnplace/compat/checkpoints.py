"""Checkpoints load without running code: the classes that fairseq's really hold are allowed, all else is refused.

torch ≥ 2.6 unpickles tensors and plain containers only, which refuses every checkpoint of fairseq (issues 5603, 5610).
The remedy is torch's own list of allowed classes, for the time of the load; it is never plain unpickling.
"""

from __future__ import annotations

import argparse
import os
import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import IO, Any

from fairseq_lnplace.compat.raised import error as told

__all__ = ["load", "load_checkpoint", "load_safely"]

OLDEST_TORCH = (2, 6)  # before, `weights_only=True` could be made to run code (CVE-2025-32434)


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a checkpoint of fairseq holds ("model", "cfg", "extra_state", ...), its tensors on the CPU.

    Raises:
        LnplaceError: there is no such file, it is damaged, or it holds anything but a checkpoint's classes.
    """
    try:
        with open(path, "rb") as file:
            state = load(file, map_location="cpu")
    except OSError as error:
        raise told(f"the checkpoint {os.fspath(path)} cannot be read: {error.strerror}") from error
    if not isinstance(state, dict) or "model" not in state:
        raise told(f"{os.fspath(path)} is not a checkpoint of fairseq: it holds no model")
    return state


def load_safely(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute a module of fairseq and let its own `torch.load`, not everybody's, be `load`."""
    execute(module)
    torch = module.torch
    _refuse_old(torch.__version__)
    stand_in = ModuleType("torch")
    vars(stand_in).update(load=load, __getattr__=partial(getattr, torch))
    vars(module)["torch"] = stand_in


def load(file: IO[bytes], map_location: Any = None, **_options: Any) -> Any:
    """Return what `torch.load` returns, with fairseq's classes allowed.

    Raises:
        LnplaceError: the file is damaged, or would need a class that is not allowed.
    """
    import torch

    name = getattr(file, "name", "what another trainer sent")
    with torch.serialization.safe_globals(_classes()):
        try:
            return _with_later_options(torch.load(file, map_location=map_location, weights_only=True))
        except MemoryError:
            raise
        except Exception as error:  # a damaged file makes torch raise nearly anything
            if refused := re.search(r"GLOBAL ([\w.]+)", str(error)):
                reason = f"it holds {refused[1]}, which could run code and is in none of fairseq's own"
            else:
                reason = "it is cut off, damaged or no checkpoint at all"
            raise told(f"{name} is refused: {reason}") from None


def _with_later_options(state: Any) -> Any:
    """Return a checkpoint whose configuration has all options of our methods, later ones as they were in effect.

    fairseq passes over an override of an option that is not in a checkpoint's configuration.
    """
    cfg = state.get("cfg") if isinstance(state, dict) else None
    model = cfg.get("model") if isinstance(cfg, dict) else None
    if isinstance(model, dict) and "placement" in model:
        from fairseq_lnplace import placements
        from fairseq_lnplace.placements.options import METHOD_OPTIONS

        known = model["placement"] in placements.names()
        first = placements.get(model["placement"]).first_form if known else {}
        for name in METHOD_OPTIONS:
            model.setdefault(name, first.get(name))
    return state


def _classes() -> list[Any]:
    """Return the classes and functions that checkpoints of fairseq hold, beside torch's own and plain containers.

    Found in checkpoints of 0.12.2 itself (train, EMA, BLEU as the criterion, Hydra) and in the reports of older ones.
    """
    import numpy as np
    from fairseq.data.dictionary import Dictionary
    from fairseq.distributed.utils import _TensorPlaceholder
    from fairseq.logging import meters
    from omegaconf import AnyNode, DictConfig, ListConfig
    from omegaconf.base import ContainerMetadata, Metadata

    # BLEU's counts and best scores: numpy 1 and 2 write the same two functions under different names.
    functions = {"_reconstruct": np.empty(0).__reduce__()[0], "scalar": np.float64().__reduce__()[0]}
    rebuild = [(functions[name], f"numpy.{core}.multiarray.{name}") for name in functions for core in ("core", "_core")]
    dtypes = {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"}
    # Once the statistics of training were pickled as their meters.
    names = ("AverageMeter", "TimeMeter", "StopwatchMeter")
    averages = [
        (getattr(meters, name), f"fairseq.{place}.{name}") for name in names for place in ("meters", "logging.meters")
    ]
    arrays = [np.ndarray, np.dtype, *rebuild, *dtypes]
    # A configuration, as the first trainer sends it to the others when they resume.
    config = [DictConfig, ListConfig, AnyNode, ContainerMetadata, Metadata, (Any, "typing.Any")]
    config += [defaultdict, dict, list, int, float, str, bool]
    return [argparse.Namespace, Dictionary, _TensorPlaceholder, *arrays, *averages, *config]


def _refuse_old(version: str) -> None:
    """Raise LnplaceError for a torch whose safe loading is not safe."""
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
        raise told(f"`torch` must be 2.6 or newer, since older ones do not load checkpoints safely, but is {version}")
