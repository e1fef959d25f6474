"""What the measurements ask of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

__all__ = ["Measurable", "Row"]

Row = dict[str, Any]


class Measurable(Protocol):
    """A model with what is to be known about it: the batches it reads, its loss and its layers."""

    @property
    def model(self) -> nn.Module:
        """The model."""

    @property
    def stacks(self) -> Mapping[str, Sequence[nn.Module]]:
        """The layers of each stack from the bottom, by the stack's name, in the order of execution."""

    @property
    def seed(self) -> int:
        """What random changes of the model are drawn with."""

    def run(self, batch: Any) -> Any:
        """Return what the model makes of a batch."""

    def loss(self, batch: Any) -> Tensor | None:
        """Return the loss of a batch in nats a token, shape (); None, without a forward, where none is known."""

    def real(self, batch: Any, stack: str) -> Tensor | None:
        """Return which positions of what a stack reads are no padding, B x T; None if all are."""

    def output(self, batch: Any) -> Tensor:
        """Return the last stack's output at the N real positions, N x C."""
