"""Single layers, for whoever has a stack of their own."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor
from typing_extensions import Unpack

from fairseq_lnplace.layers.streams import Batch, Streams
from fairseq_lnplace.layers.transformer_layer import TransformerLayer
from fairseq_lnplace.nn.masks import MemoryMasks, batch_of
from fairseq_lnplace.nn.settings import Settings, finish, layer_size, layer_spec, on_device, stack_spec

__all__ = ["DecoderLayer", "EncoderLayer"]

Stream = TypeVar("Stream", Tensor, Streams)


class EncoderLayer(TransformerLayer):
    """One layer of an encoder, as ``torch.nn.TransformerEncoderLayer``, at its place in a stack.

    It takes and gives a tensor, or :class:`Streams` where a placement hands on more: ResiDual's second stream,
    RealFormer's scores. What a placement has once a stack (a final norm, DLCL's sums, Admin's profile) is the stack's.

    Args:
        d_model, nhead: the number of features C and of heads.
        layer, layers: its number, from 1, and how many there are, for the constants that depend on depth.
        decoder_layers: the depth of the decoder that reads the encoder; 0 for none.
        settings: see :class:`Settings`.

    Raises:
        LnplaceError: a setting is unknown or out of range.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        *,
        layer: int = 1,
        layers: int = 1,
        decoder_layers: int = 0,
        **settings: Unpack[Settings],
    ) -> None:
        spec = layer_spec(stack_spec("encoder", layers, decoder_layers, settings=settings), layer)
        with on_device(settings):
            super().__init__(spec, layer_size(d_model, nhead, settings))
        finish(self, settings)

    def forward(  # type: ignore[override]
        self,
        src: Stream,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Stream:
        """Return the stream after the layer, of the kind that ``src`` is.

        Args:
            src: B x T x C.
            attn_mask: T x T or (B * H) x T x T, True where hidden, or added to the scores.
            key_padding_mask: B x T, True at padding.
            is_causal: whether later positions are hidden, beside what ``attn_mask`` hides.

        Raises:
            LnplaceError: a mask has another shape than it must have.
        """
        x = tensor(src)
        return run(self, src, batch_of(self, x, attn_mask, key_padding_mask=key_padding_mask, is_causal=is_causal))


class DecoderLayer(TransformerLayer):
    """One layer of a decoder, as ``torch.nn.TransformerDecoderLayer``, but causal unless it is told otherwise.

    Args:
        d_model, nhead, layer, layers, settings: as of :class:`EncoderLayer`.
        encoder_layers: the depth of the encoder that is read (``layers``); with 0 there is no cross-attention.
        memory_dim: the number of features of the encoder's output (``d_model``).

    Raises:
        LnplaceError: a setting is unknown or out of range.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        *,
        layer: int = 1,
        layers: int = 1,
        encoder_layers: int | None = None,
        memory_dim: int | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        below = layers if encoder_layers is None else encoder_layers
        spec = layer_spec(stack_spec("decoder", below, layers, settings=settings), layer)
        with on_device(settings):
            super().__init__(
                spec, layer_size(d_model, nhead, settings, memory_dim=(memory_dim or d_model) if below else 0)
            )
        finish(self, settings)

    def forward(  # type: ignore[override]
        self,
        tgt: Stream,
        memory: Tensor | None = None,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = True,
        **memory_masks: Unpack[MemoryMasks],
    ) -> Stream:
        """Return the stream after the layer, of the kind that ``tgt`` is.

        Args:
            tgt: B x T x C.
            memory: the encoder's output, B x S x K.
            attn_mask, key_padding_mask, is_causal: of self-attention, as of :meth:`EncoderLayer.forward`.
            memory_masks: of cross-attention; see :class:`MemoryMasks`.

        Raises:
            LnplaceError: a mask has another shape than it must have, or the memory is missing.
        """
        batch = batch_of(
            self,
            tensor(tgt),
            attn_mask,
            key_padding_mask=key_padding_mask,
            is_causal=is_causal,
            memory=memory,
            memory_masks=memory_masks,
        )
        return run(self, tgt, batch)


def tensor(x: Tensor | Streams) -> Tensor:
    """Return the stream itself."""
    return x.x if isinstance(x, Streams) else x


def run(layer: TransformerLayer, x: Stream, batch: Batch) -> Stream:
    """Return what the layer makes of ``x``."""
    if isinstance(x, Streams):
        return TransformerLayer.forward(layer, x, batch)
    return TransformerLayer.forward(layer, Streams(x), batch).x
