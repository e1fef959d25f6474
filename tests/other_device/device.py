"""The device of ``device.cpp``, ``other``: it stands in for a GPU, as far as tensors of two devices do not mix."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from fairseq.utils import apply_to_sample
from torch.utils import cpp_extension


def compiled(folder: Path) -> Path:
    """Return the library that is the device, made in ``folder``; it takes a C++ compiler some seconds."""
    source, library = Path(__file__).with_name("device.cpp"), folder / "device.so"
    include = [f"-I{path}" for path in cpp_extension.include_paths()]
    [libraries, *_] = cpp_extension.library_paths()
    options = ["-std=c++20", "-fPIC", "-shared", *include, f"-L{libraries}", "-lc10", "-ltorch_cpu", "-ltorch"]
    subprocess.run(["c++", str(source), *options, "-o", str(library)], check=True)
    return library


def register(library: Path) -> torch.device:
    """Give the process the device, for its rest, and return it."""
    torch.utils.rename_privateuse1_backend("other")
    module: Any = ModuleType("torch.other")
    module.current_device, module.device_count, module.is_available = (lambda: 0), (lambda: 1), (lambda: True)
    module._is_in_bad_fork, module.manual_seed_all = (lambda: False), (lambda seed: None)
    torch._register_device_module("other", module)
    torch.ops.load_library(library)
    torch.__future__.set_swap_module_params_on_conversion(True)  # so that modules go on sharing what they share
    return torch.device("other:0")


def moved(sample: Any, device: torch.device) -> Any:
    """Return fairseq's batch with its tensors on the device."""
    return apply_to_sample(lambda tensor: tensor.to(device), sample)
