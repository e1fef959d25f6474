"""The encoder: fairseq's, with the layers, norms and streams of a placement.

fairseq's interface outside of the stack is T x B x C; inside, tensors are B x T x C.
"""

from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerEncoderBase
from torch import Tensor, nn

from fairseq_lnplace.layers.beams import beam_size, is_identity, real_keys, sentences_of
from fairseq_lnplace.layers.stack import PlacedStack, StackSpec, wrapped
from fairseq_lnplace.layers.transformer_layer import TransformerEncoderLayer


class TransformerEncoder(PlacedStack, TransformerEncoderBase):  # type: ignore[misc]
    """fairseq's encoder with the layers of a placement; see :class:`StackSpec`."""

    def __init__(self, cfg: Any, dictionary: Dictionary, embed_tokens: nn.Embedding, spec: StackSpec) -> None:
        self.spec = spec
        super().__init__(cfg, dictionary, embed_tokens)
        self.shares_rows = not cfg.cross_self_attention
        self.install(spec, embed_tokens.embedding_dim)

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        """Return the next layer from the bottom."""
        return wrapped(TransformerEncoderLayer(self.spec.next_layer(cfg)), cfg)

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict[str, list[Tensor]]:
        """Encode; arguments and result as of fairseq's ``TransformerEncoderBase.forward``."""
        encoder_padding_mask = src_tokens.eq(self.padding_idx)
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        padding: Tensor | None = None
        if bool(encoder_padding_mask.any()):
            padding = encoder_padding_mask
            x = x.masked_fill(encoder_padding_mask.unsqueeze(-1), 0.0)

        x, states = self.run_layers(x, padding, return_all_hiddens)

        lengths = src_tokens.ne(self.padding_idx).sum(dim=1, dtype=torch.int32).reshape(-1, 1).contiguous()
        empty: list[Tensor] = []
        return {
            "encoder_out": [x.transpose(0, 1)],  # T x B x C
            "encoder_padding_mask": [encoder_padding_mask],  # B x T
            "encoder_embedding": [embedding],  # B x T x C
            "encoder_states": states,  # of T x B x C each
            "fc_results": empty,
            "src_tokens": empty,
            "src_lengths": [lengths],
        }

    def run_layers(self, x: Tensor, padding: Tensor | None, return_states: bool) -> tuple[Tensor, list[Tensor]]:
        """Return the stack's output B x T x C, and each layer's input and output, T x B x C, if asked for."""
        x, second = self.begin(x, padding)
        states: list[Tensor] = [x.transpose(0, 1)] if return_states else []
        outputs: list[Tensor] = []
        x = self.remember(outputs, x, padding)
        mask = real_keys(padding)
        scores: Tensor | None = None
        for index, layer in enumerate(self.layers):
            x, second, scores = layer(x, padding, mask, second, scores, index)
            x = self.remember(outputs, x, padding)
            if return_states:
                states.append(x.transpose(0, 1))
        return self.end(x, second, padding), states

    @torch.jit.export
    def reorder_encoder_out(self, encoder_out: dict[str, list[Tensor]], new_order: Tensor) -> dict[str, list[Tensor]]:
        """Reorder the batch, as fairseq's search asks for it.

        When the search makes ``beams`` hypotheses of each sentence, the sentences stay as they are, one row each, and
        the decoder lets their hypotheses share it; "beams" in the result says how many there are.
        """
        sentences = encoder_out["encoder_padding_mask"][0].size(0)
        beams = 1
        if "beams" in encoder_out:
            beams = int(encoder_out["beams"][0])
        if beams == 1 and self.shares_rows:
            made = beam_size(new_order, sentences)
            if made > 1:
                shared = dict(encoder_out)
                shared["beams"] = [torch.tensor(made)]
                return shared
        kept = sentences_of(new_order, beams)
        if kept is None:
            kept = torch.div(new_order, beams, rounding_mode="floor")
            beams = 1
        if is_identity(kept, sentences):
            return encoder_out
        empty: list[Tensor] = []
        return {
            "encoder_out": [x.index_select(1, kept) for x in encoder_out["encoder_out"]],
            "encoder_padding_mask": [x.index_select(0, kept) for x in encoder_out["encoder_padding_mask"]],
            "encoder_embedding": [x.index_select(0, kept) for x in encoder_out["encoder_embedding"]],
            "encoder_states": [x.index_select(1, kept) for x in encoder_out["encoder_states"]],
            "fc_results": empty,
            "src_tokens": [x.index_select(0, kept) for x in encoder_out["src_tokens"]],
            "src_lengths": [x.index_select(0, kept) for x in encoder_out["src_lengths"]],
            "beams": [torch.tensor(beams)],
        }
