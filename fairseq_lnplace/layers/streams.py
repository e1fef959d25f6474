"""What goes through the layers: what each of them changes, and what is the same for all of them."""

from typing import Dict, NamedTuple, Optional

from torch import Tensor

from fairseq_lnplace.layers.packing import Packing

Cache = Dict[str, Optional[Tensor]]
"""The keys and values of one layer's attentions in incremental decoding; see :mod:`.cache`."""


class Streams(NamedTuple):
    """What a layer reads, and what it hands on.

    Attributes:
        x: the stream, B x T x C; packed 1 x N x C.
        second: the second stream of a method that has one, as ``x``.
        self_scores: the self-attention scores summed over the layers below, B x H x T x T, where they are handed on.
        cross_scores: the cross-attention scores likewise, B x H x T x S.
        weights: the cross-attention weights of the layer whose weights are asked for, B x H x T x S.
        below: the number of layers below.
    """

    x: Tensor
    second: Optional[Tensor] = None
    self_scores: Optional[Tensor] = None
    cross_scores: Optional[Tensor] = None
    weights: Optional[Tensor] = None
    below: int = 0


def moved(streams: Streams, x: Tensor, second: Optional[Tensor]) -> Streams:
    """Return the streams with another stream and second stream; TorchScript knows no ``_replace``."""
    return Streams(
        x,
        second,
        streams.self_scores,
        cross_scores=streams.cross_scores,
        weights=streams.weights,
        below=streams.below,
    )


class Batch(NamedTuple):
    """What all layers of a stack are given alike in one forward.

    Masks are True where a query may attend to a key, or numbers that are added to the scores, and broadcast to
    B x H x T x (keys).

    Attributes:
        padding: B x T, True at padding, for the norms' statistics; None where there is none.
        packing: where the positions of ``x`` stand, if it is packed.
        mask: of self-attention; None where all keys may be attended to or ``causal`` says which.
        causal: whether self-attention hides later positions.
        memory: what cross-attention reads, B x S x K.
        memory_mask: of cross-attention; None where all keys may be attended to.
        past: the number of positions in the self-attention's cache.
        beams: the number of rows of ``x`` that share a sentence's cache, next to each other.
        weights_of: the layer, by how many are below it, whose cross-attention weights are asked for; -1 for none.
    """

    padding: Optional[Tensor] = None
    packing: Optional[Packing] = None
    mask: Optional[Tensor] = None
    causal: bool = False
    memory: Optional[Tensor] = None
    memory_mask: Optional[Tensor] = None
    past: int = 0
    beams: int = 1
    weights_of: int = -1
