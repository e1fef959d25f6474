"""The encoder: fairseq's, with the layers, norms and streams of a placement.

fairseq's interface outside of the stack is T x B x C; inside, tensors are B x T x C.
"""

from contextlib import ExitStack
from typing import Any, Dict, List, Optional

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerEncoderBase
from torch import Tensor, nn

from fairseq_lnplace.layers.beams import beam_size, is_identity, real_keys, sentences_of
from fairseq_lnplace.layers.spec import StackSpec
from fairseq_lnplace.layers.streams import Batch
from fairseq_lnplace.plugin.stack import FairseqStack


class TransformerEncoder(FairseqStack, TransformerEncoderBase):  # type: ignore[misc]
    """fairseq's encoder with the layers of a placement; see :class:`StackSpec`."""

    def __init__(self, cfg: Any, dictionary: Dictionary, embed_tokens: nn.Embedding, spec: StackSpec) -> None:
        self.prepare(spec)
        super().__init__(cfg, dictionary, embed_tokens)
        self.shares_rows = not cfg.cross_self_attention
        self.install(spec, embed_tokens.embedding_dim)

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        """Return the next layer from the bottom."""
        return self.next_layer(cfg, memory_dim=0)

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
    ) -> Dict[str, List[Tensor]]:
        """Encode; arguments and result as of fairseq's ``TransformerEncoderBase.forward``."""
        encoder_padding_mask = src_tokens.eq(self.padding_idx)
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        padding: Optional[Tensor] = None
        if bool(encoder_padding_mask.any()):
            padding = encoder_padding_mask
            x = x.masked_fill(encoder_padding_mask.unsqueeze(-1), 0.0)

        states: List[Tensor] = []
        fc_results: List[Tensor] = []
        batch = Batch(padding=padding, mask=real_keys(padding))
        with_fc = self.return_fc and return_all_hiddens
        if torch.jit.is_scripting() or not with_fc:
            x = self.run(x, batch, None, states=states if return_all_hiddens else None).x
        else:
            x = self.run_with_fc(x, batch, states, fc_results=fc_results)

        lengths = src_tokens.ne(self.padding_idx).sum(dim=1, dtype=torch.int32).reshape(-1, 1).contiguous()
        empty: List[Tensor] = []
        return {
            "encoder_out": [x.transpose(0, 1)],  # T x B x C
            "encoder_padding_mask": [encoder_padding_mask],  # B x T
            "encoder_embedding": [embedding],  # B x T x C
            "encoder_states": [state.transpose(0, 1) for state in states],  # of T x B x C each
            "fc_results": fc_results,  # of T x B x C each
            "src_tokens": empty,
            "src_lengths": [lengths],
        }

    @torch.jit.unused
    def run_with_fc(self, x: Tensor, batch: Batch, states: List[Tensor], fc_results: List[Tensor]) -> Tensor:
        """Return the stack's output, B x T x C; ``fc_results`` gets what each feed-forward gives, T x B x C."""

        def keep(module: nn.Module, args: Any, output: Tensor) -> None:
            fc_results.append(output.transpose(0, 1))

        with ExitStack() as hooks:
            for layer in self.layers:
                hooks.callback(layer.fc2.register_forward_hook(keep).remove)
            return self.run(x, batch, None, states=states).x

    @torch.jit.export
    def reorder_encoder_out(self, encoder_out: Dict[str, List[Tensor]], new_order: Tensor) -> Dict[str, List[Tensor]]:
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
        empty: List[Tensor] = []
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
