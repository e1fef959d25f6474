"""Weights with the factors of a placement folded in, so that stock fairseq's equation without factors is the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor

from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.placements.spec import Position, Side, Slots
from fairseq_lnplace.placements.stock import IDENTITY
from fairseq_lnplace.plugin.models.kinds import Kind
from fairseq_lnplace.plugin.models.method import Method

__all__ = ["StockWeights"]

# In the order of execution: the residual connection, the matrices that read its stream, its branch's last matrix.
SELF_ATTENTION = (
    "self_attn_layer_norm",
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.out_proj",
)
CROSS_ATTENTION = ("encoder_attn_layer_norm", ("encoder_attn.q_proj",), "encoder_attn.out_proj")
FEED_FORWARD = ("final_layer_norm", ("fc1",), "fc2")
SMALLEST_DIVISOR = 1e-4  # a smaller learned factor would drown its matrix in rounding errors


class StockWeights:
    """A state dict on its way to stock's names; the given one is left as it is.

    What is scaled is computed in float64 and kept in at least float32.

    Args:
        state: the state dict of one of this package's models.
        model: the model's options.
        kind, method: what it is.

    Attributes:
        state: the weights; :meth:`fold` turns them into stock's.
        options: what :meth:`fold` changes in the model's options.
        untied: whether embeddings that were shared are no longer.
    """

    def __init__(self, state: Mapping[str, Tensor], model: Mapping[str, Any], kind: Kind, method: Method) -> None:
        self.state = dict(state)
        self.model, self.kind, self.method = model, kind, method
        self.options: dict[str, Any] = {}
        self.untied = False

    def fold(self) -> None:
        """Fold every factor into the weights beside it, and leave out what stock does not know.

        Raises:
            LnplaceError: a factor cannot be folded.
        """
        self.state.pop(IDENTITY, None)
        for side, prefix in self.kind.stacks.items():
            self.state.pop(f"{prefix}.profile.done", None)
            stream: str | None = None  # the norm that the stream comes from; none below the first layer
            for index, position in enumerate(self.method.stack(side).positions):
                layer = f"{prefix}.layers.{index}"
                slots = self.method.placement.at(position, self.method.options)
                shared = self.state.pop(f"{layer}.layer_scale", torch.zeros(1))
                parts = (SELF_ATTENTION, CROSS_ATTENTION, FEED_FORWARD)
                for each, (norm, readers, last) in zip(slots.slots, parts, strict=True):
                    if f"{layer}.{last}.weight" not in self.state:
                        continue
                    norm = f"{layer}.{norm}"
                    skip, branch = self.take_factors(norm, each, position, shared)
                    self.scale_rows(f"{layer}.{last}", branch)
                    if each.in_norm:
                        scale = each.in_scale(position, self.method.options)
                        self.scale_rows(norm, torch.tensor([scale], dtype=torch.float64))
                    elif not is_one(skip):
                        self.scale_stream(side, prefix, stream, skip)
                        self.divide(side, [f"{layer}.{reader}.weight" for reader in readers], skip)
                    stream = norm

    def take_factors(self, norm: str, slots: Slots, position: Position, shared: Tensor) -> tuple[Tensor, Tensor]:
        """Take the factors of the skip and the branch out of the state dict; each of shape (1,) or (C,)."""
        zero = torch.zeros(1)
        measured = self.state.pop(f"{norm}.profiled_skip", None)
        start = slots.skip_scale.start(position, self.method.options) if measured is None else measured.double()
        skip = start + self.state.pop(f"{norm}.skip_scale", zero).double()
        progress = self.state.pop(f"{norm}.progress", None)
        if progress is not None:
            return skip, progress.double()
        learned = self.state.pop(f"{norm}.branch_scale", shared if slots.branch_scale.learned == "layer" else zero)
        return skip, slots.branch_scale.start(position, self.method.options) + learned.double()

    def scale_stream(self, side: Side, prefix: str, norm: str | None, factor: Tensor) -> None:
        """Scale the stream where it comes from: a norm, or the embeddings."""
        if norm is None:  # fairseq's encoder maps the embeddings of quantisation noise last, its decoder first
            last = ("quant_noise", "layernorm_embedding") if side == "encoder" else ("layernorm_embedding",)
            norm = next((f"{prefix}.{each}" for each in last if f"{prefix}.{each}.weight" in self.state), None)
        if norm is not None:
            self.scale_rows(norm, factor)
            return
        self.scale_embeddings(prefix, factor)
        self.scale_positions(side, prefix, factor)

    def scale_embeddings(self, prefix: str, factor: Tensor) -> None:
        """Scale the embedded tokens; the embedding no longer shares its weights then."""
        for last in (f"{prefix}.project_in_dim", f"{prefix}.quant_noise"):
            if f"{last}.weight" in self.state:
                self.scale_rows(last, factor)
                return
        name = f"{prefix}.embed_tokens.weight"
        if name not in self.state:
            raise LnplaceError("`--adaptive-input` must be left out where a factor has to be folded into embeddings")
        self.scale(name, factor)
        self.untied |= any(self.model.get(option) == (not value) for option, value in self.kind.untie.items())
        self.options |= self.kind.untie

    def scale_positions(self, side: Side, prefix: str, factor: Tensor) -> None:
        """Scale the positions' embeddings; sinusoids become learned ones, which stock reads from the checkpoint."""
        name = f"{prefix}.embed_positions"
        if f"{name}.weight" in self.state:
            self.scale(f"{name}.weight", factor)
        elif self.state.pop(f"{name}._float_tensor", None) is not None:
            padding = Dictionary().pad()
            count = self.model[f"max_{'source' if side == 'encoder' else 'target'}_positions"]
            dim = self.model[f"{side}_embed_dim"]
            table = SinusoidalPositionalEmbedding.get_embedding(count + padding + 1, dim, padding)
            self.state[f"{name}.weight"] = table.to(self.state[f"{prefix}.layers.0.fc1.weight"].dtype)
            self.scale(f"{name}.weight", factor)
            self.options[f"{side}_learned_pos"] = True

    def divide(self, side: Side, names: Iterable[str], factor: Tensor) -> None:
        """Divide the columns of matrices that read a scaled stream by its factor.

        Raises:
            LnplaceError: the factor is too small, or the matrices read the encoder's output as well.
        """
        if (smallest := factor.abs().min().item()) < SMALLEST_DIVISOR:
            raise must_be("checkpoint", f"of factors of at least {SMALLEST_DIVISOR}, to fold them", f"of {smallest}")
        if side == "decoder" and self.model.get("cross_self_attention"):
            raise LnplaceError(
                "`--cross-self-attention` must be left out where a factor is folded: the encoder's output has none"
            )
        for name in names:
            self.scale(name, 1 / factor)

    def scale_rows(self, module: str, factor: Tensor) -> None:
        """Scale the outputs of a matrix or norm, bias included."""
        rows = self.state[f"{module}.weight"].dim() == 2
        self.scale(f"{module}.weight", factor[:, None] if rows else factor)
        if f"{module}.bias" in self.state:
            self.scale(f"{module}.bias", factor)

    def scale(self, name: str, factor: Tensor) -> None:
        """Multiply a tensor of the state dict, unless by 1."""
        if not is_one(factor):
            tensor = self.state[name]
            exact = tensor.dtype if tensor.dtype == torch.float64 else torch.float32
            self.state[name] = (tensor.double() * factor).to(exact)


def is_one(factor: Tensor) -> bool:
    """Return whether all of a factor is 1."""
    return bool((factor == 1).all())
