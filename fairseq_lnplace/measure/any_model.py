"""A user's own model as the measurements ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.layers.stack import PlacedStack
from fairseq_lnplace.layers.streams import Streams
from fairseq_lnplace.measure.taps import tapped
from fairseq_lnplace.measure.trace import at_real

__all__ = ["AnyModel", "Loss", "Padding"]

Loss = Callable[[nn.Module, Any], Tensor]
Padding = Tensor | Callable[[Any, str], Tensor | None]


@dataclass(frozen=True)
class AnyModel:
    """A model, and what it cannot tell itself.

    Attributes:
        model: reads a batch that is a tensor, a tuple (its arguments) or a dictionary (its arguments by name).
        stacks: its layers, from the bottom, by the stack's name.
        criterion: returns the loss of the model on a batch, shape (), if any.
        padding: True at padding, of the shape of the streams without their features; for all batches, or a function
            of the batch and the stack's name.
        seed: what noise on the weights is drawn with.
    """

    model: nn.Module
    stacks: Mapping[str, Sequence[nn.Module]]
    criterion: Loss | None = None
    padding: Padding | None = None
    seed: int = 1

    def run(self, batch: Any) -> Any:
        """Return what the model makes of a batch."""
        if isinstance(batch, Mapping):
            return self.model(**batch)
        return self.model(*batch) if isinstance(batch, tuple) else self.model(batch)

    def loss(self, batch: Any) -> Tensor | None:
        """Return the loss of a batch, shape ()."""
        return None if self.criterion is None else self.criterion(self.model, batch)

    def real(self, batch: Any, stack: str) -> Tensor | None:
        """Return which positions of what a stack reads are no padding."""
        padding = self.padding(batch, stack) if callable(self.padding) else self.padding
        return None if padding is None else ~padding.bool()

    def output(self, batch: Any) -> Tensor:
        """Return the last stack's output, after its final norm, N x C; of one that is not ours, the model's.

        That is the first tensor with three axes or more that the model returns; if it has other positions than the
        stack, as a classifier's, none of them is left out.
        """
        last = list(self.stacks)[-1]
        real, layer = self.real(batch, last), self.stacks[last][-1]
        own = (each for each in self.model.modules() if isinstance(each, PlacedStack) and layer in list(each.layers))
        if (stack := next(own, None)) is None:
            x = features(self.run(batch))
            return at_real(x, None if real is None or real.shape != x.shape[:-1] else real)
        ends: list[Streams] = []
        with tapped(stack, "end", lambda args, kwargs, result: ends.append(result)):
            self.run(batch)
        return at_real(ends[0].x, real)


def features(result: Any) -> Tensor:
    """Return the tensor with features in what a model returns.

    Raises:
        LnplaceError: there is none.
    """
    if isinstance(result, Tensor):
        return result
    parts = result.values() if isinstance(result, Mapping) else result if isinstance(result, tuple | list) else ()
    for part in parts:
        if isinstance(part, Tensor) and part.dim() > 2:
            return part
    raise must_be("model", "one that returns a tensor B x T x C, alone or among others", type(result).__name__)
