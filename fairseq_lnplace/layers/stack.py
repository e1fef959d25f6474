"""The encoder and decoder stacks: fairseq's, with the layers, norms and streams of a placement.

fairseq's interface outside of the stacks is T x B x C; inside, tensors are B x T x C.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from fairseq_lnplace.layers.beams import (
    ancestors_mask,
    beam_size,
    decoder_mask,
    is_identity,
    memory_columns,
    real_keys,
    sentences_of,
)
from fairseq_lnplace.layers.dropout import Dropout
from fairseq_lnplace.layers.history import History
from fairseq_lnplace.layers.norm import Norm, widened
from fairseq_lnplace.layers.profile import Profile
from fairseq_lnplace.layers.quant_noise import linear
from fairseq_lnplace.layers.transformer_layer import LayerSpec, TransformerDecoderLayer, TransformerEncoderLayer
from fairseq_lnplace.placements.spec import Options, Placement, Position, Side


class StackSpec:
    """What a stack is built from: a method, its options, and where the stack's layers stand.

    Args:
        placement: the method, its variant resolved.
        options: the method's options.
        side: encoder or decoder.
        layers: the number of each layer counted from 1 in the model as it was trained; pruning leaves gaps.
        encoder_layers, decoder_layers: the depths N and M of the model as it was trained; 0 for a missing stack.
        norm_type: the kind of the norms.
        cross: whether decoder layers attend to an encoder.
    """

    def __init__(
        self,
        placement: Placement,
        options: Options,
        side: Side,
        layers: List[int],
        encoder_layers: int,
        decoder_layers: int,
        norm_type: str,
        cross: bool = True,
    ) -> None:
        self.placement, self.options, self.norm_type = placement, options, norm_type
        self.positions = [Position(side, layer, encoder_layers, decoder_layers, cross) for layer in layers]
        slots = [s for position in self.positions for s in placement.at(position, options).slots]
        profiled = any(s.skip_scale.profiled for s in slots)
        self.profile = Profile(int(options["admin_profile_batches"])) if profiled else None
        self._next = iter(self.positions)

    def next_layer(self, cfg: Any) -> LayerSpec:
        """Return what the next layer from the bottom is built from."""
        return LayerSpec(self.placement, self.options, next(self._next), self.norm_type, cfg, self.profile)

    def second_stream_scale(self) -> float:
        """Return the scale of the second stream; 0 without one."""
        second = self.placement.second_stream
        return 0.0 if second is None else second(self.positions[0], self.options)

    def install(self, stack: nn.Module, dim: int) -> None:
        """Give a stack the modules that the method has once a stack."""
        placement = self.placement
        norm_type = self.norm_type
        stack.layer_norm = Norm(norm_type, dim, placement.final_norm_eps) if placement.final_norm else None
        stack.embedding_norm = Norm(norm_type, dim) if placement.embedding_norm else None
        stack.history = None
        if placement.history != "none":
            stack.history = History(len(self.positions), dim, norm_type, placement.history == "pre")
        stack.profile = self.profile
        stack.dropout_module = Dropout(stack.dropout_module.p, module_name=stack.dropout_module.module_name)
        stack.second_scale = self.second_stream_scale()
        if stack.quant_noise is not None:  # fairseq's own map of the embeddings, but under our noise
            noise = stack.cfg.quant_noise
            stack.quant_noise = linear(dim, dim, noise.pq, noise.pq_block_size, bias=False)


def wrapped(layer: nn.Module, cfg: Any) -> nn.Module:
    """Return the layer with activation checkpointing and FSDP as the configuration asks for."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)  # type: ignore[no-any-return]


def keep_final_norm(state_dict: Dict[str, Tensor], name: str) -> None:
    """Give a checkpoint without a version buffer the current one.

    fairseq takes its absence for a sign of age and deletes the stack's final norm without a word.
    """
    state_dict.setdefault(f"{name}.version", torch.Tensor([3]))


class TransformerEncoder(TransformerEncoderBase):  # type: ignore[misc]
    """fairseq's encoder with the layers of a placement; see :class:`StackSpec`."""

    def __init__(self, cfg: Any, dictionary: Dictionary, embed_tokens: nn.Embedding, spec: StackSpec) -> None:
        self.spec = spec
        super().__init__(cfg, dictionary, embed_tokens)
        self.shares_rows = not cfg.cross_self_attention
        spec.install(self, embed_tokens.embedding_dim)

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        """Return the next layer from the bottom."""
        return wrapped(TransformerEncoderLayer(self.spec.next_layer(cfg)), cfg)

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

        x, states = self.run_layers(x, padding, return_all_hiddens)

        lengths = src_tokens.ne(self.padding_idx).sum(dim=1, dtype=torch.int32).reshape(-1, 1).contiguous()
        empty: List[Tensor] = []
        return {
            "encoder_out": [x.transpose(0, 1)],  # T x B x C
            "encoder_padding_mask": [encoder_padding_mask],  # B x T
            "encoder_embedding": [embedding],  # B x T x C
            "encoder_states": states,  # of T x B x C each
            "fc_results": empty,
            "src_tokens": empty,
            "src_lengths": [lengths],
        }

    def run_layers(self, x: Tensor, padding: Optional[Tensor], return_states: bool) -> Tuple[Tensor, List[Tensor]]:
        """Return the stack's output B x T x C, and each layer's input and output, T x B x C, if asked for."""
        if self.embedding_norm is not None:
            x = self.embedding_norm(x, padding)
        if self.profile is not None and not torch.jit.is_scripting():
            self.profile.start()
        states: List[Tensor] = [x.transpose(0, 1)] if return_states else []
        outputs: List[Tensor] = []
        second: Optional[Tensor] = None
        if self.second_scale != 0.0:
            second = widened(x) * self.second_scale  # without norms, it outgrows half precision
        scores: Optional[Tensor] = None
        if self.history is not None:
            x = self.history(outputs, x, padding)
        mask = real_keys(padding)
        summed_layers = 0
        for layer in self.layers:
            x, second, scores = layer(x, padding, mask, second, scores, summed_layers)
            summed_layers += 1
            if self.history is not None:
                x = self.history(outputs, x, padding)
            if return_states:
                states.append(x.transpose(0, 1))
        if self.profile is not None and not torch.jit.is_scripting():
            self.profile.finish()
        if self.layer_norm is not None:
            if second is not None:
                x = x + self.layer_norm(second, padding).to(x.dtype)
            else:
                x = self.layer_norm(x, padding)
        return x, states

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

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> Dict[str, Tensor]:
        """Accept checkpoints of stock fairseq."""
        keep_final_norm(state_dict, name)
        return super().upgrade_state_dict_named(state_dict, name)  # type: ignore[no-any-return]


class TransformerDecoder(TransformerDecoderBase):  # type: ignore[misc]
    """fairseq's decoder with the layers of a placement; see :class:`StackSpec`."""

    def __init__(
        self,
        cfg: Any,
        dictionary: Dictionary,
        embed_tokens: nn.Embedding,
        spec: StackSpec,
        no_encoder_attn: bool = False,
        output_projection: Optional[nn.Module] = None,
    ) -> None:
        self.spec = spec
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn, output_projection)
        spec.install(self, cfg.decoder.embed_dim)
        # Attention weights cost the fused kernel. In evaluation fairseq's users expect them unless
        # make_generation_fast_ says otherwise, in training only a task that loads alignments reads them.
        self.need_attn = True
        self.need_attn_in_training = False

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> nn.Module:
        """Return the next layer from the bottom."""
        return wrapped(TransformerDecoderLayer(self.spec.next_layer(cfg), not no_encoder_attn), cfg)

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
        """Decode; arguments and result as of fairseq's ``TransformerDecoderBase.extract_features``."""
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

        before = memory if self.cross_self_attention else None
        padding: Optional[Tensor] = None
        causal = incremental_state is None and not full_context_alignment
        beams, past = 1, 0
        if incremental_state is None:
            is_padding = prev_output_tokens.eq(self.padding_idx)
            hidden: Optional[Tensor] = None
            if bool(is_padding.any()):
                padding = is_padding
                # The causal mask hides padding from all real positions where it only stands at the end.
                if not causal or bool((is_padding[:, :-1] & ~is_padding[:, 1:]).any()):
                    hidden = is_padding
            self_mask = decoder_mask(prev_output_tokens.size(1), causal, hidden, before, memory_padding)
            causal = causal and self_mask is None
        else:
            ancestors = self.next_ancestors(incremental_state, prev_output_tokens.size(0), memory)
            beams, steps = ancestors.size(1), ancestors.size(2)
            past = (steps - 1) * beams
            self_mask = ancestors_mask(ancestors)
            if before is not None:
                own = self_mask
                if own is None:
                    own = torch.ones(1, 1, 1, steps, dtype=torch.bool, device=before.device)
                columns = memory_columns(before, memory_padding, beams)
                self_mask = torch.cat([columns, own.expand(columns.size(0), -1, beams, -1)], 3)
                past += before.size(1) if steps > 1 else 0
        cross_mask = real_keys(memory_padding)

        x = self.embed(prev_output_tokens, incremental_state)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x, padding)
        if self.profile is not None and not torch.jit.is_scripting():
            self.profile.start()
        attn: Optional[Tensor] = None
        inner_states: List[Optional[Tensor]] = [x.transpose(0, 1)]
        outputs: List[Tensor] = []
        second: Optional[Tensor] = None
        if self.second_scale != 0.0:
            second = widened(x) * self.second_scale  # without norms, it outgrows half precision
        self_scores: Optional[Tensor] = None
        cross_scores: Optional[Tensor] = None
        if self.history is not None:
            x = self.history(outputs, x, padding)
        index = 0
        for layer in self.layers:
            x, weights, second, self_scores, cross_scores = layer(
                x,
                memory,
                memory_padding,
                padding,
                self_mask,
                cross_mask,
                causal,
                beams,
                incremental_state,
                past,
                need_attn and index == alignment_layer,
                second,
                self_scores,
                cross_scores,
                index,
            )
            if weights is not None:
                attn = weights.float().to(x)
            index += 1
            if self.history is not None:
                x = self.history(outputs, x, padding)
            inner_states.append(x.transpose(0, 1))
        if self.profile is not None and not torch.jit.is_scripting():
            self.profile.finish()

        if attn is not None:
            if alignment_heads is not None:
                attn = attn[:, :alignment_heads]
            attn = attn.mean(dim=1)  # over heads: B x T x S
        if self.layer_norm is not None:
            if second is not None:
                x = x + self.layer_norm(second, padding).to(x.dtype)
            else:
                x = self.layer_norm(x, padding)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attn], "inner_states": inner_states}

    def next_ancestors(
        self, incremental_state: Dict[str, Dict[str, Optional[Tensor]]], rows: int, memory: Optional[Tensor]
    ) -> Tensor:
        """Return, and keep, which hypothesis each one continues at each step, with the newest step: B x beams x T.

        The hypotheses of a sentence share a cache if they share the encoder's row; see :mod:`.beams`.
        """
        state = self.get_incremental_state(incremental_state, "beams")
        if state is None:
            beams = 1 if memory is None else rows // memory.size(0)
            ancestors = torch.zeros(rows // beams, beams, 0, dtype=torch.long, device=self.version.device)
        else:
            known = state["ancestors"]
            assert known is not None
            ancestors = known
        beams = ancestors.size(1)
        newest = torch.arange(beams, device=ancestors.device).view(1, -1, 1).expand(ancestors.size(0), -1, -1)
        ancestors = torch.cat([ancestors, newest], 2)
        update: Dict[str, Optional[Tensor]] = {"ancestors": ancestors}
        self.set_incremental_state(incremental_state, "beams", update)
        return ancestors

    @torch.jit.export
    def reorder_incremental_state_scripting(
        self, incremental_state: Dict[str, Dict[str, Optional[Tensor]]], new_order: Tensor
    ) -> None:
        """Follow the search: let each row continue the hypothesis at ``new_order``.

        Within a sentence only the record of ancestors changes; no key or value moves.
        """
        state = self.get_incremental_state(incremental_state, "beams")
        if state is None:
            return
        ancestors = state["ancestors"]
        assert ancestors is not None
        beams = ancestors.size(1)
        kept = sentences_of(new_order, beams)
        if kept is None:  # rows go to other sentences: from now on each has a cache of its own
            self.ungroup(incremental_state, ancestors)
            ancestors = torch.zeros_like(ancestors).view(-1, 1, ancestors.size(2))
            beams, kept = 1, new_order
        if not is_identity(kept, ancestors.size(0)):
            for layer in self.layers:
                layer.select(incremental_state, kept)
            ancestors = ancestors.index_select(0, kept)
        own = torch.remainder(new_order, beams).view(-1, beams, 1)
        update: Dict[str, Optional[Tensor]] = {"ancestors": ancestors.gather(1, own.expand(-1, -1, ancestors.size(2)))}
        self.set_incremental_state(incremental_state, "beams", update)

    def ungroup(self, incremental_state: Dict[str, Dict[str, Optional[Tensor]]], ancestors: Tensor) -> None:
        """Give every hypothesis a cache of its own."""
        steps = torch.arange(ancestors.size(2), device=ancestors.device)
        for layer in self.layers:
            layer.ungroup(incremental_state, steps * ancestors.size(1) + ancestors)

    def make_generation_fast_(self, need_attn: bool = False, **kwargs: Any) -> None:
        """Return attention weights in evaluation only if ``need_attn``."""
        self.need_attn = need_attn

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> Dict[str, Tensor]:
        """Accept checkpoints of stock fairseq."""
        keep_final_norm(state_dict, name)
        super().upgrade_state_dict_named(state_dict, name)
        if self.adaptive_softmax is not None:  # fairseq adds the shared output projection, which there is not
            state_dict.pop(f"{name}.output_projection.weight", None)
        return state_dict
