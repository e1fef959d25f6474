"""Stacks of layers with what a placement puts around them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.layers.beams import real_keys
from fairseq_lnplace.layers.spec import LayerSize, StackSpec
from fairseq_lnplace.layers.stack import PlacedStack
from fairseq_lnplace.layers.streams import Batch
from fairseq_lnplace.layers.transformer_layer import TransformerLayer
from fairseq_lnplace.nn.cache import Cache
from fairseq_lnplace.nn.masks import MemoryMasks, batch_of, check_inputs, check_padding
from fairseq_lnplace.nn.settings import Settings, finish, layer_size, on_device, stack_spec

__all__ = ["Decoder", "Encoder"]


class Stack(PlacedStack, nn.Module):
    """Layers of one size, and what stands around them.

    Admin measures its scales in the first training forwards; BranchNorm wants :func:`.count_updates`.
    """

    def __init__(self, spec: StackSpec, size: LayerSize, settings: Settings) -> None:
        nn.Module.__init__(self)
        with on_device(settings):
            self.layers = nn.ModuleList([TransformerLayer(layer, size) for layer in spec.layers()])
            self.install(spec, size.dim)
        finish(self, settings)


class Encoder(Stack):
    """A stack of encoder layers.

    Args:
        d_model, nhead: the number of features C and of heads.
        num_layers: the number of layers.
        decoder_layers: the depth of the decoder that reads the encoder; 0 for none.
        settings: see :class:`Settings`.

    Raises:
        LnplaceError: a setting is unknown or out of range.
    """

    def __init__(
        self, d_model: int, nhead: int, num_layers: int, *, decoder_layers: int = 0, **settings: Unpack[Settings]
    ) -> None:
        spec = stack_spec("encoder", num_layers, decoder_layers, settings=settings)
        super().__init__(spec, layer_size(d_model, nhead, settings), settings)

    def forward(
        self,
        src: Tensor,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return the stack's output, B x T x C; arguments as of :meth:`.EncoderLayer.forward`."""
        layer = self.layers[0]
        batch = batch_of(layer, src, attn_mask, key_padding_mask=key_padding_mask, is_causal=is_causal)
        return self.run(src, batch).x


class Decoder(Stack):
    """A stack of decoder layers, which are causal.

    Args:
        d_model, nhead, num_layers, settings: as of :class:`Encoder`.
        encoder_layers: the depth of the encoder that is read (``num_layers``); with 0 there is no cross-attention.
        memory_dim: the number of features of the encoder's output (``d_model``).

    Raises:
        LnplaceError: a setting is unknown or out of range.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        num_layers: int,
        *,
        encoder_layers: int | None = None,
        memory_dim: int | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        below = num_layers if encoder_layers is None else encoder_layers
        size = layer_size(d_model, nhead, settings, memory_dim=(memory_dim or d_model) if below else 0)
        super().__init__(stack_spec("decoder", below, num_layers, settings=settings), size, settings)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor | None = None,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = True,
        **memory_masks: Unpack[MemoryMasks],
    ) -> Tensor:
        """Return the stack's output, B x T x C; arguments as of :meth:`.DecoderLayer.forward`."""
        batch = batch_of(
            self.layers[0],
            tgt,
            attn_mask,
            key_padding_mask=key_padding_mask,
            is_causal=is_causal,
            memory=memory,
            memory_masks=memory_masks,
        )
        return self.run(tgt, batch).x

    def step(
        self,
        tgt: Tensor,
        cache: Cache | None = None,
        memory: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """Return the output at the newest positions alone, B x T x C, and the cache for the next step.

        Args:
            tgt: the newest positions, one or more, B x T x C.
            cache: of the last step; None at the first.
            memory: at the first step, the encoder's output, B x S x K.
            key_padding_mask: B x T, True where the newest positions are padding.
            memory_key_padding_mask: at the first step, B x S, True at padding.

        Raises:
            LnplaceError: the memory is missing, or is given where there is none to read or again; an input has another
                shape than it must have, or another number of rows than the cache.
        """
        if cache is None:
            cache = Cache(
                [{} for _ in self.layers], 0, None, memory=memory, memory_mask=real_keys(memory_key_padding_mask)
            )
        else:
            check_later_step(tgt, cache, of_memory=(memory, memory_key_padding_mask))
        check_inputs(self.layers[0], tgt, cache.memory)
        check_padding("key_padding_mask", key_padding_mask, tgt.shape[:2])
        if memory is not None:
            check_padding("memory_key_padding_mask", memory_key_padding_mask, memory.shape[:2])
        end = cache.length + tgt.size(1)
        padding = extended(cache.padding, key_padding_mask, cache.length, x=tgt)
        batch = Batch(
            padding=key_padding_mask,
            mask=step_mask(cache.length, tgt, padding),
            causal=cache.length == 0 and tgt.size(1) > 1 and padding is None,
            memory=cache.memory,
            memory_mask=cache.memory_mask,
            past=cache.length,
        )
        layers = [dict(layer) for layer in cache.layers]
        output = self.run(tgt, batch, layers).x
        for layer in layers:  # without the room behind them, so that the next step writes elsewhere
            for name in ("self.key", "self.value"):
                layer[name] = layer[name][:, :, :end]  # type: ignore[index]
        return output, Cache(layers, end, padding, memory=cache.memory, memory_mask=cache.memory_mask)


def check_later_step(x: Tensor, cache: Cache, of_memory: tuple[Tensor | None, ...]) -> None:
    """Raise LnplaceError where a memory is given to a later step, or the positions are of other rows than the cache."""
    if any(each is not None for each in of_memory):
        raise must_be("memory", "given at the first step alone, whose cache holds it", "given again")
    held = cache.layers[0]["self.key"]
    if held is not None and held.size(0) != x.size(0):
        raise must_be("input", f"of {held.size(0)} rows, as the cache", f"of {x.size(0)}")


def extended(padding: Tensor | None, newest: Tensor | None, past: int, x: Tensor) -> Tensor | None:
    """Return which of all positions so far are padding, B x (past + T); None where none is said to be."""
    if padding is None and newest is None:
        return None
    before = x.new_zeros(x.size(0), past, dtype=torch.bool) if padding is None else padding
    now = x.new_zeros(x.size(0), x.size(1), dtype=torch.bool) if newest is None else newest
    return torch.cat([before, now], 1)


def step_mask(past: int, x: Tensor, padding: Tensor | None) -> Tensor | None:
    """Return which keys the newest positions may attend to; None where it is all, or is all said by causality."""
    visible = real_keys(padding)
    length = x.size(1)
    if length == 1 or (past == 0 and padding is None):
        return visible
    causal = torch.ones(length, past + length, dtype=torch.bool, device=x.device).tril(past)
    return causal[None, None] if visible is None else causal & visible
