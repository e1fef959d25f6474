"""Linear maps whose products are taken by the library that is the faster one on the CPU at hand.

For float32 torch's ``F.linear`` asks MKL, which uses half of AVX-512's vector width on a CPU that is not Intel's: on an
AMD EPYC 9005 it takes 2.2 times as long as oneDNN, which torch ships, too. Elsewhere oneDNN is the slower one, by a
tenth: on Intel's own CPUs, and where there is no AVX-512.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional, Tuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

__all__ = ["Linear", "is_plain", "product", "reads_columns", "weight_gradient"]

WORTH_IT = 2_000_000  # multiplications; a call costs some microseconds more than MKL's
# oneDNN makes code for each shape and keeps it, half a MiB in the midst of the heap, for the last 1,024 shapes. Batches
# seldom have as many rows as another, so rows are taken in pieces of few sizes, the last one filled up with zeros.
PIECE = 1024
FILLED_UP = 256  # to a multiple of it
FILLED_UP_IN_SEARCH = 64
FEWEST_ROWS = 64  # of fewer too many would be zeros


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
    return onednn_product(x, weight, bias, unit=FILLED_UP_IN_SEARCH)


def by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN is to take the product, for torch.compile at any size."""
    if not ONEDNN_IS_FASTER:
        return False
    if not torch.compiler.is_compiling():
        if torch.jit.is_tracing():  # type: ignore[no-untyped-call]  # sizes would be recorded, too
            return False
        # before the rest: a search has thousands of small products
        if x.numel() * weight.size(0) < WORTH_IT or x.numel() < FEWEST_ROWS * x.size(-1):
            return False
        # what knows no operation but torch's own
        if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
            return False
    elif is_exporting():
        return False
    return suits(x) and suits(weight) and not torch.is_autocast_enabled("cpu")


def suits(x: Tensor) -> bool:
    """Return whether oneDNN takes the tensor; one of a class of its own may hold its numbers otherwise."""
    return type(x) in (Tensor, nn.Parameter) and x.device.type == "cpu" and x.dtype == torch.float32


def is_exporting() -> bool:
    """Return whether a model is being exported to where there may be no oneDNN; torch tells so from 2.7 on."""
    return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()


def onednn_product(x: Tensor, weight: Tensor, bias: Optional[Tensor], unit: int) -> Tensor:
    """Return :func:`product`'s result without its gradient, of pieces filled up to a multiple of ``unit`` rows."""
    if torch.compiler.is_compiling():
        return _opaque_product(x, weight, bias, unit=unit)  # type: ignore[no-any-return]
    rows = x.reshape(-1, x.size(-1))
    if len(rows) <= PIECE:
        y = onednn(filled_up(rows, unit), weight, bias)[: len(rows)]
    else:
        y = rows.new_empty(len(rows), len(weight))
        for ours, piece in zip(pieces(y), pieces(rows), strict=True):
            ours.copy_(onednn(filled_up(piece, unit), weight, bias)[: len(piece)])
    return y.view(*x.shape[:-1], len(weight))


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Return ``grad`` (M x N) transposed times ``x`` (M x K), N x K."""
    if not by_onednn(grad, x.t()):
        return grad.t() @ x
    if torch.compiler.is_compiling():
        return _opaque_weight_gradient(grad, x)  # type: ignore[no-any-return]
    if torch.is_grad_enabled():  # it is to have a gradient in its turn
        return grad.t() @ x
    if grad.size(1) > x.size(1):  # oneDNN lays the left one out anew
        return weight_gradient(x, grad).t().contiguous()
    total = x.new_zeros(grad.size(1), x.size(1))
    for left, right in zip(pieces(grad), pieces(x), strict=True):
        total += onednn(filled_up(left, FILLED_UP).t(), filled_up(right, FILLED_UP).t(), None)
    return total


def pieces(rows: Tensor) -> Sequence[Tensor]:
    """Return the rows (M x K), PIECE at a time."""
    return rows.split(PIECE)  # type: ignore[no-any-return, no-untyped-call]


def filled_up(rows: Tensor, unit: int) -> Tensor:
    """Return the rows (M x K), and zeros behind them up to a multiple of ``unit``."""
    missing = -len(rows) % unit
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


def onednn(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """Return :func:`product`'s result for ``x`` (M x K), as oneDNN gives it."""
    bias = None if bias is None else bias.contiguous()  # else it would be read as if it were
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


@torch.library.custom_op("fairseq_lnplace::product", mutates_args=())
def _opaque_product(x: Tensor, weight: Tensor, bias: Optional[Tensor], unit: int) -> Tensor:
    """Return :func:`product`'s result; torch.compile would lower oneDNN's own operation for constant weights alone."""
    return onednn_product(x, weight, bias, unit=unit)


@_opaque_product.register_fake
def _(x: Tensor, weight: Tensor, bias: Optional[Tensor], unit: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.size(0))


@torch.library.custom_op("fairseq_lnplace::weight_gradient", mutates_args=())
def _opaque_weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Return :func:`weight_gradient`'s result."""
    with torch.no_grad():
        return weight_gradient(grad, x)


@_opaque_weight_gradient.register_fake
def _(grad: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(grad.size(1), x.size(1))


class _Product(torch.autograd.Function):
    """See :func:`product`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        ctx.save_for_backward(x, weight)
        return onednn_product(x, weight, bias, unit=FILLED_UP)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
        """Return the gradients, which can be differentiated in their turn."""
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.size(-1))
        return (
            _Product.apply(grad, weight.t(), None) if for_x else None,  # type: ignore[no-untyped-call]
            weight_gradient(rows, x.reshape(-1, x.size(-1))) if for_weight else None,
            rows.sum(0) if for_bias else None,
        )
