"""What passes through a model's layers in one forward, read by hooks that are gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.layers.residual import Residual
from fairseq_lnplace.layers.streams import Streams
from fairseq_lnplace.layers.transformer_layer import TransformerLayer
from fairseq_lnplace.measure.handed_on import read, returned
from fairseq_lnplace.measure.subject import Measurable
from fairseq_lnplace.measure.surgery import evaluated
from fairseq_lnplace.measure.taps import tapped

__all__ = ["Passage", "Trace", "at_real", "trace"]

BRANCHES = {"self_attn_layer_norm": "SA", "encoder_attn_layer_norm": "CA", "final_layer_norm": "FF"}
WHOLE = "layer"

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@dataclass(frozen=True)
class Passage:
    """What passed one residual connection, at the N real positions of a batch; tensors are N x C.

    A layer that is not ours counts as one sub-layer: ``skip`` is what it reads, ``added`` what it adds to that.

    Attributes:
        side: the stack's name: encoder or decoder, of other models as the user calls it.
        layer: from 1, among those that there are.
        branch: SA, CA or FF; "layer" of a layer that is not ours.
        skip: the stream as it is added: scaled, and with the layer's input where the method adds that too.
        added: the branch as it is added: normalised and scaled.
        after: the stream that leaves.
    """

    side: str
    layer: int
    branch: str
    skip: Tensor
    added: Tensor
    after: Tensor

    @property
    def summed(self) -> Tensor:
        """The sum, before a norm on it; Post-LN's x^{post,5} after the feed-forward."""
        return self.skip + self.added


@dataclass
class Trace:
    """What passed through a model.

    Attributes:
        states: by stack, the stream x_0 ... x_L: what each layer reads, and what the last one gives; N x C each.
        passages: every residual connection in order of execution.
        loss: of the batch, nats a token; None where none is known.
    """

    states: dict[str, list[Tensor]] = field(default_factory=dict)
    passages: list[Passage] = field(default_factory=list)
    loss: float | None = None

    def layer(self, side: str, index: int) -> list[Passage]:
        """Return the passages of a stack's layer, counted from 0."""
        return [passage for passage in self.passages if (passage.side, passage.layer) == (side, index + 1)]


@dataclass(frozen=True)
class _Watch:
    """Where in a trace one layer's numbers go, and at which positions they are read."""

    found: Trace
    side: str
    layer: int
    real: Tensor | None

    def passed(self, branch: str, skip: Tensor, summed: Tensor, after: Tensor) -> None:
        """Note what passed a residual connection, B x T x C each."""
        skip, added, after = (at_real(x, self.real) for x in (skip, summed - skip, after))
        self.found.passages.append(Passage(self.side, self.layer, branch, skip=skip, added=added, after=after))


def at_real(x: Tensor, real: Tensor | None) -> Tensor:
    """Return a stream (B x T x C) at real positions (B x T; None for all), N x C.

    Raises:
        LnplaceError: the positions are of another shape.
    """
    if real is None:
        return x.flatten(0, -2).clone()
    if real.shape != x.shape[:-1]:
        raise must_be("padding", f"of the streams' shape, {tuple(x.shape[:-1])}", tuple(real.shape))
    return x[real]


def trace(subject: Measurable, batch: Any) -> Trace:
    """Run one batch without dropout and return what passed through the layers.

    Raises:
        LnplaceError: a layer hands on no tensor, or does not run once.
    """
    found = Trace()
    with ExitStack() as hooks:
        hooks.enter_context(evaluated(subject.model))
        for side, layers in subject.stacks.items():
            real = subject.real(batch, side)
            states = found.states[side] = []
            for number, layer in enumerate(layers, 1):
                hooks.enter_context(_streams(layer, states, real, last=number == len(layers)))
                watch = _Watch(found, side, number, real=real)
                if isinstance(layer, TransformerLayer):
                    for name in layer.norm_names():
                        hooks.enter_context(_connection(getattr(layer, name), BRANCHES[name], watch))
                else:
                    hooks.enter_context(_whole(layer, watch))
        loss = subject.loss(batch)
        if loss is None:
            subject.run(batch)
        else:
            found.loss = float(loss)
    for side, layers in subject.stacks.items():
        if len(found.states[side]) != len(layers) + 1:
            raise LnplaceError(f"`layers` must be run once each in a forward; those of {side} are not")
    return found


@contextmanager
def _streams(layer: nn.Module, states: list[Tensor], real: Tensor | None, last: bool) -> Iterator[None]:
    """Append what the layer reads to the states, and after the last layer what it gives."""

    def hook(module: nn.Module, args: Args, kwargs: Kwargs, result: Any) -> None:
        states.append(at_real(read(args, kwargs).x, real))
        if last:
            states.append(at_real(returned(result).x, real))

    with layer.register_forward_hook(hook, with_kwargs=True):
        yield


@contextmanager
def _whole(layer: nn.Module, watch: _Watch) -> Iterator[None]:
    """Note what passes a layer of which no more is known."""

    def hook(module: nn.Module, args: Args, kwargs: Kwargs, result: Any) -> None:
        after = returned(result).x
        watch.passed(WHOLE, read(args, kwargs).x, after, after)

    with layer.register_forward_hook(hook, with_kwargs=True, prepend=True):  # before surgery's change the result
        yield


@contextmanager
def _connection(residual: Residual, branch: str, watch: _Watch) -> Iterator[None]:
    """Note what passes one of our residual connections."""
    parts: dict[str, Tensor] = {}

    def skipped(args: Args, kwargs: Kwargs, result: Tensor) -> None:
        parts["skip"] = result

    def normed(args: Args, kwargs: Kwargs, result: Tensor) -> None:
        parts["normed"] = args[0]

    def left(args: Args, kwargs: Kwargs, result: Streams) -> None:
        summed = parts["normed"] if residual.add_norm or residual.second_add_norm is not None else result.x
        if residual.gate:
            summed = summed / (1 - nn.functional.silu(kwargs["scale"]))
        skip = parts["skip"] + kwargs["layer_input"] if residual.layer_skip else parts["skip"]
        watch.passed(branch, skip, summed, result.x)

    with ExitStack() as hooks:
        hooks.enter_context(tapped(residual, "skip", skipped))
        norm = residual if residual.second_add_norm is None else residual.second_add_norm
        hooks.enter_context(tapped(norm, "normalize", normed))
        hooks.enter_context(tapped(residual, "leave", left))
        yield
