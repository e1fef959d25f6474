"""From torch's masks, True where a query may not attend, to those of the layers, True where it may."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import TypedDict

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.layers.beams import real_keys
from fairseq_lnplace.layers.streams import Batch
from fairseq_lnplace.layers.transformer_layer import TransformerLayer

__all__ = ["MemoryMasks", "batch_of", "check_inputs", "check_padding", "joined"]


class MemoryMasks(TypedDict, total=False):
    """Which keys of the memory are hidden.

    Attributes:
        memory_mask: T x S or (B * H) x T x S, True where hidden, or added to the scores.
        memory_key_padding_mask: B x S, True at padding.
    """

    memory_mask: Tensor | None
    memory_key_padding_mask: Tensor | None


def batch_of(
    layer: TransformerLayer,
    x: Tensor,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    memory: Tensor | None = None,
    memory_masks: MemoryMasks | None = None,
) -> Batch:
    """Return what layers such as ``layer`` are given, for ``x`` (B x T x C).

    Raises:
        LnplaceError: an input has another shape than it must have, or the memory is missing.
    """
    check_inputs(layer, x, memory)
    memory_masks = memory_masks or {}
    if unknown := memory_masks.keys() - MemoryMasks.__annotations__.keys():
        raise must_be(min(unknown), f"one of {', '.join(MemoryMasks.__annotations__)}", "no mask of the memory")
    heads = layer.self_attn.heads
    mask = joined(x, heads, x.size(1), attn_mask=attn_mask, key_padding_mask=key_padding_mask)
    if is_causal and mask is not None:  # else the attention itself hides what is later
        mask = both(mask, torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).tril())
    memory_mask = None
    if memory is not None:
        memory_mask = joined(x, heads, memory.size(1), **memory_masks)
    return Batch(
        padding=key_padding_mask,
        mask=mask,
        causal=is_causal and mask is None,
        memory=memory,
        memory_mask=memory_mask,
    )


def check_inputs(layer: TransformerLayer, x: Tensor, memory: Tensor | None) -> None:
    """Raise LnplaceError where the layer cannot read ``x`` and the memory."""
    attention, cross = layer.self_attn, layer.encoder_attn
    if x.dim() != 3 or x.size(2) != attention.dim:
        raise must_be("input", f"of shape (B, T, {attention.dim})", f"of {tuple(x.shape)}")
    if (memory is None) != (cross is None):
        given = ("left out of a decoder without encoder", "given") if memory is not None else ("given", "missing")
        raise must_be("memory", *given)
    if memory is not None and cross is not None:
        rows, width = x.size(0), cross.k_proj.in_features
        if memory.dim() != 3 or memory.size(0) != rows or memory.size(2) != width:
            raise must_be("memory", f"of shape ({rows}, S, {width})", f"of {tuple(memory.shape)}")


def check_padding(name: str, padding: Tensor | None, shape: torch.Size) -> None:
    """Raise LnplaceError unless a padding mask is True or False for each position, B x T, of ``shape``."""
    if padding is None:
        return
    if padding.dtype != torch.bool:
        raise must_be(name, "of torch.bool, True at padding", f"of {padding.dtype}")
    if padding.shape != shape:
        raise must_be(name, f"of shape {tuple(shape)}", f"of {tuple(padding.shape)}")


def joined(x: Tensor, heads: int, keys: int, **masks: Tensor | None) -> Tensor | None:
    """Return a mask and a padding of ``keys`` keys, by their names, as one; None where they hide nothing.

    Raises:
        LnplaceError: one has another shape or type than it must have.
    """
    rows, length = x.size(0), x.size(1)
    mask, visible = None, None
    for name, given in masks.items():
        if given is None:
            continue
        if name.endswith("key_padding_mask"):
            check_padding(name, given, torch.Size((rows, keys)))
            visible = real_keys(given)
        else:
            mask = by_row_and_head(name, given, (rows, heads, length, keys))
    if mask is None:
        return visible
    return both(mask if mask.dtype == torch.bool else mask.to(x.dtype), visible)


def by_row_and_head(name: str, mask: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """Return a mask of torch's as one that broadcasts to ``shape`` (B x H x T x S), True where a query may attend."""
    rows, heads, length, keys = shape
    if mask.shape not in ((length, keys), (rows * heads, length, keys)):
        expected = f"of shape ({length}, {keys}) or ({rows * heads}, {length}, {keys})"
        raise must_be(name, expected, f"of {tuple(mask.shape)}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise must_be(name, "of torch.bool, True where hidden, or of floats", f"of {mask.dtype}")
    mask = mask.reshape(shape) if mask.dim() == 3 else mask[None, None]
    return ~mask if mask.dtype == torch.bool else mask


def both(mask: Tensor, visible: Tensor | None) -> Tensor:
    """Return a mask (True where visible, or added to the scores) beside one that is True where visible."""
    if visible is None:
        return mask
    return mask & visible if mask.dtype == torch.bool else mask.masked_fill(~visible, float("-inf"))
