"""Linear maps by oneDNN, for as long as a search runs.

For float32 torch's ``F.linear`` asks MKL, which uses half of AVX-512's vector width on a CPU that is not Intel's: on an
AMD EPYC 9005 it takes 2.3 times as long as oneDNN, which torch ships, too, and which torch.compile asks. Elsewhere
oneDNN is the slower one, by a tenth: on Intel's own CPUs, and where there is no AVX-512.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["linear_by_onednn"]

WORTH_IT = 2_000_000  # products; a call costs some microseconds more than MKL's


@contextmanager
def linear_by_onednn(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Run those of the modules that are ``nn.Linear`` by oneDNN, where it is faster, in float32, without gradient.

    The modules stay what they are: their hooks run, and a compiled or scripted module takes no notice.
    """
    wanted = is_faster() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    linear = [module for module in modules if wanted and isinstance(module, nn.Linear) and plain(module)]
    for module in linear:
        module.forward = partial(mapped, module)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in linear:
            module.__dict__.pop("forward", None)


def is_faster() -> bool:
    """Return whether oneDNN is faster than MKL on this CPU."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512") and "GenuineIntel" not in about_the_cpu()


@cache
def about_the_cpu() -> str:
    """Return what Linux says of the CPU; nothing elsewhere."""
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def plain(module: nn.Linear) -> bool:
    """Return whether the module is a linear map that oneDNN takes, and nobody else has replaced its forward."""
    return type(module) is nn.Linear and "forward" not in vars(module) and suits(module.weight)


def suits(x: Tensor) -> bool:
    """Return whether oneDNN's linear map takes the tensor."""
    return x.device.type == "cpu" and x.dtype == torch.float32


def reads_columns(module: nn.Linear) -> bool:
    """Return whether the module's product is faster where its weight transposed is what is contiguous.

    So it is with MKL: by half for a few rows, by a twentieth for hundreds.
    """
    return plain(module) and not is_faster()


def mapped(module: nn.Linear, x: Tensor) -> Tensor:
    """Return ``x`` (... x in_features) mapped, ... x out_features."""
    if x.numel() * module.out_features < WORTH_IT or not suits(x) or torch.is_grad_enabled():
        return F.linear(x, module.weight, module.bias)
    return torch.ops.mkldnn._linear_pointwise(x, module.weight, module.bias, "none", [], "")  # type: ignore[no-any-return]
