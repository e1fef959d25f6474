"""Multi-head attention: one module for self- and cross-attention, one cache for incremental decoding."""

import math
from typing import TYPE_CHECKING, Callable, Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from fairseq.incremental_decoding_utils import with_incremental_state
from torch import Tensor, nn

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.layers.dropout import Dropout
from fairseq_lnplace.layers.norm import Norm, widened
from fairseq_lnplace.layers.packing import Packing, packed, unpacked
from fairseq_lnplace.layers.quant_noise import linear
from fairseq_lnplace.placements.spec import Slots

IncrementalState = Dict[str, Dict[str, Optional[Tensor]]]


@with_incremental_state
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

    if TYPE_CHECKING:  # TorchScript would read these at run time
        head_scale: Optional[nn.Parameter]
        get_incremental_state: Callable[..., Optional[Dict[str, Optional[Tensor]]]]
        set_incremental_state: Callable[..., None]

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
        self.k_proj = linear(kv_dim, dim, q_noise, qn_block_size)
        self.v_proj = linear(kv_dim, dim, q_noise, qn_block_size)
        self.q_proj = linear(dim, dim, q_noise, qn_block_size)
        self.out_proj = linear(dim, dim, q_noise, qn_block_size)
        self.q_norm = Norm(norm_type, dim) if slots.qkv_norm else None
        self.k_norm = Norm(norm_type, dim) if slots.qkv_norm else None
        self.v_norm = Norm(norm_type, dim) if slots.qkv_norm else None
        self.inner_norm = Norm(norm_type, dim) if slots.inner_norm else None
        self.head_scale = nn.Parameter(torch.zeros(heads)) if slots.head_scale else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as stock fairseq does: q, k, v that share a width are half as large (in variance)."""
        gain = math.sqrt(0.5) if self.k_proj.in_features == self.dim else 1.0
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        memory: Optional[Tensor],
        padding: Optional[Tensor],
        packing: Optional[Packing],
        mask: Optional[Tensor],
        causal: bool,
        beams: int,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]],
        past: int,
        need_weights: bool,
        scores: Optional[Tensor],
        summed_layers: int,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """Attend.

        In incremental decoding the hypotheses ("beams") of one source sentence share its keys: each is one more query.

        Args:
            query: B x T x C; packed 1 x N x C; in incremental decoding (B * beams) x 1 x C.
            memory: the other sequence, B x S x K. Self-attention reads it before its own positions (cross+self).
            padding: B x T, True at padding; for the norms' statistics.
            packing: where the query's positions stand, if it is packed.
            mask: which keys a query may attend to, broadcastable to B x H x (beams * T) x S; None where it is all,
                or where ``causal`` says it.
            causal: whether each position attends to itself and those before.
            beams: the number of hypotheses of each sentence in the self-attention's cache.
            incremental_state: fairseq's cache; ``query`` is then the newest position alone (T = 1).
            past: the number of keys in the self-attention's cache.
            need_weights: whether to return the attention weights.
            scores: the scores summed over the layers below, B x H x (beams * T) x S.
            summed_layers: over how many layers they are summed.

        Returns:
            the output (as ``query``), the weights (B * beams) x H x T x S where asked for, and the summed scores
            where they are handed on.
        """
        q = self.q_proj(query)
        if self.q_norm is not None:
            q = self.q_norm(q, padding)
        q = unpacked(q, packing)
        rows, length = q.size(0), q.size(1)
        if self.cross:
            k, v = self.memory_keys_and_values(memory, incremental_state)
        else:
            k, v = self.own_keys_and_values(query, memory, padding, packing, beams, incremental_state, past)
        sentences = k.size(0)
        q = self.split_heads(q.reshape(sentences, -1, self.dim))
        if mask is not None and mask.size(0) > 1 and mask.size(0) != sentences:
            mask = mask.repeat_interleave(sentences // mask.size(0), 0)

        weights: Optional[Tensor] = None
        dropout = self.dropout_module.p if self.training or self.dropout_module.apply_during_inference else 0.0
        if self.residual_scores or need_weights:
            logits = torch.matmul(q / math.sqrt(self.head_dim), k.transpose(2, 3))
            logits = widened(logits)  # summed over layers, scores outgrow half precision
            if self.residual_scores:
                if scores is not None:
                    logits = logits + scores
                scores = logits
                if self.mean_scores:
                    logits = logits / (summed_layers + 1)
            if causal:
                mask = torch.ones(length, k.size(2), dtype=torch.bool, device=q.device).tril()
            if mask is not None:
                # not -inf: a padded query before the first real key attends to nothing, and 0 / 0 would spread
                logits = logits.masked_fill(~mask, -1e30)
            weights = logits.softmax(-1).to(q.dtype)
            out = torch.matmul(self.dropout_module(weights), v)
        elif incremental_state is not None and dropout == 0.0 and q.device.type == "cpu":
            out = attended(q, k, v, mask)
        else:
            out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)

        head_scale = self.head_scale
        if head_scale is not None:
            out = out * (1.0 + head_scale).to(out.dtype).view(1, -1, 1, 1)
        out = packed(out.transpose(1, 2).reshape(rows, length, self.dim), packing)
        if self.inner_norm is not None:
            out = self.inner_norm(out, padding)
        if weights is not None and sentences != rows:
            weights = weights.transpose(1, 2).reshape(rows, length, self.heads, -1).transpose(1, 2)
        return self.out_proj(out), weights if need_weights else None, scores if self.residual_scores else None

    def memory_keys_and_values(
        self,
        memory: Optional[Tensor],
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]],
    ) -> Tuple[Tensor, Tensor]:
        """Return the keys and values of the other sequence, each B x H x S x D; computed once for each sentence."""
        if incremental_state is not None:  # not asked for otherwise: torch.compile would tell layers apart by its key
            cache = self.get_incremental_state(incremental_state, "attn_state")
            if cache is not None:
                past_k, past_v = cache["prev_key"], cache["prev_value"]
                if past_k is not None and past_v is not None:
                    return past_k, past_v
        assert memory is not None
        k, v = self.keys_and_values(memory, None, None)
        if incremental_state is not None:
            # every step reads them, and a product with k transposed is faster where that is contiguous
            k, v = k.transpose(2, 3).contiguous().transpose(2, 3), v.contiguous()
            self.store(incremental_state, k, v)
        return k, v

    def own_keys_and_values(
        self,
        query: Tensor,
        memory: Optional[Tensor],
        padding: Optional[Tensor],
        packing: Optional[Packing],
        beams: int,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]],
        past: int,
    ) -> Tuple[Tensor, Tensor]:
        """Return keys and values of the positions so far, each B x H x S x D, with those of ``memory`` before them.

        In incremental decoding the newest positions of a sentence's hypotheses stand next to each other.
        """
        source = query
        if incremental_state is not None:
            source = query.reshape(-1, beams, self.dim)
        if memory is not None and past == 0:
            source = torch.cat([memory.to(query.dtype), unpacked(source, packing)], 1)
            packing = None
        k, v = self.keys_and_values(source, padding, packing)
        if incremental_state is None:
            return k, v
        past_k: Optional[Tensor] = None
        past_v: Optional[Tensor] = None
        cache = self.get_incremental_state(incremental_state, "attn_state")
        if cache is not None:
            past_k, past_v = cache["prev_key"], cache["prev_value"]
        end = past + k.size(2)
        all_k, all_v = appended(past_k, k, past), appended(past_v, v, past)
        self.store(incremental_state, all_k, all_v)
        return all_k[:, :, :end], all_v[:, :, :end]

    def keys_and_values(
        self, source: Tensor, padding: Optional[Tensor], packing: Optional[Packing]
    ) -> Tuple[Tensor, Tensor]:
        """Return the keys and values of ``source`` (B x S x K, or packed), each B x H x S x D."""
        k, v = self.k_proj(source), self.v_proj(source)
        if self.k_norm is not None and self.v_norm is not None:
            k, v = self.k_norm(k, padding), self.v_norm(v, padding)
        k, v = unpacked(k, packing), unpacked(v, packing)
        return self.split_heads(k), self.split_heads(v)

    def split_heads(self, x: Tensor) -> Tensor:
        """Return B x T x C as B x H x T x D."""
        return x.view(x.size(0), x.size(1), self.heads, self.head_dim).transpose(1, 2)

    def store(self, incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]], k: Tensor, v: Tensor) -> None:
        """Put keys and values into the cache."""
        if incremental_state is not None:
            cache: Dict[str, Optional[Tensor]] = {"prev_key": k, "prev_value": v}
            self.set_incremental_state(incremental_state, "attn_state", cache)

    def select(
        self,
        incremental_state: Dict[str, Dict[str, Optional[Tensor]]],
        sentences: Tensor,
        keys: Optional[Tensor],
    ) -> None:
        """Keep the cache of these sentences, in this order, and of it these ``keys`` (B x S, by number) or all."""
        cache = self.get_incremental_state(incremental_state, "attn_state")
        if cache is not None:
            k, v = cache["prev_key"], cache["prev_value"]
            if k is not None and v is not None:
                if keys is None:
                    k = k.transpose(2, 3).index_select(0, sentences).transpose(2, 3)  # as it lies in memory
                    v = v.index_select(0, sentences)
                else:
                    heads = torch.arange(self.heads, device=k.device)
                    rows = (sentences.unsqueeze(1) * self.heads + heads).unsqueeze(2) * k.size(2) + keys.unsqueeze(1)
                    shape = [rows.size(0), self.heads, rows.size(2), self.head_dim]
                    k = k.flatten(0, 2).index_select(0, rows.flatten()).view(shape)
                    v = v.flatten(0, 2).index_select(0, rows.flatten()).view(shape)
                self.store(incremental_state, k, v)

    def repeat(self, incremental_state: Dict[str, Dict[str, Optional[Tensor]]], beams: int) -> None:
        """Give every hypothesis a cache of its own of the same keys, where it has none yet."""
        cache = self.get_incremental_state(incremental_state, "attn_state")
        if cache is not None:
            k, v = cache["prev_key"], cache["prev_value"]
            if k is not None and v is not None:
                self.store(incremental_state, k.repeat_interleave(beams, 0), v.repeat_interleave(beams, 0))

    def ungroup(self, incremental_state: Dict[str, Dict[str, Optional[Tensor]]], keys: Tensor) -> None:
        """Give every hypothesis a cache of its own, of the ``keys`` (B x beams x S, numbers of keys) that it sees."""
        cache = self.get_incremental_state(incremental_state, "attn_state")
        if cache is not None:
            k, v = cache["prev_key"], cache["prev_value"]
            if k is not None and v is not None:
                index = keys[:, None, :, :, None].expand(-1, self.heads, -1, -1, self.head_dim)
                k = k.unsqueeze(2).expand(-1, -1, keys.size(1), -1, -1).gather(3, index)
                v = v.unsqueeze(2).expand(-1, -1, keys.size(1), -1, -1).gather(3, index)
                self.store(incremental_state, k.transpose(1, 2).flatten(0, 1), v.transpose(1, 2).flatten(0, 1))

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """Split the q, k, v matrices that fairseq before 0.7 stored as one."""
        for kind in ("weight", "bias"):
            joined = state_dict.pop(f"{name}.in_proj_{kind}", None)
            if joined is not None:
                for part, rows in zip("qkv", joined.chunk(3), strict=True):
                    state_dict[f"{name}.{part}_proj.{kind}"] = rows


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Return what ``F.scaled_dot_product_attention`` does; on the CPU it is slower for the few queries of a step."""
    shape = [q.size(0), q.size(1), q.size(2), -1]
    q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    weights = torch.baddbmm(q.new_zeros(1), q, k.transpose(1, 2), beta=0.0, alpha=1.0 / math.sqrt(q.size(2)))
    if mask is not None:
        weights.view(shape).add_((mask.float() - 1.0) * 1e30)  # masked_fill takes five times as long
    return torch.bmm(weights.softmax(-1), v).view(shape)


def appended(buffer: Optional[Tensor], new: Tensor, past: int) -> Tensor:
    """Return a B x H x (room) x D buffer with ``new`` (B x H x n x D) behind its first ``past`` entries.

    It grows by doubling and is written in place.
    """
    end = past + new.size(2)
    if buffer is None or buffer.size(2) < end:
        room = new.new_empty(new.size(0), new.size(1), max(2 * end, end + 16 * new.size(2)), new.size(3))
        if buffer is not None:
            room[:, :, :past] = buffer[:, :, :past]
        buffer = room
    buffer[:, :, past:end] = new
    return buffer
