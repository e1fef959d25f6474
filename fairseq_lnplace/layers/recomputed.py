"""What a cheap operation gives is not kept for the gradient, which has it computed again.

Of what an encoder layer keeps, a sixth are outputs of norms, each beside the input that it was computed from.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any, Callable, ContextManager, Optional, Tuple, Union
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class Again:
    """How to compute a tensor again: once for all that need it, one after the other.

    Args:
        compute: returns the same numbers as the tensor.
        version: the tensor's version when it did.
    """

    def __init__(self, compute: Callable[[], Tensor], version: int) -> None:
        self.compute, self.version = compute, version
        self.uses = 0
        self.result: Optional[Tensor] = None

    def use(self) -> Tensor:
        """Return the tensor, and hold it until the last that needs it has come."""
        with torch.no_grad():
            result = self.compute() if self.result is None else self.result
        self.uses -= 1
        self.result = result if self.uses > 0 else None
        return result


# By the address of their data. While a tensor lives, nothing else has its address.
_repeatable: "WeakValueDictionary[int, Tensor]" = WeakValueDictionary()


def repeatable(y: Tensor, function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Note that ``y`` is ``function(x)``, and will be until the gradient is there.

    ``x`` has to be kept for the gradient anyway, or nothing is won.
    """
    # autocast would be off, and the result of another type, in the backward pass
    if not is_wanted() or torch.is_autocast_enabled(y.device.type) or not y.is_contiguous():
        return
    # detached, or the graph would hang together by Python's objects, too, and be taken apart by recursion
    y.again = Again(partial(function, x.detach()), y._version)  # type: ignore[attr-defined]
    _repeatable[y.data_ptr()] = y


def keeping_less() -> ContextManager[Any]:
    """Return a context in which nothing is kept for the gradient that is `repeatable`."""
    return saved_tensors_hooks(_pack, _unpack) if is_wanted() else nullcontext()


def is_wanted() -> bool:
    """Return whether there is to be a gradient, and not by torch.compile or torch.func, which keep what they like."""
    active = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return active and not torch._C._are_functorch_transforms_active()


def _pack(kept: Tensor) -> Union[Tensor, Tuple[Again, torch.Size]]:
    """Return what to keep in the place of a tensor."""
    again = _again(kept)
    if again is None:
        return kept
    again.uses += 1
    return again, kept.shape


def _again(kept: Tensor) -> Optional[Again]:
    """Return how to compute the tensor again: it is, or views all of, one that is repeatable and has not changed."""
    y: Any = _repeatable.get(kept.data_ptr())
    if y is None or kept.numel() != y.numel() or kept.dtype != y.dtype or not kept.is_contiguous():
        return None
    again: Again = y.again
    return again if y._version == again.version else None


def _unpack(kept: Union[Tensor, Tuple[Again, torch.Size]]) -> Tensor:
    """Return the tensor that `_pack` was given."""
    if isinstance(kept, Tensor):
        return kept
    again, shape = kept
    return again.use().view(shape)
