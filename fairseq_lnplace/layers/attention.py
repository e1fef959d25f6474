"""Multi-head attention: one module for self- and cross-attention, one cache for incremental decoding."""

import math
from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from fairseq.incremental_decoding_utils import with_incremental_state
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.layers.dropout import Dropout
from fairseq_lnplace.layers.norm import Norm
from fairseq_lnplace.placements.spec import Slots

IncrementalState = Dict[str, Dict[str, Optional[Tensor]]]


@with_incremental_state  # type: ignore[untyped-decorator]
class Attention(nn.Module):
    """Scaled dot-product attention over H heads, batch-first.

    Parameter names and shapes are those of fairseq's ``MultiheadAttention``.

    Args:
        dim: the number of features C of the queries and the output.
        heads: the number of heads H.
        kv_dim: the number of features of the keys' and values' source.
        cross: whether keys and values come from another sequence, and so stay the same over decoding steps.
        dropout: the dropout of the attention weights.
        slots: the method's inner norms and head scale.
        norm_type: the kind of the inner norms.
        residual_scores: whether the scores are handed on from layer to layer (RealFormer, 2012.11747).
        mean_scores: whether the summed scores are divided by the number of layers summed.
        q_noise, qn_block_size: quantisation noise on the four matrices.
    """


    def __init__(
        self,
        dim: int,
        heads: int,
        kv_dim: int,
        cross: bool,
        dropout: float,
        slots: Slots,
        norm_type: str,
        residual_scores: bool = False,
        mean_scores: bool = False,
        q_noise: float = 0.0,
        qn_block_size: int = 8,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise must_be("attention_heads", f"a divisor of the embedding dimension {dim}", heads)
        self.dim, self.heads, self.head_dim, self.cross = dim, heads, dim // heads, cross
        self.residual_scores, self.mean_scores = residual_scores, mean_scores
        self.dropout_module = Dropout(dropout, module_name="MultiheadAttention")
        self.k_proj = quant_noise(nn.Linear(kv_dim, dim), q_noise, qn_block_size)
        self.v_proj = quant_noise(nn.Linear(kv_dim, dim), q_noise, qn_block_size)
        self.q_proj = quant_noise(nn.Linear(dim, dim), q_noise, qn_block_size)
        self.out_proj = quant_noise(nn.Linear(dim, dim), q_noise, qn_block_size)
        self.q_norm = Norm(norm_type, dim) if slots.qkv_norm else None
        self.k_norm = Norm(norm_type, dim) if slots.qkv_norm else None
        self.v_norm = Norm(norm_type, dim) if slots.qkv_norm else None
        self.inner_norm = Norm(norm_type, dim) if slots.inner_norm else None
        self.register_parameter("head_scale", nn.Parameter(torch.zeros(heads)) if slots.head_scale else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as stock fairseq does: q, k, v that share a width are half as large (in variance)."""
        gain = math.sqrt(0.5) if self.k_proj.in_features == self.dim else 1.0
        for linear in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(linear.weight, gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        memory: Optional[Tensor],
        query_padding: Optional[Tensor],
        key_padding: Optional[Tensor],
        memory_padding: Optional[Tensor],
        causal: bool,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]],
        need_weights: bool,
        scores: Optional[Tensor],
        summed_layers: int,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """Attend.

        Args:
            query: B x T x C.
            memory: the other sequence, B x S x K. Self-attention reads it before its own positions (cross+self).
            query_padding: B x T, True at padding; for the norms' statistics.
            key_padding: B x T, True at the query's own positions that self-attention must not attend to.
            memory_padding: B x S, True at padding.
            causal: whether self-attention hides later positions.
            incremental_state: fairseq's cache; ``query`` is then the newest position alone (T = 1).
            need_weights: whether to return the attention weights.
            scores: the scores summed over the layers below, B x H x T x S.
            summed_layers: over how many layers they are summed.

        Returns:
            the output B x T x C, the weights B x H x T x S where asked for, and the summed scores B x H x T x S where
            they are handed on.
        """
        q = self.q_proj(query)
        if self.q_norm is not None:
            q = self.q_norm(q, query_padding)
        q = self.split_heads(q)
        k, v = self.keys_and_values(query, memory, query_padding, memory_padding, incremental_state)
        padding = self.padding(k, key_padding, memory_padding)
        batch, length = query.size(0), query.size(1)
        if k.size(0) != batch:
            # Cross-attention caches one entry a source sentence; its beams are further queries of that sentence.
            q = self.group_beams(q, k.size(0))

        weights: Optional[Tensor] = None
        if self.residual_scores or need_weights:
            logits = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.head_dim)
            if logits.dtype != torch.float64:
                logits = logits.float()  # summed over layers, scores outgrow half precision
            if self.residual_scores:
                if scores is not None:
                    logits = logits + scores
                scores = logits
                if self.mean_scores:
                    logits = logits / (summed_layers + 1)
            mask = self.mask(q, k, padding, causal)
            if mask is not None:
                logits = logits.masked_fill(~mask, -math.inf)
            weights = logits.softmax(-1).to(q.dtype)
            out = torch.matmul(self.dropout_module(weights), v)
        else:
            whole_and_causal = causal and padding is None and q.size(2) == k.size(2)
            dropout = self.dropout_module.p if self.training else 0.0
            if whole_and_causal:
                out = F.scaled_dot_product_attention(q, k, v, None, dropout, True)
            else:
                out = F.scaled_dot_product_attention(q, k, v, self.mask(q, k, padding, causal), dropout, False)

        if k.size(0) != batch:
            out = self.ungroup_beams(out, batch, length)
            weights = self.ungroup_beams(weights, batch, length) if weights is not None else None
        head_scale = self.head_scale
        if head_scale is not None:
            out = out * (1.0 + head_scale).to(out.dtype).view(1, -1, 1, 1)
        out = out.transpose(1, 2).reshape(batch, length, self.dim)
        if self.inner_norm is not None:
            out = self.inner_norm(out, query_padding)
        return self.out_proj(out), weights if need_weights else None, scores if self.residual_scores else None

    def keys_and_values(
        self,
        query: Tensor,
        memory: Optional[Tensor],
        query_padding: Optional[Tensor],
        memory_padding: Optional[Tensor],
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]],
    ) -> Tuple[Tensor, Tensor]:
        """Return keys and values, each B x H x S x D, from the cache as far as it holds them."""
        cache = self.get_incremental_state(incremental_state, "attn_state")
        past_k: Optional[Tensor] = None
        past_v: Optional[Tensor] = None
        if cache is not None:
            past_k, past_v = cache["prev_key"], cache["prev_value"]
        if self.cross and past_k is not None and past_v is not None:
            return past_k, past_v
        source, padding = query, query_padding
        if memory is not None and self.cross:
            source, padding = memory, memory_padding
        elif memory is not None and past_k is None:
            source = torch.cat([memory.to(query.dtype), query], 1)
            padding = None
        k, v = self.k_proj(source), self.v_proj(source)
        if self.k_norm is not None and self.v_norm is not None:
            k, v = self.k_norm(k, padding), self.v_norm(v, padding)
        k, v = self.split_heads(k), self.split_heads(v)
        if past_k is not None and past_v is not None:
            k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        if incremental_state is not None:
            update: Dict[str, Optional[Tensor]] = {"prev_key": k, "prev_value": v}
            self.set_incremental_state(incremental_state, "attn_state", update)
        return k, v

    def padding(self, k: Tensor, key_padding: Optional[Tensor], memory_padding: Optional[Tensor]) -> Optional[Tensor]:
        """Return which of the S keys are padding, B x S, or None where none is."""
        if self.cross:
            return memory_padding
        if memory_padding is None:
            return key_padding
        own = key_padding
        if own is None:
            own = memory_padding.new_zeros(memory_padding.size(0), k.size(2) - memory_padding.size(1))
        return torch.cat([memory_padding, own], 1)

    def mask(self, q: Tensor, k: Tensor, padding: Optional[Tensor], causal: bool) -> Optional[Tensor]:
        """Return which keys each query may attend to, broadcastable to B x H x T x S, or None where all."""
        length, keys = q.size(2), k.size(2)
        allowed: Optional[Tensor] = None
        if causal and length > 1:
            allowed = torch.ones(length, keys, dtype=torch.bool, device=q.device).tril(keys - length)[None, None]
        if padding is not None:
            real = ~padding[:, None, None]
            allowed = real if allowed is None else allowed & real
        return allowed

    def split_heads(self, x: Tensor) -> Tensor:
        """Return B x T x C as B x H x T x D."""
        return x.view(x.size(0), x.size(1), self.heads, self.head_dim).transpose(1, 2)

    def group_beams(self, q: Tensor, sentences: int) -> Tensor:
        """Return (sentences * G) x H x 1 x D as sentences x H x G x D."""
        return q.view(sentences, -1, self.heads, self.head_dim).transpose(1, 2)

    def ungroup_beams(self, x: Tensor, batch: int, length: int) -> Tensor:
        """Return sentences x H x G x D as (sentences * G) x H x 1 x D."""
        return x.transpose(1, 2).reshape(batch, self.heads, length, x.size(3))

    @torch.jit.export
    def reorder_incremental_state(
        self,
        incremental_state: Dict[str, Dict[str, Optional[Tensor]]],
        new_order: Tensor,
    ) -> Optional[Dict[str, Dict[str, Optional[Tensor]]]]:
        """Move the cached rows into the order of the surviving hypotheses."""
        cache = self.get_incremental_state(incremental_state, "attn_state")
        if cache is not None:
            for name in cache:
                rows = cache[name]
                if rows is not None:
                    cache[name] = rows.index_select(0, new_order)
            return self.set_incremental_state(incremental_state, "attn_state", cache)
        return incremental_state

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """Split the q, k, v matrices that fairseq before 0.7 stored as one."""
        for kind in ("weight", "bias"):
            joined = state_dict.pop(f"{name}.in_proj_{kind}", None)
            if joined is not None:
                for part, rows in zip("qkv", joined.chunk(3), strict=True):
                    state_dict[f"{name}.{part}_proj.{kind}"] = rows

