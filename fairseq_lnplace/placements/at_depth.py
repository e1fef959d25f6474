"""The stacks of a model of given depth, and where their layers stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from fairseq_lnplace.placements.equation import BRANCHES
from fairseq_lnplace.placements.spec import Layer, Position, Side, Slots

__all__ = ["Depth", "slots_of"]


@dataclass(frozen=True)
class Depth:
    """The numbers N of encoder and M of decoder layers; 0 for a stack that the model has not."""

    encoder_layers: int = 6
    decoder_layers: int = 6

    @property
    def sides(self) -> tuple[Side, ...]:
        """The stacks that there are."""
        return tuple(side for side in get_args(Side) if self.layers(side))

    def layers(self, side: Side) -> int:
        """Return the depth of one stack."""
        return self.encoder_layers if side == "encoder" else self.decoder_layers

    def positions(self, side: Side) -> list[Position]:
        """Return the places of the layers of one stack."""
        layers = range(1, self.layers(side) + 1)
        return [Position(side, layer, self.encoder_layers, self.decoder_layers) for layer in layers]

    def branches(self, side: Side) -> list[str]:
        """Return the sub-layers of a layer, in order."""
        cross = side == "decoder" and self.encoder_layers > 0
        return [branch for branch in BRANCHES if cross or branch != "CA"]


def slots_of(layer: Layer, branches: list[str]) -> Iterator[tuple[str, Slots]]:
    """Yield the sub-layers of a layer with their slots."""
    return ((name, slots) for name, slots in zip(BRANCHES, layer.slots, strict=True) if name in branches)
