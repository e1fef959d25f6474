"""Where a value or a weight of a model belongs: to a part of a layer, or to what stands around the layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from fairseq_lnplace.layers.initialisation import layers_of
from fairseq_lnplace.layers.residual import Residual
from fairseq_lnplace.layers.stack import PlacedStack
from fairseq_lnplace.layers.transformer_layer import TransformerLayer

__all__ = ["CRITERION", "Place", "connections", "parameters_by_place", "stacks"]

# by the first part of a parameter's name inside its layer; what a layer's parts share is its "scale"
IN_LAYER = {
    **dict.fromkeys(("self_attn", "self_attn_layer_norm"), "SA"),
    **dict.fromkeys(("encoder_attn", "encoder_attn_layer_norm"), "CA"),
    **dict.fromkeys(("fc1", "ffn_layernorm", "fc2", "final_layer_norm"), "FF"),
}
# by the first part inside the stack or the model; whatever else there is goes by its own name
AROUND = {
    **dict.fromkeys(("embed_tokens", "embed_positions", "project_in_dim", "quant_noise"), "embedding"),
    **dict.fromkeys(("layernorm_embedding", "embedding_norm"), "embedding"),
    "layer_norm": "final_norm",
    **dict.fromkeys(("output_projection", "project_out_dim", "adaptive_softmax", "lm_head"), "output"),
}
WORDS = {"SA": "self-attention", "CA": "cross-attention", "FF": "feed-forward"}


@dataclass(frozen=True)
class Place:
    """A part of a model.

    Attributes:
        side: encoder or decoder; None for what belongs to neither.
        layer: from 1, as the model was trained; None outside of the layers.
        part: SA, CA, FF or scale (what the parts share) of a layer; embedding, final_norm, output, ... outside.
    """

    side: str | None
    layer: int | None
    part: str

    def __str__(self) -> str:
        """Return it in words, as "decoder layer 3's feed-forward"."""
        part = WORDS.get(self.part, self.part.replace("_", " "))
        if self.layer is not None:
            return f"{self.side} layer {self.layer}'s {part}"
        return f"the {self.side}'s {part}" if self.side else f"the {part}"


CRITERION = Place(None, None, "criterion")


def parameters_by_place(model: nn.Module, criterion: nn.Module) -> dict[Place, list[nn.Parameter]]:
    """Return every parameter of a training once, frozen ones too; one that is shared stands where it comes first."""
    layers = {f"{name}.": each for name, each in model.named_modules() if isinstance(each, TransformerLayer)}
    places: dict[Place, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        start = next((start for start in layers if name.startswith(start)), "")
        place = place_in(layers[start], name.removeprefix(start)) if start else place_around(name)
        places.setdefault(place, []).append(parameter)
    if own := list(criterion.parameters()):
        places[CRITERION] = own
    return places


def place_in(layer: TransformerLayer, name: str) -> Place:
    """Return the place of a layer's parameter with this name."""
    position = layer.spec.position
    return Place(position.side, position.layer, IN_LAYER.get(name.split(".")[0], "scale"))


def place_around(name: str) -> Place:
    """Return the place of the parameter with this name in the model, outside of the layers."""
    first, *rest = name.replace("sentence_encoder.", "").split(".")
    side = first if first in ("encoder", "decoder") else None
    part = rest[0] if side else first
    return Place(side, None, AROUND.get(part, part))


def connections(model: nn.Module) -> Iterator[tuple[Place, Residual]]:
    """Yield the residual connections of every layer, whose ``leave`` gives the stream after SA, CA or FF."""
    for layer in layers_of(model):
        for name in layer.norm_names():
            yield place_in(layer, name), getattr(layer, name)


def stacks(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the stacks with their sides; ``begin`` gives the stream before the first layer, ``end`` the output."""
    for module in model.modules():
        if isinstance(module, PlacedStack):
            yield module.spec.positions[0].side, module
