"""What a decoder keeps between the steps of incremental decoding."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fairseq_lnplace.layers.streams import Cache as LayerCache

__all__ = ["Cache"]


class Cache(NamedTuple):
    """The positions that a decoder has seen; a step returns a new one and leaves the old one as it is.

    Attributes:
        layers: keys and values of each layer; see :mod:`fairseq_lnplace.layers.cache`.
        length: the number of positions P.
        padding: B x P, True at padding; None where there was none.
        memory: what cross-attention reads, B x S x K.
        memory_mask: B x 1 x 1 x S, True where it may be read; None where it is all.
    """

    layers: list[LayerCache]
    length: int = 0
    padding: Tensor | None = None
    memory: Tensor | None = None
    memory_mask: Tensor | None = None

    def select(self, rows: Tensor) -> Cache:
        """Return the cache of these rows (numbers, any shape (N,)), as a search continues its best hypotheses."""

        def of_rows(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.index_select(0, rows)

        layers = [{name: of_rows(x) for name, x in layer.items()} for layer in self.layers]
        return Cache(
            layers,
            self.length,
            of_rows(self.padding),
            memory=of_rows(self.memory),
            memory_mask=of_rows(self.memory_mask),
        )
