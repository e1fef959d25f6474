"""The method that a model is built with: a placement, its options, the norm types and the depths."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fairseq_lnplace import placements
from fairseq_lnplace.errors import LnplaceError, flag, must_be
from fairseq_lnplace.heap import keep_freed_memory
from fairseq_lnplace.layers.norm import CAUSAL_NORM_TYPES, NORM_TYPES
from fairseq_lnplace.layers.spec import StackSpec
from fairseq_lnplace.placements.options import METHOD_OPTIONS, method_options
from fairseq_lnplace.placements.qk_norm import described as described_qk_norm
from fairseq_lnplace.placements.qk_norm import with_qk_norm
from fairseq_lnplace.placements.spec import Options, Placement, Side
from fairseq_lnplace.placements.stock import IDENTITY, STOCK_PLACEMENTS


@dataclass(frozen=True)
class Method:
    """What decides a model's equation and constants.

    Attributes:
        placement: the method, its variant resolved.
        options: the method's options, defaults filled in.
        norm_type, decoder_norm_type: the kinds of the norms.
        encoder_depth, decoder_depth: the depths N and M the model was trained with; 0 for a missing stack.
        encoder_layers, decoder_layers: the layers that are kept of them, each counted from 1.
        cross: whether decoder layers attend to an encoder.
    """

    placement: Placement
    options: Options
    norm_type: str
    decoder_norm_type: str
    encoder_depth: int
    decoder_depth: int
    encoder_layers: tuple[int, ...]
    decoder_layers: tuple[int, ...]
    cross: bool

    @classmethod
    def from_config(cls, cfg: Any, encoder_layers: int, decoder_layers: int) -> Method:
        """Read a model's flat configuration.

        Args:
            cfg: the configuration (Namespace or DictConfig).
            encoder_layers, decoder_layers: the numbers of layers it says; 0 for a missing stack.

        Raises:
            LnplaceError: an option is unknown, out of range, or contradicts another.
        """
        placement = placements.get(cfg.placement)
        options = method_options(
            placement.name, placement.options, {name: getattr(cfg, name, None) for name in METHOD_OPTIONS}
        )
        length = getattr(cfg, "qk_norm_length", None)
        placement = with_qk_norm(placement.resolved(options), getattr(cfg, "qk_norm", None), length)
        norm_type, decoder_norm_type = norm_types(cfg, encoder_layers > 0, decoder_layers > 0)
        depths, kept = trained_layers(cfg, encoder_layers, decoder_layers)
        cross = encoder_layers > 0 and decoder_layers > 0 and not getattr(cfg, "no_cross_attention", None)
        return cls(placement, options, norm_type, decoder_norm_type, *depths, *kept, cross)

    def stack(self, side: Side) -> StackSpec:
        """Return what the encoder or the decoder is built from."""
        encoder = side == "encoder"
        return StackSpec(
            self.placement,
            self.options,
            side,
            layers=list(self.encoder_layers if encoder else self.decoder_layers),
            encoder_layers=self.encoder_depth,
            decoder_layers=self.decoder_depth,
            norm_type=self.norm_type if encoder else self.decoder_norm_type,
            cross=self.cross,
        )

    @property
    def is_stock(self) -> bool:
        """Whether the model's equation is one of stock fairseq's."""
        layernorm = {self.norm_type, self.decoder_norm_type} == {"layernorm"}
        return layernorm and self.placement.name in STOCK_PLACEMENTS and not described_qk_norm(self.placement)

    def description(self) -> str:
        """Return everything that decides the equation and its constants, in one line.

        What version 0.1.0 called by the method's name alone is still called so.
        """
        first = self.placement.first_form
        own = [
            f"{name}={self.options[name]}"
            for name in self.placement.options
            if METHOD_OPTIONS[name].identifies and (name not in first or self.options[name] != first[name])
        ]
        return " ".join(
            [
                self.placement.name,
                self.norm_type,
                self.decoder_norm_type,
                f"{self.encoder_depth}+{self.decoder_depth}",
                *own,
                *described_qk_norm(self.placement),
            ]
        )


def norm_types(cfg: Any, has_encoder: bool, has_decoder: bool) -> tuple[str, str]:
    """Return the norm types of encoder and decoder.

    Raises:
        LnplaceError: a norm type is unknown, is for a missing stack, or would let a decoder see the future.
    """
    norm_type = getattr(cfg, "norm_type", None) or "layernorm"
    if norm_type not in NORM_TYPES:
        raise must_be("--norm-type", " or ".join(NORM_TYPES), norm_type)
    if getattr(cfg, "decoder_norm_type", None) and not has_decoder:
        raise LnplaceError("`--decoder-norm-type` must be left out where there is no decoder")
    if getattr(cfg, "decoder_norm_type", None) and not has_encoder:
        raise LnplaceError(
            "`--decoder-norm-type` must be left out without an encoder, where --norm-type is the decoder's"
        )
    causal = CAUSAL_NORM_TYPES
    decoder = getattr(cfg, "decoder_norm_type", None) or ("layernorm" if norm_type not in causal else norm_type)
    for option, kind, is_decoders in (
        ("--norm-type", norm_type, not has_encoder),
        ("--decoder-norm-type", decoder, has_decoder),
    ):
        if is_decoders and kind not in causal:
            raise must_be(option, " or ".join(causal) + " (a decoder must not see the future)", kind)
    return norm_type, decoder


Layers = tuple[int, ...]


def trained_layers(cfg: Any, encoder: int, decoder: int) -> tuple[tuple[int, int], tuple[Layers, Layers]]:
    """Return the depths a model was trained with, and which of its layers (from 1) are kept.

    ``cfg.trained_layers`` reads "N:1,3,5/M:1,2"; it is None for a model that was never pruned.
    """
    before = getattr(cfg, "trained_layers", None)
    if before:
        stacks = [part.split(":") for part in before.split("/")]
        depths = (int(stacks[0][0]), int(stacks[1][0]))
        layers = [tuple(int(layer) for layer in part[1].split(",") if layer) for part in stacks]
    else:
        depths = (encoder, decoder)
        layers = [tuple(range(1, depth + 1)) for depth in depths]
    for index, name in enumerate(("encoder_layers_to_keep", "decoder_layers_to_keep")):
        keep = getattr(cfg, name, None)
        # what was kept before is not cut again: a configuration is saved with its pruning done and still asked for
        if keep and not (before and len(str(keep).split(",")) == len(layers[index])):
            layers[index] = kept(name, str(keep), layers[index])
    return depths, (layers[0], layers[1])


def kept(name: str, keep: str, layers: Layers) -> Layers:
    """Return the layers at the comma-separated indices (from 0) that ``keep`` lists.

    Raises:
        LnplaceError: it is not a list of indices, or one does not exist.
    """
    parts = [part.strip() for part in keep.split(",")]
    indices = {int(part) for part in parts if part.isdecimal()}
    if len(indices) < len(parts) or max(indices) >= len(layers):
        raise must_be(flag(name), f"different comma-separated numbers below {len(layers)}", keep)
    return tuple(layers[index] for index in sorted(indices))


def trained_layers_text(method: Method) -> str | None:
    """Return ``cfg.trained_layers`` of a model; None if it has all its layers."""
    stacks = ((method.encoder_depth, method.encoder_layers), (method.decoder_depth, method.decoder_layers))
    if all(len(layers) == depth for depth, layers in stacks):
        return None
    return "/".join(f"{depth}:{','.join(map(str, layers))}" for depth, layers in stacks)


def identity(text: str) -> Tensor:
    """Return a description as the buffer that a checkpoint carries."""
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def described(buffer: Tensor) -> str:
    """Return the description that a checkpoint's buffer holds."""
    return bytes(buffer.tolist()).decode(errors="replace")


class MethodModel:
    """What every model of this package has: its method, and a checkpoint that knows it."""

    def install(self, method: Method) -> None:
        """Keep the method; unless it is one of stock fairseq's, the state dict says which it is."""
        self.method: Method = method  # declared here, as TorchScript reads the declarations of the class
        self.register_buffer(  # type: ignore[attr-defined]
            IDENTITY, None if method.is_stock else identity(method.description())
        )
        keep_freed_memory()

    def load_state_dict(
        self, state_dict: dict[str, Any], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """Load a checkpoint's weights, as fairseq does, but prune by the method's own layers.

        (fairseq's pruning by ``model_cfg`` loses every layer of a stack that is to keep all of them, and prunes the
        checkpoint of a pruned model again.)

        Raises:
            LnplaceError: it was trained with another placement, depth convention or norm type, or does not fit.
        """
        if strict or IDENTITY in state_dict:  # fairseq's EMA hands over the averaged part alone
            check_same_method(self.method, state_dict)
        try:
            return super().load_state_dict(pruned(state_dict, self.method), strict)  # type: ignore[misc]
        except RuntimeError as error:  # torch's list of every key and shape that does not fit
            first = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), str(error))
            raise LnplaceError(f"`checkpoint` must fit the model, but does not: {first}") from error


def check_same_method(method: Method, state: dict[str, Tensor]) -> None:
    """Check that a state dict was trained with this method.

    One that carries stock's names alone is Pre-LN if it has a stack's final norm, else Post-LN.

    Raises:
        LnplaceError: it was trained with another.
    """
    ours = method.placement.name if method.is_stock else method.description()
    if IDENTITY in state:
        theirs = described(state[IDENTITY])
    else:
        theirs = "preln_final" if any(key in state for key in FINAL_NORM_KEYS) else "postln"
    if ours == theirs:
        return
    first = method.placement.first_form
    of_the_first = replace(method, options={**method.options, **first}).description()
    since = ""
    if method.placement.changed and theirs == of_the_first:
        options = " ".join(flag(name) if value is True else f"{flag(name)} {value}" for name, value in first.items())
        since = f": in version 0.1.0 {method.placement.changed}; {options} is that form"
    raise LnplaceError(f"`checkpoint` must be trained as '{ours}', but is trained as '{theirs}'{since}")


def pruned(state: dict[str, Tensor], method: Method) -> dict[str, Tensor]:
    """Return the state dict of a model of all layers with those alone that ``method`` keeps, counted anew.

    A state dict of any other number of layers is left as it is, for the loader to refuse.
    """
    depths = {"encoder": method.encoder_depth, "decoder": method.decoder_depth}
    kept_layers = {"encoder": method.encoder_layers, "decoder": method.decoder_layers}
    found = {key: match for key in state if (match := LAYER.match(key))}
    there = {side: {int(match[2]) for match in found.values() if match[1] == side} for side in depths}
    result: dict[str, Tensor] = {}
    for key, tensor in state.items():
        match = found.get(key)
        if match and len(there[match[1]]) == depths[match[1]] > len(kept_layers[match[1]]):
            layer = int(match[2]) + 1
            if layer not in kept_layers[match[1]]:
                continue
            key = f"{key[: match.start(2)]}{kept_layers[match[1]].index(layer)}{key[match.end(2) :]}"
        result[key] = tensor
    return result


LAYER = re.compile(r"(encoder|decoder)\.(?:sentence_encoder\.)?layers\.(\d+)\.")
FINAL_NORM_KEYS = (
    "encoder.layer_norm.weight",
    "decoder.layer_norm.weight",
    "encoder.sentence_encoder.layer_norm.weight",
)
