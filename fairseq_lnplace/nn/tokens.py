"""Stacks that read tokens: an embedding and positions before the layers, and logits behind a decoder."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.layers.beams import hidden_padding
from fairseq_lnplace.layers.dropout import Dropout
from fairseq_lnplace.layers.linear import Linear
from fairseq_lnplace.nn.cache import Cache
from fairseq_lnplace.nn.masks import batch_of
from fairseq_lnplace.nn.positions import SinusoidalPositions, counted
from fairseq_lnplace.nn.settings import Settings, on_device
from fairseq_lnplace.nn.stacks import Decoder, Encoder

__all__ = ["TokenDecoder", "TokenEncoder", "embedding"]


def embedding(vocab_size: int, d_model: int, padding_idx: int | None, settings: Settings) -> nn.Embedding:
    """Return an embedding of N(0, 1/C), as fairseq's.

    Raises:
        LnplaceError: there are no words or features, or the padding is none of the words.
    """
    if d_model < 1:
        raise must_be("d_model", "at least 1", d_model)
    if vocab_size < 1:
        raise must_be("vocab_size", "at least 1", vocab_size)
    if padding_idx is not None and not 0 <= padding_idx < vocab_size:
        raise must_be("padding_idx", f"from 0 to {vocab_size - 1}", padding_idx)
    with on_device(settings):
        made = nn.Embedding(vocab_size, d_model, padding_idx, dtype=settings.get("dtype"))
    nn.init.normal_(made.weight, std=d_model**-0.5)
    if padding_idx is not None:
        nn.init.zeros_(made.weight[padding_idx].detach())
    return made


class _Tokens:
    """What encoder and decoder do with tokens before their layers."""

    embed_tokens: nn.Embedding
    embed_positions: SinusoidalPositions
    dropout_module: Dropout

    def read_tokens(self, embed_tokens: nn.Embedding, settings: Settings) -> None:
        """Make what stands before the layers, around an embedding that may be shared."""
        self.embed_tokens = embed_tokens
        with on_device(settings):
            positions = SinusoidalPositions(embed_tokens.embedding_dim, embed_tokens.padding_idx or 0)
            self.embed_positions = positions.to(dtype=settings.get("dtype"))
        self.dropout_module = Dropout(settings.get("dropout", 0.1))

    def embed(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the tokens (B x T), embedded and scaled by √C, and their positions, B x T x C.

        Raises:
            LnplaceError: the tokens have another shape.
        """
        if tokens.dim() != 2:
            raise must_be("tokens", "of shape (B, T)", f"of {tuple(tokens.shape)}")
        past = 0 if cache is None else cache.length
        before: Tensor | int = past
        if cache is not None and cache.padding is not None:
            before = past - cache.padding.sum(1, keepdim=True)
        count = counted(tokens, self.padding_idx, before)
        x = math.sqrt(self.embed_tokens.embedding_dim) * self.embed_tokens(tokens)
        return cast(Tensor, self.dropout_module(x + self.embed_positions(count, past + tokens.size(1))))

    def padding(self, tokens: Tensor) -> Tensor | None:
        """Return where padding is, B x T; None where there is none."""
        if self.padding_idx is None:
            return None
        padding = tokens.eq(self.padding_idx)
        return padding if torch.compiler.is_compiling() or bool(padding.any()) else None

    @property
    def padding_idx(self) -> int | None:
        """The token that is padding."""
        return self.embed_tokens.padding_idx


class TokenEncoder(_Tokens, Encoder):
    """An encoder of tokens.

    Args:
        embed_tokens: the embedding.
        others: as of :class:`Encoder`.
    """

    def __init__(self, embed_tokens: nn.Embedding, nhead: int, num_layers: int, **others: Any) -> None:
        super().__init__(embed_tokens.embedding_dim, nhead, num_layers, **others)
        others.pop("decoder_layers", None)
        self.read_tokens(embed_tokens, cast(Settings, others))

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        """Return the encoded tokens (B x T), B x T x C."""
        x, padding = self.embed(tokens), self.padding(tokens)
        if padding is not None:
            x = x.masked_fill(padding.unsqueeze(-1), 0.0)
        return super().forward(x, key_padding_mask=padding)


class TokenDecoder(_Tokens, Decoder):
    """A decoder of tokens, with logits at its end.

    Args:
        embed_tokens: the embedding.
        tie_output: whether it gives the logits, too.
        others: as of :class:`Decoder`.
    """

    def __init__(
        self, embed_tokens: nn.Embedding, nhead: int, num_layers: int, tie_output: bool, **others: Any
    ) -> None:
        super().__init__(embed_tokens.embedding_dim, nhead, num_layers, **others)
        others.pop("encoder_layers", None)
        settings = cast(Settings, others)
        self.read_tokens(embed_tokens, settings)
        words, dim = embed_tokens.weight.shape
        with on_device(settings):
            self.output_projection = Linear(dim, words, bias=False, dtype=settings.get("dtype"))
        if tie_output:
            self.output_projection.weight = embed_tokens.weight
        else:
            nn.init.normal_(self.output_projection.weight, std=dim**-0.5)

    def forward(  # type: ignore[override]
        self, tokens: Tensor, memory: Tensor | None = None, memory_key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Return the logits of the tokens that follow each of ``tokens`` (B x T), B x T x V."""
        x, padding = self.embed(tokens), self.padding(tokens)
        batch = batch_of(
            self.layers[0],
            x,
            key_padding_mask=hidden_padding(padding),
            is_causal=True,
            memory=memory,
            memory_masks={"memory_key_padding_mask": memory_key_padding_mask},
        )
        # no statistics of padding, even where causality hides it
        return cast(Tensor, self.output_projection(self.run(x, batch._replace(padding=padding)).x))

    def step(  # type: ignore[override]
        self,
        tokens: Tensor,
        cache: Cache | None = None,
        memory: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """Return the logits behind the newest tokens (B x T), B x T x V, and the cache for the next step."""
        x = self.embed(tokens, cache)
        output, cache = super().step(
            x,
            cache,
            memory,
            key_padding_mask=self.padding(tokens),
            memory_key_padding_mask=memory_key_padding_mask,
        )
        return self.output_projection(output), cache
