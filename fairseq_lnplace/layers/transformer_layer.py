"""The layer of encoders and decoders: sub-layers, each inside its residual connection."""

from typing import TYPE_CHECKING, Any, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq_lnplace.layers.attention import Attention
from fairseq_lnplace.layers.quant_noise import linear
from fairseq_lnplace.layers.recomputed import keeping_less
from fairseq_lnplace.layers.residual import Residual
from fairseq_lnplace.layers.spec import LayerSize, LayerSpec
from fairseq_lnplace.layers.streams import Batch, Cache, Streams


class TransformerLayer(nn.Module):
    """Self-attention, cross-attention where there is a memory to read, and the feed-forward.

    Args:
        spec: the method at the layer's place.
        size: everything else.
    """

    if TYPE_CHECKING:  # TorchScript would read it at run time
        layer_scale: Optional[nn.Parameter]

    def __init__(self, spec: LayerSpec, size: LayerSize) -> None:
        super().__init__()
        self.spec, slots = spec, spec.slots
        name = f"Transformer{spec.position.side.title()}Layer"
        self.dropout_module = size.make_dropout(size.dropout, name)
        self.activation_dropout_module = size.make_dropout(size.activation_dropout, name)
        self.activation_fn = size.activation
        shared = any(s.branch_scale.learned == "layer" or s.gate for s in slots.slots)
        self.layer_scale = nn.Parameter(torch.zeros(1)) if shared else None
        self.self_attn = Attention(spec, size, slots.self_attention, cross=False)
        self.self_attn_layer_norm = Residual(spec, size.dim, slots.self_attention, dropout=self.dropout_module)
        self.fc1 = linear(size.dim, size.ffn_dim, size.noise, block_size=size.noise_block)
        self.fc2 = linear(size.ffn_dim, size.dim, size.noise, block_size=size.noise_block)
        self.ffn_layernorm = spec.norm(size.ffn_dim) if slots.feed_forward.inner_norm else None
        self.final_layer_norm = Residual(spec, size.dim, slots.feed_forward, dropout=self.dropout_module)
        self.encoder_attn: Optional[Attention] = None
        self.encoder_attn_layer_norm: Optional[Residual] = None
        if size.memory_dim:
            self.encoder_attn = Attention(spec, size, slots.cross_attention, cross=True)
            self.encoder_attn_layer_norm = Residual(spec, size.dim, slots.cross_attention, dropout=self.dropout_module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer, keeping less for the gradient; a compiled one decides by itself what it keeps."""
        if self._compiled_call_impl is not None:
            return super().__call__(*args, **kwargs)
        with keeping_less():
            return super().__call__(*args, **kwargs)

    def forward(self, streams: Streams, batch: Batch, cache: Optional[Cache] = None) -> Streams:
        """Return the streams after the layer.

        Args:
            streams: what the layer below hands on.
            batch: what all layers are given.
            cache: of this layer, in incremental decoding; it is written.
        """
        layer_input, padding, scale = streams.x, batch.padding, self.layer_scale
        h = self.self_attn_layer_norm.enter(streams.x, padding)
        h, self_scores, _ = self.self_attn(h, streams, batch, cache=cache)
        passed = self.self_attn_layer_norm.leave(streams, h, padding=padding, layer_input=layer_input, scale=scale)

        cross_scores: Optional[Tensor] = None
        weights = streams.weights
        if self.encoder_attn is not None and self.encoder_attn_layer_norm is not None and batch.memory is not None:
            h = self.encoder_attn_layer_norm.enter(passed.x, padding)
            h, cross_scores, own = self.encoder_attn(h, streams, batch, cache=cache)
            weights = weights if own is None else own
            passed = self.encoder_attn_layer_norm.leave(
                passed, h, padding=padding, layer_input=layer_input, scale=scale
            )

        h = self.feed_forward(self.final_layer_norm.enter(passed.x, padding), padding)
        passed = self.final_layer_norm.leave(passed, h, padding=padding, layer_input=layer_input, scale=scale)
        return Streams(
            passed.x, passed.second, self_scores, cross_scores=cross_scores, weights=weights, below=streams.below + 1
        )

    def feed_forward(self, x: Tensor, padding: Optional[Tensor]) -> Tensor:
        """Return the feed-forward's branch, B x T x C."""
        x = self.activation_dropout_module(self.activation_fn(self.fc1(x)))
        if self.ffn_layernorm is not None:
            x = self.ffn_layernorm(x, padding)
        return self.fc2(x)  # type: ignore[no-any-return]

    def norm_names(self) -> Tuple[str, ...]:
        """The residual connections in the order of execution."""
        cross = () if self.encoder_attn is None else ("encoder_attn_layer_norm",)
        return ("self_attn_layer_norm", *cross, "final_layer_norm")
