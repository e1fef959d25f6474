"""The floating-point operations that a model's matrix products cannot do without."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

__all__ = ["training_flops"]


def training_flops(cfg: Any, vocabulary: int, samples: Iterable[dict[str, Any]], padding: int) -> float:
    """Return the operations of forward and backward over the real positions of some batches; padding counts nothing.

    A multiplication with its addition is two, the backward pass twice the forward; attention is counted as if it
    looked ahead, as usual.

    Args:
        cfg: the model's resolved options.
        vocabulary: the number V of target types.
        samples: fairseq's translation batches.
        padding: the index of the padding symbol.
    """

    def lengths(tokens: Tensor) -> Tensor:
        return tokens.ne(padding).sum(1).double()

    d, f = cfg.encoder_embed_dim, cfg.encoder_ffn_embed_dim
    e, g = cfg.decoder_embed_dim, cfg.decoder_ffn_embed_dim
    total = 0.0
    for sample in samples:
        s, t = lengths(sample["net_input"]["src_tokens"]), lengths(sample["target"])
        encoder = s * (4 * d * d + 2 * d * f) + 2 * d * s * s
        self_and_feed_forward = t * (4 * e * e + 2 * e * g) + 2 * e * t * t
        cross = t * 2 * e * e + s * 2 * d * e + 2 * e * s * t
        products = cfg.encoder_layers * encoder + cfg.decoder_layers * (self_and_feed_forward + cross)
        total += float((products + t * e * vocabulary).sum())
    return 3 * 2 * total
