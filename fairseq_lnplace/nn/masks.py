"""From torch's masks, True where a query may not attend, to those of the layers, True where it may."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import TypedDict

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.layers.beams import real_keys
from fairseq_lnplace.layers.streams import Batch

__all__ = ["MemoryMasks", "batch_of", "joined"]


class MemoryMasks(TypedDict, total=False):
    """Which keys of the memory are hidden.

    Attributes:
        memory_mask: T x S or (B * H) x T x S, True where hidden, or added to the scores.
        memory_key_padding_mask: B x S, True at padding.
    """

    memory_mask: Tensor | None
    memory_key_padding_mask: Tensor | None


def batch_of(
    x: Tensor,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    memory: Tensor | None = None,
    memory_masks: MemoryMasks | None = None,
) -> Batch:
    """Return what the layers are given, for ``x`` (B x T x C).

    Raises:
        LnplaceError: a mask has another shape than it must have.
    """
    mask = joined(x, attn_mask, key_padding_mask, x.size(1))
    if is_causal and mask is not None:  # else the attention itself hides what is later
        mask = both(mask, torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).tril())
    memory_masks = memory_masks or {}
    memory_mask = None
    if memory is not None:
        hidden = memory_masks.get("memory_mask"), memory_masks.get("memory_key_padding_mask")
        memory_mask = joined(x, *hidden, memory.size(1), "memory_")
    return Batch(
        padding=key_padding_mask,
        mask=mask,
        causal=is_causal and mask is None,
        memory=memory,
        memory_mask=memory_mask,
    )


def joined(
    x: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None, keys: int, name: str = ""
) -> Tensor | None:
    """Return a mask and a padding of ``keys`` keys as one; None where they hide nothing.

    Raises:
        LnplaceError: one has another shape than it must have.
    """
    rows, length = x.size(0), x.size(1)
    if key_padding_mask is not None and key_padding_mask.shape != (rows, keys):
        raise must_be(f"{name}key_padding_mask", f"of shape ({rows}, {keys})", f"of {tuple(key_padding_mask.shape)}")
    if attn_mask is None:
        return real_keys(key_padding_mask)
    by_head = attn_mask.dim() == 3 and attn_mask.size(0) % rows == 0
    if attn_mask.shape[-2:] != (length, keys) or not (attn_mask.dim() == 2 or by_head):
        expected = f"of shape ({length}, {keys}) or ({rows} * nhead, {length}, {keys})"
        raise must_be(f"{name}mask" if name else "attn_mask", expected, f"of {tuple(attn_mask.shape)}")
    mask = attn_mask.view(rows, -1, length, keys) if by_head else attn_mask[None, None]
    mask = ~mask if mask.dtype == torch.bool else mask.to(x.dtype)
    return both(mask, real_keys(key_padding_mask))


def both(mask: Tensor, visible: Tensor | None) -> Tensor:
    """Return a mask (True where visible, or added to the scores) beside one that is True where visible."""
    if visible is None:
        return mask
    return mask & visible if mask.dtype == torch.bool else mask.masked_fill(~visible, float("-inf"))
