"""Which keys a query may attend to, and how the hypotheses of a beam search share them.

All masks are True where a query may attend, and broadcast to B x H x (queries) x (keys).
"""

from typing import Optional

import torch
from torch import Tensor


def real_keys(padding: Optional[Tensor]) -> Optional[Tensor]:
    """Return the mask that hides padding (B x S, True at padding); None where there is none."""
    return None if padding is None else ~padding[:, None, None]


def hidden_padding(padding: Optional[Tensor]) -> Optional[Tensor]:
    """Return the padding (B x T) that a causal mask does not hide from all real positions; None where it hides it.

    It does where padding only stands at the end.
    """
    if padding is None:
        return None
    if not torch.jit.is_scripting() and torch.compiler.is_compiling():  # which cannot look
        return padding
    return padding if bool((padding[:, :-1] & ~padding[:, 1:]).any()) else None


def decoder_mask(
    length: int, causal: bool, padding: Optional[Tensor], memory: Optional[Tensor], memory_padding: Optional[Tensor]
) -> Optional[Tensor]:
    """Return self-attention's mask over T positions of a whole sequence.

    Args:
        length: the number of positions T.
        causal: whether later positions are hidden.
        padding: B x T, True at own positions that must be hidden.
        memory: what self-attention reads before its own positions (cross+self), B x S x K.
        memory_padding: B x S, True at padding.

    Returns:
        None where all keys may be attended to, or where nothing but causality hides any.
    """
    own = real_keys(padding)
    if memory is None:
        if own is None or not causal:
            return own
        return own & torch.ones(length, length, dtype=torch.bool, device=own.device).tril()
    ones = torch.ones(length, length, dtype=torch.bool, device=memory.device)
    allowed = (ones.tril() if causal else ones)[None, None]
    if own is not None:
        allowed = allowed & own
    return torch.cat([memory_columns(memory, memory_padding, length), allowed.expand(memory.size(0), -1, -1, -1)], 3)


def memory_columns(memory: Tensor, memory_padding: Optional[Tensor], queries: int) -> Tensor:
    """Return the part of a mask that is about the memory: B x 1 x (queries) x S."""
    real = torch.ones(memory.size(0), memory.size(1), dtype=torch.bool, device=memory.device)
    if memory_padding is not None:
        real = ~memory_padding
    return real[:, None, None].expand(-1, -1, queries, -1)


def living_keys(visible: Tensor) -> Optional[Tensor]:
    """Return the keys that some hypothesis sees; the others' hypotheses were abandoned.

    Args:
        visible: B x beams x S, which keys each hypothesis sees.

    Returns:
        B x (the most that a sentence has), numbers of keys in their order; where there are fewer, dead ones follow.
        None with one beam, which sees all.
    """
    if visible.size(1) == 1:
        return None
    living = visible.any(1)
    return living.to(torch.uint8).sort(stable=True, dim=1, descending=True)[1][:, : int(living.sum(1).max())]


def beam_size(new_order: Tensor, sentences: int) -> int:
    """Return n where ``new_order`` repeats each of the sentences n times in a row, else 1."""
    beams = new_order.numel() // sentences
    if beams > 1 and beams * sentences == new_order.numel():
        repeated = torch.arange(sentences, device=new_order.device).repeat_interleave(beams)
        if torch.equal(new_order, repeated):
            return beams
    return 1


def sentences_of(new_order: Tensor, beams: int) -> Optional[Tensor]:
    """Return which sentences remain if ``new_order`` (rows of ``beams`` a sentence) moves rows within them alone.

    Returns:
        the numbers of the remaining sentences; None if a row moves to another sentence.
    """
    if new_order.numel() % beams != 0:
        return None
    sentences = torch.div(new_order.view(-1, beams), beams, rounding_mode="floor")
    if bool((sentences != sentences[:, :1]).any()):
        return None
    return sentences[:, 0]


def is_identity(order: Tensor, size: int) -> bool:
    """Return whether ``order`` keeps ``size`` things as they are."""
    return order.numel() == size and bool((order == torch.arange(size, device=order.device)).all())
