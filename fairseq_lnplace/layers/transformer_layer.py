"""The encoder and the decoder layer: sub-layers, each inside its residual connection."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

import torch
from fairseq import utils
from torch import Tensor, nn

from fairseq_lnplace.layers.attention import Attention
from fairseq_lnplace.layers.compiling import set_compiled
from fairseq_lnplace.layers.dropout import Dropout
from fairseq_lnplace.layers.linear import reads_columns
from fairseq_lnplace.layers.norm import Norm
from fairseq_lnplace.layers.packing import Packing
from fairseq_lnplace.layers.profile import Profile
from fairseq_lnplace.layers.quant_noise import linear
from fairseq_lnplace.layers.recomputed import keeping_less
from fairseq_lnplace.layers.residual import Residual
from fairseq_lnplace.placements.spec import Options, Placement, Position, Slots


@dataclass(frozen=True)
class LayerSpec:
    """What a layer is built from: its method, its place in the model, and fairseq's configuration.

    Attributes:
        placement: the method, its variant resolved.
        options: the method's options.
        position: the layer's place.
        norm_type: the kind of the norms.
        cfg: fairseq's ``TransformerConfig``; ``cfg.encoder`` or ``cfg.decoder`` belongs to the layer's side.
        profile: the stack's measurement of skip scales, where the method measures them.
    """

    placement: Placement
    options: Options
    position: Position
    norm_type: str
    cfg: Any
    profile: Optional[Profile] = None


class TransformerLayer(nn.Module):
    """What encoder and decoder layers share: self-attention, the feed-forward, and their residual connections."""

    if TYPE_CHECKING:  # TorchScript would read it at run time
        layer_scale: Optional[nn.Parameter]

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        cfg, side = spec.cfg, getattr(spec.cfg, spec.position.side)
        self.spec = spec
        self.embed_dim = int(side.embed_dim)
        self.compiles = bool(cfg.compile)
        self.q_noise, self.qn_block_size = cfg.quant_noise.pq, cfg.quant_noise.pq_block_size
        slots = spec.placement.at(spec.position, spec.options)
        name = type(self).__name__.removesuffix("Base")
        self.dropout_module = Dropout(cfg.dropout, module_name=name)
        # fairseq's old relu_dropout holds where activation_dropout is silent
        self.activation_dropout_module = Dropout(
            float(cfg.activation_dropout or cfg.relu_dropout or 0), module_name=name
        )
        self.activation_fn = utils.get_activation_fn(cfg.activation_fn)
        shared = any(s.branch_scale.learned == "layer" or s.gate for s in slots.slots)
        self.layer_scale = nn.Parameter(torch.zeros(1)) if shared else None
        self.self_attn = self.build_attention(slots.self_attention, side.attention_heads, None)
        self.self_attn_layer_norm = self.build_residual(slots.self_attention)
        self.fc1 = self.build_fc1(self.embed_dim, side.ffn_embed_dim)
        self.fc2 = self.build_fc2(side.ffn_embed_dim, self.embed_dim)
        inner = slots.feed_forward.inner_norm
        self.ffn_layernorm = Norm(spec.norm_type, side.ffn_embed_dim) if inner else None
        self.final_layer_norm = self.build_residual(slots.feed_forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer, keeping less for the gradient; a compiled one decides by itself what it keeps."""
        if self._compiled_call_impl is not None:
            return super().__call__(*args, **kwargs)
        with keeping_less():
            return super().__call__(*args, **kwargs)

    def train(self, mode: bool = True) -> "TransformerLayer":
        """Set training or evaluation; under --compile only training runs compiled: a search's shapes seldom repeat."""
        super().train(mode)
        if self.compiles:
            set_compiled(self, mode)
        return self

    def build_attention(self, slots: Slots, heads: int, memory_dim: Optional[int]) -> Attention:
        """Return self-attention, or cross-attention to a memory of ``memory_dim`` features."""
        return Attention(
            self.embed_dim,
            heads,
            memory_dim or self.embed_dim,
            memory_dim is not None,
            self.spec.cfg.attention_dropout,
            slots,
            self.spec.norm_type,
            self.spec.placement.residual_scores,
            self.spec.placement.mean_scores(self.spec.position, self.spec.options) != 0,
            self.q_noise,
            self.qn_block_size,
        )

    def build_fc1(self, in_dim: int, out_dim: int) -> nn.Linear:
        """Return the feed-forward's first matrix."""
        return linear(in_dim, out_dim, self.q_noise, self.qn_block_size)

    def build_fc2(self, in_dim: int, out_dim: int) -> nn.Linear:
        """Return the feed-forward's second matrix."""
        return linear(in_dim, out_dim, self.q_noise, self.qn_block_size)

    def build_residual(self, slots: Slots) -> Residual:
        """Return the residual connection around one sub-layer."""
        spec = self.spec
        second = spec.placement.second_stream
        return Residual(
            self.embed_dim,
            slots,
            spec.position,
            spec.options,
            spec.norm_type,
            1.0 if second is None else second(spec.position, spec.options),
            self.dropout_module,
            spec.profile,
        )

    def feed_forward(self, x: Tensor, padding: Optional[Tensor]) -> Tensor:
        """Return the feed-forward's branch, B x T x C."""
        x = self.activation_dropout_module(self.activation_fn(self.fc1(x)))
        if self.ffn_layernorm is not None:
            x = self.ffn_layernorm(x, padding)
        return self.fc2(x)  # type: ignore[no-any-return]

    @torch.jit.unused
    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Lay the matrices out in memory as products with them read them; fairseq calls this before it translates."""
        for module in self.modules():
            if reads_columns(module):
                module.weight.data = module.weight.data.t().contiguous().t()

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """Drop fairseq 0.12.2's ghost parameters and rename norms that fairseq before 0.6 numbered."""
        for ghost in ("in_proj", "out_proj", "fc1", "fc2"):
            for kind in ("weight", "bias"):
                state_dict.pop(f"{name}.{ghost}_{kind}", None)
        for number, norm in enumerate(self.norm_names()):
            for kind in ("weight", "bias"):
                old = f"{name}.layer_norms.{number}.{kind}"
                if old in state_dict:
                    state_dict[f"{name}.{norm}.{kind}"] = state_dict.pop(old)

    def norm_names(self) -> Tuple[str, ...]:
        """The residual connections in the order of execution."""
        return ("self_attn_layer_norm", "final_layer_norm")


class TransformerEncoderLayer(TransformerLayer):
    """Self-attention and feed-forward."""

    def forward(
        self,
        x: Tensor,
        padding: Optional[Tensor] = None,
        mask: Optional[Tensor] = None,
        second: Optional[Tensor] = None,
        scores: Optional[Tensor] = None,
        summed_layers: int = 0,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """Run the layer.

        Args:
            x: B x T x C.
            padding: B x T, True at padding, for the norms' statistics; None where there is none.
            mask: which positions may be attended to, broadcastable to B x H x T x T; None where it is all.
            second: the second stream, B x T x C.
            scores: the self-attention scores summed over the layers below, B x H x T x T.
            summed_layers: over how many layers they are summed.

        Returns:
            the stream, the second stream and the summed scores after this layer.
        """
        layer_input = x
        h = self.self_attn_layer_norm.enter(x, padding)
        h, _, scores = self.self_attn(h, None, padding, None, mask, False, 1, None, 0, False, scores, summed_layers)
        x, second = self.self_attn_layer_norm.leave(x, h, padding, layer_input, self.layer_scale, second)

        h = self.feed_forward(self.final_layer_norm.enter(x, padding), padding)
        x, second = self.final_layer_norm.leave(x, h, padding, layer_input, self.layer_scale, second)
        return x, second, scores


class TransformerDecoderLayer(TransformerLayer):
    """Causal self-attention, cross-attention where there is an encoder, and feed-forward."""

    def __init__(self, spec: LayerSpec, cross_attention: bool) -> None:
        super().__init__(spec)
        self.encoder_attn: Optional[Attention] = None
        self.encoder_attn_layer_norm: Optional[Residual] = None
        if cross_attention:
            slots = spec.placement.at(spec.position, spec.options).cross_attention
            heads, memory_dim = spec.cfg.decoder.attention_heads, int(spec.cfg.encoder.embed_dim)
            self.encoder_attn = self.build_attention(slots, heads, memory_dim)
            self.encoder_attn_layer_norm = self.build_residual(slots)
        self.cross_self_attention = bool(spec.cfg.cross_self_attention)

    def forward(
        self,
        x: Tensor,
        memory: Optional[Tensor],
        packing: Optional[Packing],
        self_mask: Optional[Tensor],
        cross_mask: Optional[Tensor],
        causal: bool,
        beams: int,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]],
        past: int,
        need_weights: bool,
        second: Optional[Tensor],
        self_scores: Optional[Tensor],
        cross_scores: Optional[Tensor],
        summed_layers: int,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
        """Run the layer.

        Args:
            x: B x T x C; packed 1 x N x C; with an ``incremental_state`` the newest position of every hypothesis,
                (B * beams) x 1 x C.
            memory: the encoder's output, B x S x K.
            packing: where the positions of ``x`` stand, if it is packed.
            self_mask: which positions self-attention may attend to; None where it is all or ``causal`` says it.
            cross_mask: which positions of the memory may be attended to; None where it is all.
            causal: whether self-attention hides later positions.
            beams: the number of hypotheses of each sentence in the self-attention's cache.
            incremental_state: fairseq's cache.
            past: the number of keys in the self-attention's cache.
            need_weights: whether to return the cross-attention weights.
            second: the second stream, as ``x``.
            self_scores: the self-attention scores summed over the layers below, B x H x T x T.
            cross_scores: the cross-attention scores summed over the layers below, B x H x T x S.
            summed_layers: over how many layers the scores are summed.

        Returns:
            the stream, the cross-attention weights (B x H x T x S), the second stream and both summed scores.
        """
        layer_input = x
        before = memory if self.cross_self_attention else None
        h = self.self_attn_layer_norm.enter(x, None)
        h, _, self_scores = self.self_attn(
            h,
            before,
            None,
            packing,
            self_mask,
            causal,
            beams,
            incremental_state,
            past,
            False,
            self_scores,
            summed_layers,
        )
        x, second = self.self_attn_layer_norm.leave(x, h, None, layer_input, self.layer_scale, second)

        weights: Optional[Tensor] = None
        if self.encoder_attn is not None and self.encoder_attn_layer_norm is not None and memory is not None:
            h = self.encoder_attn_layer_norm.enter(x, None)
            h, weights, cross_scores = self.encoder_attn(
                h,
                memory,
                None,
                packing,
                cross_mask,
                False,
                beams,
                incremental_state,
                past,
                need_weights,
                cross_scores,
                summed_layers,
            )
            x, second = self.encoder_attn_layer_norm.leave(x, h, None, layer_input, self.layer_scale, second)

        h = self.feed_forward(self.final_layer_norm.enter(x, None), None)
        x, second = self.final_layer_norm.leave(x, h, None, layer_input, self.layer_scale, second)
        return x, weights, second, self_scores, cross_scores

    @torch.jit.export
    def select(
        self, incremental_state: Dict[str, Dict[str, Optional[Tensor]]], sentences: Tensor, keys: Optional[Tensor]
    ) -> None:
        """Keep the cache of these sentences, in this order, and of their past these ``keys`` (B x S, by number)."""
        self.self_attn.select(incremental_state, sentences, keys)
        if self.encoder_attn is not None:
            self.encoder_attn.select(incremental_state, sentences, None)

    @torch.jit.export
    def ungroup(self, incremental_state: Dict[str, Dict[str, Optional[Tensor]]], keys: Tensor) -> None:
        """Give every hypothesis a cache of its own, of the ``keys`` (B x beams x T, numbers of keys) of its past."""
        self.self_attn.ungroup(incremental_state, keys)
        if self.encoder_attn is not None:
            self.encoder_attn.repeat(incremental_state, keys.size(1))

    def norm_names(self) -> Tuple[str, ...]:
        """The residual connections in the order of execution."""
        return ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
