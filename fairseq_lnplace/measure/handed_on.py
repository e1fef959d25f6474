"""What a layer reads and hands on: our layers :class:`Streams`, any other a tensor or a tuple that begins with one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.layers.streams import Streams

__all__ = ["called_with", "read", "replaced", "returned"]

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def read(args: Args, kwargs: Kwargs) -> Streams:
    """Return what a layer is called with: its first argument, positional or else by name."""
    return returned(args[0] if args else next(iter(kwargs.values())))


def returned(result: Any) -> Streams:
    """Return what a layer hands on; of a tensor alone, streams without the others.

    Raises:
        LnplaceError: there is no tensor.
    """
    if isinstance(result, Streams):
        return result
    x = result[0] if isinstance(result, tuple | list) and result else result
    if not isinstance(x, Tensor):
        kind = type(result).__name__
        raise must_be("layers", "modules that read and return a tensor, or a tuple that begins with one", kind)
    return Streams(x)


def replaced(result: Any, streams: Streams) -> Any:
    """Return a layer's result with other streams; what else a layer returns stays."""
    if isinstance(result, Streams):
        _, second, self_scores, cross_scores, *_ = streams
        return result._replace(x=streams.x, second=second, self_scores=self_scores, cross_scores=cross_scores)
    return streams.x if isinstance(result, Tensor) else (streams.x, *result[1:])


def called_with(streams: Streams, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Return a layer's arguments with other streams."""
    if args:
        return (replaced(args[0], streams), *args[1:]), kwargs
    name = next(iter(kwargs))
    return args, {**kwargs, name: replaced(kwargs[name], streams)}
