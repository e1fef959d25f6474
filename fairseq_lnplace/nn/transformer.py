"""The encoder-decoder: tokens in, logits out."""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import Unpack

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.layers.initialisation import scale_embeddings
from fairseq_lnplace.nn.cache import Cache
from fairseq_lnplace.nn.settings import Settings
from fairseq_lnplace.nn.tokens import TokenDecoder, TokenEncoder, embedding

__all__ = ["Transformer"]


class Transformer(nn.Module):
    """An encoder-decoder with normalisation where a placement puts it.

    Its weights are those of fairseq's ``transformer_lnplace`` of the same sizes, by the same names, and so are its
    logits, to the last bit (where fairseq asks for no attention weights, as when it translates).

    Args:
        src_vocab_size, tgt_vocab_size: the numbers of words; the target's is the source's where it is left out.
        d_model, nhead: the number of features C and of heads.
        num_encoder_layers, num_decoder_layers: the depths.
        padding_idx: the token that is padding, in both languages; None for no padding.
        share_embeddings: whether both languages have one embedding.
        tie_output: whether the target's embedding gives the logits, too.
        settings: see :class:`Settings`.

    Raises:
        LnplaceError: a setting is unknown or out of range.
    """

    def __init__(
        self,
        src_vocab_size: int,
        tgt_vocab_size: int | None = None,
        *,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        padding_idx: int | None = None,
        share_embeddings: bool = False,
        tie_output: bool = True,
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__()
        words = src_vocab_size if tgt_vocab_size is None else tgt_vocab_size
        if share_embeddings and words != src_vocab_size:
            raise must_be("tgt_vocab_size", f"{src_vocab_size} to share embeddings", words)
        source = embedding(src_vocab_size, d_model, padding_idx, settings=settings)
        target = source if share_embeddings else embedding(words, d_model, padding_idx, settings=settings)
        self.encoder = TokenEncoder(source, nhead, num_encoder_layers, decoder_layers=num_decoder_layers, **settings)
        self.decoder = TokenDecoder(
            target, nhead, num_decoder_layers, tie_output=tie_output, encoder_layers=num_encoder_layers, **settings
        )
        scale_embeddings((source, target), self.encoder.spec)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Return the logits of the word that follows each of ``tgt`` (B x T, with the start symbol), B x T x V.

        Args:
            src: the source's tokens, B x S.
            tgt: the target's so far.
        """
        return self.decoder(tgt, self.encoder(src), self.encoder.padding(src))  # type: ignore[no-any-return]

    def step(self, tgt: Tensor, cache: Cache | None = None, src: Tensor | None = None) -> tuple[Tensor, Cache]:
        """Return the logits behind the newest tokens alone, and the cache for the next step.

        Args:
            tgt: the newest tokens, one or more, B x T.
            cache: of the last step; None at the first.
            src: at the first step, the source's tokens, B x S.

        Raises:
            LnplaceError: the source is missing at the first step, or is given again.
        """
        if (src is None) != (cache is not None):
            given = "given at the first step", "missing"
            raise must_be("src", *(given if src is None else ("given at the first step alone", "given again")))
        if src is None:
            return self.decoder.step(tgt, cache)
        return self.decoder.step(tgt, cache, self.encoder(src), memory_key_padding_mask=self.encoder.padding(src))
