"""Multi-head attention: one module for self- and cross-attention."""

import math
from typing import TYPE_CHECKING, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.layers.cache import KeysAndValues, extend, store, stored
from fairseq_lnplace.layers.norm import Norm, widened
from fairseq_lnplace.layers.packing import Packing, packed, unpacked
from fairseq_lnplace.layers.quant_noise import linear
from fairseq_lnplace.layers.spec import LayerSize, LayerSpec
from fairseq_lnplace.layers.streams import Batch, Cache, Streams
from fairseq_lnplace.placements.spec import Slots


class Attended(NamedTuple):
    """What attention gives.

    Attributes:
        output: as the query.
        scores: the scores with those of the layers below, B x H x (beams * T) x S, where they are handed on.
        weights: (B * beams) x H x T x S, where they are asked for.
    """

    output: Tensor
    scores: Optional[Tensor]
    weights: Optional[Tensor]


class Attention(nn.Module):
    """Scaled dot-product attention over H heads, batch-first.

    Parameter names and shapes are those of fairseq's ``MultiheadAttention``.

    Args:
        spec: the method at the layer's place; handing on scores is RealFormer's (2012.11747).
        size: the layer's sizes.
        slots: the method's inner norms and head scale.
        cross: whether keys and values come from the memory.
    """

    if TYPE_CHECKING:  # TorchScript would read it at run time
        head_scale: Optional[nn.Parameter]
        qk_scale: Optional[nn.Parameter]

    def __init__(self, spec: LayerSpec, size: LayerSize, slots: Slots, cross: bool) -> None:
        super().__init__()
        dim, kv_dim = size.dim, size.memory_dim if cross else size.dim
        if size.heads < 1 or dim % size.heads:
            raise must_be("attention_heads", f"a divisor of the embedding dimension {dim}", size.heads)
        self.dim, self.heads, self.head_dim = dim, size.heads, dim // size.heads
        self.cross, self.memory_first = cross, size.memory_first
        self.residual_scores = spec.placement.residual_scores
        self.mean_scores = spec.placement.mean_scores(spec.position, spec.options) != 0
        self.dropout_module = size.make_dropout(size.attention_dropout, "MultiheadAttention")
        self.k_proj = linear(kv_dim, dim, size.noise, block_size=size.noise_block)
        self.v_proj = linear(kv_dim, dim, size.noise, block_size=size.noise_block)
        self.q_proj = linear(dim, dim, size.noise, block_size=size.noise_block)
        self.out_proj = linear(dim, dim, size.noise, block_size=size.noise_block)
        self.parts = self.heads if slots.qkv_norm == "head" or slots.qk_norm else 1  # that q, k, v are normalised in
        self.q_norm = query_key_norm(spec, slots, dim // self.parts)
        self.k_norm = query_key_norm(spec, slots, dim // self.parts)
        self.v_norm = spec.norm(dim // self.parts) if slots.qkv_norm else None
        # of the products of queries and keys of length 1, as the difference from its start
        self.qk_scale = nn.Parameter(torch.zeros(1)) if slots.qk_norm == "l2" else None
        self.qk_start = slots.qk_scale
        self.inner_norm = spec.norm(dim) if slots.inner_norm else None
        self.head_scale = nn.Parameter(torch.zeros(size.heads)) if slots.head_scale else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as stock fairseq does: q, k, v that share a width are half as large (in variance)."""
        gain = math.sqrt(0.5) if self.k_proj.in_features == self.dim else 1.0
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, query: Tensor, streams: Streams, batch: Batch, cache: Optional[Cache] = None) -> Attended:
        """Attend.

        Args:
            query: B x T x C; packed 1 x N x C; the newest positions alone, (B * beams) x T x C, where there is a cache.
            streams: what the layer reads.
            batch: what all layers are given.
            cache: of the layer, in incremental decoding.
        """
        q = self.q_proj(query)
        if self.q_norm is not None:
            q = self.q_norm(*in_parts(q, batch.padding, self.parts)).view_as(q)
        q = unpacked(q, batch.packing)
        rows, length = q.size(0), q.size(1)
        if self.cross:
            k, v = self.memory_keys_and_values(batch.memory, cache)
        else:
            k, v = self.own_keys_and_values(query, batch, cache)
        sentences = k.size(0)
        q = self.split_heads(q.reshape(sentences, -1, self.dim))
        qk_scale = self.qk_scale
        if qk_scale is not None:  # times what the scores are divided by
            q = of_length_one(q) * ((self.qk_start + qk_scale) * math.sqrt(self.head_dim)).to(q.dtype)
        mask = batch.memory_mask if self.cross else batch.mask
        causal = batch.causal and not self.cross
        if mask is not None and mask.size(0) > 1 and mask.size(0) != sentences:
            mask = mask.repeat_interleave(sentences // mask.size(0), 0)

        scores: Optional[Tensor] = None
        weights: Optional[Tensor] = None
        dropout = self.dropout_module.probability()
        if self.residual_scores or (self.cross and streams.below == batch.weights_of):
            logits = torch.matmul(q / math.sqrt(self.head_dim), k.transpose(2, 3))
            logits = widened(logits)  # summed over layers, scores outgrow half precision
            if self.residual_scores:
                before = streams.cross_scores if self.cross else streams.self_scores
                if before is not None:
                    logits = logits + before
                scores = logits
                if self.mean_scores:
                    logits = logits / (streams.below + 1)
            if causal:
                mask = torch.ones(length, k.size(2), dtype=torch.bool, device=q.device).tril()
            if mask is not None:
                # not -inf: a padded query before the first real key attends to nothing, and 0 / 0 would spread
                if mask.dtype == torch.bool:
                    logits = logits.masked_fill(~mask, -1e30)
                else:
                    logits = logits + widened(mask).clamp(min=-1e30)
            weights = logits.softmax(-1).to(q.dtype)
            out = torch.matmul(self.dropout_module(weights), v)
        elif cache is not None and not causal and dropout == 0.0 and q.device.type == "cpu":
            out = attended(q, k, v, mask=mask)
        else:
            out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)

        head_scale = self.head_scale
        if head_scale is not None:
            out = out * (1.0 + head_scale).to(out.dtype).view(1, -1, 1, 1)
        out = packed(out.transpose(1, 2).reshape(rows, length, self.dim), batch.packing)
        if self.inner_norm is not None:
            out = self.inner_norm(out, batch.padding)
        if weights is not None and sentences != rows:
            weights = weights.transpose(1, 2).reshape(rows, length, self.heads, -1).transpose(1, 2)
        return Attended(self.out_proj(out), scores, weights if streams.below == batch.weights_of else None)

    def memory_keys_and_values(self, memory: Optional[Tensor], cache: Optional[Cache]) -> KeysAndValues:
        """Return the keys and values of the memory, each B x H x S x D; computed once for each sentence."""
        if cache is not None:
            found = stored(cache, "cross")
            if found is not None:
                return found
        assert memory is not None
        k, v = self.keys_and_values(memory, None, None)
        if cache is not None:
            # every step reads them, and a product with k transposed is faster where that is contiguous
            k, v = k.transpose(2, 3).contiguous().transpose(2, 3), v.contiguous()
            store(cache, "cross", k, v=v)
        return k, v

    def own_keys_and_values(self, query: Tensor, batch: Batch, cache: Optional[Cache]) -> KeysAndValues:
        """Return keys and values of the positions so far, each B x H x S x D, with those of the memory before them.

        In incremental decoding the newest positions of a sentence's hypotheses stand next to each other.
        """
        source, packing, memory = query, batch.packing, batch.memory
        if cache is not None:
            source = query.reshape(query.size(0) // batch.beams, -1, self.dim)
        if self.memory_first and memory is not None and batch.past == 0:
            source = torch.cat([memory.to(query.dtype), unpacked(source, packing)], 1)
            packing = None
        k, v = self.keys_and_values(source, batch.padding, packing)
        return (k, v) if cache is None else extend(cache, "self", (k, v), past=batch.past)

    def keys_and_values(
        self, source: Tensor, padding: Optional[Tensor], packing: Optional[Packing]
    ) -> Tuple[Tensor, Tensor]:
        """Return the keys and values of ``source`` (B x S x K, or packed), each B x H x S x D."""
        k, v = self.k_proj(source), self.v_proj(source)
        if self.k_norm is not None:
            k = self.k_norm(*in_parts(k, padding, self.parts)).view_as(k)
        if self.v_norm is not None:
            v = self.v_norm(*in_parts(v, padding, self.parts)).view_as(v)
        k, v = self.split_heads(unpacked(k, packing)), self.split_heads(unpacked(v, packing))
        return k if self.qk_scale is None else of_length_one(k), v

    def split_heads(self, x: Tensor) -> Tensor:
        """Return B x T x C as B x H x T x D."""
        return x.view(x.size(0), x.size(1), self.heads, self.head_dim).transpose(1, 2)


def query_key_norm(spec: LayerSpec, slots: Slots, dim: int) -> Optional[Norm]:
    """Return the norm on queries or keys, over ``dim`` features; None where there is none, or it has no weights."""
    if slots.qkv_norm:
        return spec.norm(dim)
    return Norm(slots.qk_norm, dim, spec.norm_eps, bias=False) if slots.qk_norm not in ("", "l2") else None


def of_length_one(x: Tensor) -> Tensor:
    """Return ``x`` over its length, along the last axis; 0 where it is 0."""
    return F.normalize(widened(x), dim=-1).to(x.dtype)


def in_parts(x: Tensor, padding: Optional[Tensor], parts: int) -> Tuple[Tensor, Optional[Tensor]]:
    """Return ``x`` (B x T x C) as B x (T * parts) x (C / parts), and its padding, for a norm over each part alone."""
    if parts == 1:
        return x, padding
    if padding is not None:
        padding = padding.repeat_interleave(parts, 1)
    return x.view(x.size(0), x.size(1) * parts, -1), padding


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Return what ``F.scaled_dot_product_attention`` does; on the CPU it is slower for the few queries of a step."""
    shape = [q.size(0), q.size(1), q.size(2), -1]
    q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    weights = torch.baddbmm(q.new_zeros(1), q, k.transpose(1, 2), beta=0.0, alpha=1.0 / math.sqrt(q.size(2)))
    if mask is not None:
        added = (
            (mask.float() - 1.0) * 1e30 if mask.dtype == torch.bool else mask
        )  # masked_fill takes five times as long
        weights.view(shape).add_(added)
    return torch.bmm(weights.softmax(-1), v).view(shape)
