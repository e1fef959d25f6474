"""The decoder-only model: tokens in, logits out."""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import Unpack

from fairseq_lnplace.layers.initialisation import scale_embeddings
from fairseq_lnplace.nn.cache import Cache
from fairseq_lnplace.nn.settings import Settings
from fairseq_lnplace.nn.tokens import TokenDecoder, embedding

__all__ = ["LanguageModel"]


class LanguageModel(nn.Module):
    """A decoder-only Transformer with normalisation where a placement puts it.

    Its weights and logits are those of fairseq's ``transformer_lm_lnplace``, as :class:`.Transformer` says.

    Args:
        vocab_size: the number of words V.
        d_model, nhead: the number of features C and of heads.
        num_layers: the depth.
        padding_idx: the token that is padding; None for no padding.
        tie_output: whether the embedding gives the logits, too.
        settings: see :class:`Settings`.

    Raises:
        LnplaceError: a setting is unknown or out of range.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        d_model: int = 512,
        nhead: int = 8,
        num_layers: int = 6,
        padding_idx: int | None = None,
        tie_output: bool = True,
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__()
        embed_tokens = embedding(vocab_size, d_model, padding_idx, settings=settings)
        self.decoder = TokenDecoder(
            embed_tokens, nhead, num_layers, tie_output=tie_output, encoder_layers=0, **settings
        )
        scale_embeddings((embed_tokens,), self.decoder.spec)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the word that follows each of ``tokens`` (B x T), B x T x V."""
        return self.decoder(tokens)  # type: ignore[no-any-return]

    def step(self, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """Return the logits behind the newest tokens alone (B x T, one or more), and the cache for the next step."""
        return self.decoder.step(tokens, cache)
