"""The decoder: fairseq's, with the layers, norms and streams of a placement.

fairseq's interface outside of the stack is T x B x C; inside, tensors are B x T x C.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor, nn

from fairseq_lnplace.layers.beams import (
    beam_size,
    decoder_mask,
    hidden_padding,
    is_identity,
    living_keys,
    memory_columns,
    real_keys,
    sentences_of,
)
from fairseq_lnplace.layers.cache import select, ungroup
from fairseq_lnplace.layers.linear import Linear, is_plain
from fairseq_lnplace.layers.packing import Packing, packed, packing_of, unpacked
from fairseq_lnplace.layers.spec import StackSpec
from fairseq_lnplace.layers.streams import Batch
from fairseq_lnplace.plugin.stack import FairseqStack


class TransformerDecoder(FairseqStack, TransformerDecoderBase):  # type: ignore[misc]
    """fairseq's decoder with the layers of a placement; see :class:`StackSpec`."""

    def __init__(
        self,
        cfg: Any,
        dictionary: Dictionary,
        embed_tokens: nn.Module,
        spec: StackSpec,
        no_encoder_attn: bool = False,
        output_projection: Optional[nn.Module] = None,
    ) -> None:
        self.prepare(spec)
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn, output_projection)
        self.install(spec, cfg.decoder.embed_dim)
        # Attention weights cost the fused kernel. In evaluation fairseq's users expect them unless
        # make_generation_fast_ says otherwise, in training only a task that loads alignments reads them.
        self.need_attn = True
        self.need_attn_in_training = False
        # Each layer's output would have to be put back among its padding; none of fairseq's criteria reads it.
        self.need_states_in_training = False

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> nn.Module:
        """Return the next layer from the bottom."""
        return self.next_layer(cfg, memory_dim=0 if no_encoder_attn else int(cfg.encoder.embed_dim))

    def build_output_projection(self, cfg: Any, dictionary: Dictionary, embed_tokens: nn.Module) -> None:
        """Build what turns features into logits."""
        super().build_output_projection(cfg, dictionary, embed_tokens)
        projection = dict(self.named_children()).get("output_projection")
        if projection is not None and is_plain(projection):
            self.output_projection = Linear.of(projection)

    def embed(self, tokens: Tensor, incremental: Optional[Dict[str, Dict[str, Optional[Tensor]]]]) -> Tensor:
        """Return the embedded target tokens, B x T x C; of the newest position alone in incremental decoding."""
        positions: Optional[Tensor] = None
        if self.embed_positions is not None:
            positions = self.embed_positions(tokens, incremental_state=incremental)
        if incremental is not None:
            tokens = tokens[:, -1:]
            if positions is not None:
                positions = positions[:, -1:]
        x = self.embed_scale * self.embed_tokens(tokens.contiguous())
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if positions is not None:
            x = x + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x)  # type: ignore[no-any-return]

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[Dict[str, List[Tensor]]],
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]] = None,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
    ) -> Tuple[Tensor, Dict[str, List[Optional[Tensor]]]]:
        """Decode; arguments and result as of fairseq's ``TransformerDecoderBase.extract_features``.

        In training padding is left out of the layers: there the features are 0, and "inner_states" are given where
        ``need_states_in_training`` asks for them.
        """
        need_attn = self.need_attn_in_training if self.training else self.need_attn
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1
        else:
            need_attn = True
        memory: Optional[Tensor] = None
        memory_padding: Optional[Tensor] = None
        if encoder_out is not None:
            if len(encoder_out["encoder_out"]) > 0:
                memory = encoder_out["encoder_out"][0].transpose(0, 1)
            if len(encoder_out["encoder_padding_mask"]) > 0:
                mask = encoder_out["encoder_padding_mask"][0]
                if self.cross_self_attention or bool(mask.any()):
                    memory_padding = mask

        beams, past = 1, 0
        packing: Optional[Packing] = None
        caches: Optional[List[Dict[str, Optional[Tensor]]]] = None
        if incremental_state is None:
            causal = not full_context_alignment
            padding = prev_output_tokens.eq(self.padding_idx)
            packing = packing_of(padding)
            self_mask = self.sequence_mask(
                padding, packing is not None, causal, memory=memory, memory_padding=memory_padding
            )
            if not self.training:
                packing = None
            causal = causal and self_mask is None
        else:
            causal = False
            visible = self.next_visible(incremental_state, prev_output_tokens.size(0), memory)
            self_mask, past = self.step_mask(visible, memory, memory_padding)
            beams = visible.size(1)
            caches = self.caches(incremental_state)

        x = packed(self.embed(prev_output_tokens, incremental_state), packing)
        batch = Batch(
            packing=packing,
            mask=self_mask,
            causal=causal,
            memory=memory,
            memory_mask=real_keys(memory_padding),
            past=past,
            beams=beams,
            weights_of=alignment_layer if need_attn else -1,
        )
        states: List[Tensor] = []
        streams = self.run(
            x, batch, caches, states=states if not self.training or self.need_states_in_training else None
        )

        attn = streams.weights
        if attn is not None:
            attn = attn.float().to(x)
            if alignment_heads is not None:
                attn = attn[:, :alignment_heads]
            attn = attn.mean(dim=1)  # over heads: B x T x S
        inner_states: List[Optional[Tensor]] = []
        for state in states:
            inner_states.append(unpacked(state, packing).transpose(0, 1))
        x = unpacked(streams.x, packing)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attn], "inner_states": inner_states}

    def caches(self, incremental_state: Dict[str, Dict[str, Optional[Tensor]]]) -> List[Dict[str, Optional[Tensor]]]:
        """Return each layer's cache, which is made at the first step."""
        found: List[Dict[str, Optional[Tensor]]] = []
        for index in range(self.num_layers):
            cache = self.get_incremental_state(incremental_state, "layer" + str(index))
            if cache is None:
                made: Dict[str, Optional[Tensor]] = {}
                self.set_incremental_state(incremental_state, "layer" + str(index), made)
                cache = made
            found.append(cache)
        return found

    def sequence_mask(
        self,
        padding: Tensor,
        any_padding: bool,
        causal: bool,
        memory: Optional[Tensor],
        memory_padding: Optional[Tensor],
    ) -> Optional[Tensor]:
        """Return self-attention's mask over whole sequences (``padding`` is B x T), beside what ``causal`` says."""
        hidden: Optional[Tensor] = None
        if any_padding:
            hidden = hidden_padding(padding) if causal else padding
        before = memory if self.cross_self_attention else None
        return decoder_mask(padding.size(1), causal, hidden, memory=before, memory_padding=memory_padding)

    def step_mask(
        self, visible: Tensor, memory: Optional[Tensor], memory_padding: Optional[Tensor]
    ) -> Tuple[Optional[Tensor], int]:
        """Return self-attention's mask over the keys so far, and the number of keys that the cache holds."""
        beams = visible.size(1)
        past = visible.size(2) - beams
        if memory is None or not self.cross_self_attention:
            return None if beams == 1 else visible.unsqueeze(1), past
        columns = memory_columns(memory, memory_padding, beams)
        past = past + memory.size(1) if past > 0 else 0
        return torch.cat([columns, visible.unsqueeze(1)], 3), past

    def next_visible(
        self, incremental_state: Dict[str, Dict[str, Optional[Tensor]]], rows: int, memory: Optional[Tensor]
    ) -> Tensor:
        """Return, and keep, which of its sentence's keys each hypothesis sees, the newest included: B x beams x S.

        The hypotheses of a sentence share a cache if they share the encoder's row; see :mod:`.beams`.
        """
        state = self.get_incremental_state(incremental_state, "beams")
        if state is None:
            beams = 1 if memory is None else rows // memory.size(0)
            visible = torch.zeros(rows // beams, beams, 0, dtype=torch.bool, device=self.version.device)
        else:
            known = state["visible"]
            assert known is not None
            visible = known
        newest = torch.eye(visible.size(1), dtype=torch.bool, device=visible.device)
        visible = torch.cat([visible, newest.expand(visible.size(0), -1, -1)], 2)
        self.keep_visible(incremental_state, visible)
        return visible

    def keep_visible(self, incremental_state: Dict[str, Dict[str, Optional[Tensor]]], visible: Tensor) -> None:
        """Put which keys each hypothesis sees into the cache."""
        update: Dict[str, Optional[Tensor]] = {"visible": visible}
        self.set_incremental_state(incremental_state, "beams", update)

    @torch.jit.export
    def reorder_incremental_state_scripting(
        self, incremental_state: Dict[str, Dict[str, Optional[Tensor]]], new_order: Tensor
    ) -> None:
        """Follow the search: let each row continue the hypothesis at ``new_order``.

        Within a sentence only the record of what each hypothesis sees changes; no key or value moves. Where sentences
        leave the batch, the keys of abandoned hypotheses go with them.
        """
        state = self.get_incremental_state(incremental_state, "beams")
        if state is None:
            return
        visible = state["visible"]
        assert visible is not None
        beams = visible.size(1)
        if beams == 1 and not self.cross_self_attention:
            made = beam_size(new_order, visible.size(0))
            if made > 1:  # the search makes hypotheses of each sentence, which share its keys
                self.keep_visible(incremental_state, visible.expand(-1, made, -1))
                return
        kept = sentences_of(new_order, beams)
        if kept is None:  # rows go to other sentences: from now on each has a cache of its own
            visible = self.ungroup(incremental_state, visible)
            beams, kept = 1, new_order
        moved = not is_identity(kept, visible.size(0))
        if moved:
            visible = visible.index_select(0, kept)
        own = torch.remainder(new_order, beams).view(-1, beams, 1)
        visible = visible.gather(1, own.expand(-1, -1, visible.size(2)))
        if moved:
            keys = living_keys(visible)
            with_room = None if keys is None else torch.nn.functional.pad(keys, [0, 8 * beams])
            for cache in self.caches(incremental_state):
                select(cache, kept, with_room)
            if keys is not None:
                visible = visible.gather(2, keys.unsqueeze(1).expand(-1, beams, -1))
        self.keep_visible(incremental_state, visible)

    def ungroup(self, incremental_state: Dict[str, Dict[str, Optional[Tensor]]], visible: Tensor) -> Tensor:
        """Give every hypothesis a cache of its own, and return that it sees all of it: (B * beams) x 1 x T."""
        keys = visible.nonzero()[:, 2].view(visible.size(0), visible.size(1), -1)  # each sees as many as the others
        for cache in self.caches(incremental_state):
            ungroup(cache, keys)
        return torch.ones_like(keys, dtype=torch.bool).view(-1, 1, keys.size(2))

    def make_generation_fast_(self, need_attn: bool = False, **kwargs: Any) -> None:
        """Return attention weights in evaluation only if ``need_attn``."""
        self.need_attn = need_attn

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> Dict[str, Tensor]:
        """Accept checkpoints of stock fairseq."""
        super().upgrade_state_dict_named(state_dict, name)
        if self.adaptive_softmax is not None:  # fairseq adds the shared output projection, which there is not
            state_dict.pop(f"{name}.output_projection.weight", None)
        return state_dict
