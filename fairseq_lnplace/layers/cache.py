"""The cache of one decoder layer in incremental decoding: the keys and values of the positions so far.

It is a dictionary with "self.key", "self.value" (B x H x room x D, of which the first entries are in use) and, after
the first step, "cross.key", "cross.value" (B x H x S x D). The rows that the hypotheses of a search stand in can share
the cache of their sentence: each hypothesis is one more query, and masks say which keys it sees.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from fairseq_lnplace.layers.streams import Cache

KeysAndValues = Tuple[Tensor, Tensor]


def stored(cache: Cache, name: str) -> Optional[KeysAndValues]:
    """Return the keys and values of the attention called "self" or "cross"; None where there are none yet."""
    if name + ".key" not in cache:
        return None
    k, v = cache[name + ".key"], cache[name + ".value"]
    assert k is not None
    assert v is not None
    return k, v


def store(cache: Cache, name: str, k: Tensor, v: Tensor) -> None:
    """Put keys and values into the cache."""
    cache[name + ".key"], cache[name + ".value"] = k, v


def extend(cache: Cache, name: str, new: KeysAndValues, past: int) -> KeysAndValues:
    """Put new keys and values (each B x H x n x D) behind ``past`` stored ones, and return all."""
    before = stored(cache, name)
    k = appended(None if before is None else before[0], new[0], past)
    v = appended(None if before is None else before[1], new[1], past)
    store(cache, name, k, v=v)
    end = past + new[0].size(2)
    return k[:, :, :end], v[:, :, :end]


def appended(buffer: Optional[Tensor], new: Tensor, past: int) -> Tensor:
    """Return a B x H x (room) x D buffer with ``new`` (B x H x n x D) behind its first ``past`` entries.

    It grows by doubling and is written in place.
    """
    end = past + new.size(2)
    if buffer is None or buffer.size(2) < end:
        room = new.new_empty(new.size(0), new.size(1), max(2 * end, end + 16 * new.size(2)), new.size(3))
        if buffer is not None:
            room[:, :, :past] = buffer[:, :, :past]
        buffer = room
    buffer[:, :, past:end] = new
    return buffer


def select(cache: Cache, sentences: Tensor, keys: Optional[Tensor]) -> None:
    """Keep the cache of these sentences, in this order, and of their past these ``keys`` (B x S, by number) or all."""
    own = stored(cache, "self")
    if own is not None:
        if keys is None:
            select_rows(cache, "self", sentences)
        else:
            store(cache, "self", picked(own[0], sentences, keys), v=picked(own[1], sentences, keys))
    select_rows(cache, "cross", sentences)


def select_rows(cache: Cache, name: str, sentences: Tensor) -> None:
    """Keep the keys and values of these sentences, in this order."""
    found = stored(cache, name)
    if found is not None:
        k = found[0].transpose(2, 3).index_select(0, sentences).transpose(2, 3)  # as it lies in memory
        store(cache, name, k, v=found[1].index_select(0, sentences))


def picked(x: Tensor, sentences: Tensor, keys: Tensor) -> Tensor:
    """Return the entries ``keys`` (B x S, by number) of these ``sentences`` of ``x`` (B x H x room x D)."""
    heads = torch.arange(x.size(1), device=x.device)
    rows = (sentences.unsqueeze(1) * x.size(1) + heads).unsqueeze(2) * x.size(2) + keys.unsqueeze(1)
    return x.flatten(0, 2).index_select(0, rows.flatten()).view(rows.size(0), x.size(1), rows.size(2), x.size(3))


def ungroup(cache: Cache, keys: Tensor) -> None:
    """Give every hypothesis a cache of its own, of the ``keys`` (B x beams x S, numbers of keys) that it sees."""
    own, memory = stored(cache, "self"), stored(cache, "cross")
    if own is not None:
        store(cache, "self", each_its_own(own[0], keys), v=each_its_own(own[1], keys))
    if memory is not None:
        beams = keys.size(1)
        store(cache, "cross", memory[0].repeat_interleave(beams, 0), v=memory[1].repeat_interleave(beams, 0))


def each_its_own(x: Tensor, keys: Tensor) -> Tensor:
    """Return the entries ``keys`` (B x beams x S) of ``x`` (B x H x room x D), (B * beams) x H x S x D."""
    index = keys[:, None, :, :, None].expand(-1, x.size(1), -1, -1, x.size(3))
    return x.unsqueeze(2).expand(-1, -1, keys.size(1), -1, -1).gather(3, index).transpose(1, 2).flatten(0, 1)
