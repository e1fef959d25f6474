"""Linear maps whose products are taken by the library that is the faster one on the CPU at hand.

For float32 torch's ``F.linear`` asks MKL, which uses half of AVX-512's vector width on a CPU that is not Intel's: on an
AMD EPYC 9005 it takes 2.2 times as long as oneDNN, which torch ships, too. Elsewhere oneDNN is the slower one, by a
tenth: on Intel's own CPUs, and where there is no AVX-512.
"""

from pathlib import Path
from typing import Any, Optional, Tuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

__all__ = ["Linear", "is_plain", "product", "reads_columns"]

WORTH_IT = 2_000_000  # multiplications; a call costs some microseconds more than MKL's


def onednn_is_faster(capability: str, cpu: str) -> bool:
    """Return whether oneDNN is faster than MKL, by torch's name of the vectors and what Linux says of the CPU."""
    has_it = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return has_it and capability.startswith("AVX512") and "GenuineIntel" not in cpu


def about_the_cpu() -> str:
    """Return what Linux says of the CPU; nothing elsewhere."""
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


# A constant: torch.compile would not trace how it comes about.
ONEDNN_IS_FASTER = onednn_is_faster(torch.backends.cpu.get_cpu_capability(), about_the_cpu())


class Linear(nn.Linear):
    """``nn.Linear``, by :func:`product`."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` (... x in_features) to ... x out_features."""
        if torch.jit.is_scripting():
            return F.linear(x, self.weight, self.bias)
        return product(x, self.weight, self.bias)

    @classmethod
    def of(cls, linear: nn.Linear) -> "Linear":
        """Return the same map, of the same parameters."""
        same = cls(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        same.weight, same.bias = linear.weight, linear.bias
        return same


def is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether the module is a linear map, and nobody has given it a forward of its own."""
    return type(module) in (nn.Linear, Linear) and "forward" not in vars(module)


def reads_columns(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether the module is a plain linear map that is faster where its weight transposed is what is contiguous.

    So it is with MKL: by half for a few rows, by a twentieth for hundreds.
    """
    return is_plain(module) and suits(module.weight) and not ONEDNN_IS_FASTER


def product(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """Return ``F.linear``'s result: ``x`` (... x K) times ``weight`` (N x K) transposed, and ``bias`` (N) added."""
    if not by_onednn(x, weight):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return _Product.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
    return onednn_product(x, weight, bias)


def by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN is to take the product, for torch.compile at any size."""
    if not (ONEDNN_IS_FASTER and suits(x) and suits(weight)) or torch.is_autocast_enabled("cpu"):
        return False
    if torch.compiler.is_compiling():
        return not is_exporting()
    # what knows no operation but torch's own
    if torch.jit.is_tracing():  # type: ignore[no-untyped-call]
        return False
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    return x.numel() * weight.size(0) >= WORTH_IT


def suits(x: Tensor) -> bool:
    """Return whether oneDNN takes the tensor; one of a class of its own may hold its numbers otherwise."""
    return type(x) in (Tensor, nn.Parameter) and x.device.type == "cpu" and x.dtype == torch.float32


def is_exporting() -> bool:
    """Return whether a model is being exported to where there may be no oneDNN; torch tells so from 2.7 on."""
    return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()


def onednn_product(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """Return :func:`product`'s result without its gradient."""
    if torch.compiler.is_compiling():
        return _opaque_product(x, weight, bias)  # type: ignore[no-any-return]
    bias = None if bias is None else bias.contiguous()  # else it would be read as if it were
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


@torch.library.custom_op("fairseq_lnplace::product", mutates_args=())
def _opaque_product(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """Return :func:`product`'s result; torch.compile would lower oneDNN's own operation for constant weights alone."""
    return onednn_product(x, weight, bias)


@_opaque_product.register_fake
def _(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.size(0))


class _Product(torch.autograd.Function):
    """See :func:`product`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        ctx.save_for_backward(x, weight)
        return onednn_product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
        """Return the gradients, which can be differentiated in their turn."""
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.size(-1))
        return (
            product(grad, weight.t()) if for_x else None,
            product(rows.t(), x.reshape(-1, x.size(-1)).t()) if for_weight else None,
            rows.sum(0) if for_bias else None,
        )
