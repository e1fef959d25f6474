"""What the modules of this package are built from, and the checks on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import TypedDict

from fairseq_lnplace import placements
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.layers.initialisation import INITS, initialise
from fairseq_lnplace.layers.norm import CAUSAL_NORM_TYPES, NORM_TYPES
from fairseq_lnplace.layers.spec import LayerSize, LayerSpec, StackSpec
from fairseq_lnplace.placements.options import METHOD_OPTIONS, method_options
from fairseq_lnplace.placements.qk_norm import with_qk_norm
from fairseq_lnplace.placements.spec import Placement, Side

__all__ = ["Settings", "finish", "layer_size", "layer_spec", "on_device", "stack_spec"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class Settings(TypedDict, total=False):
    """What every module of this package takes by keyword, beside its own arguments.

    Attributes:
        placement: a name of ``lnplace list``, or a placement of your own ("preln_final").
        dim_feedforward: the width of the feed-forward (2048).
        dropout: of the branches (0.1).
        attention_dropout, activation_dropout: of the attention weights and the feed-forward's hidden layer (as
            ``dropout``, which is torch's convention).
        activation: "relu", "gelu" or a function ("relu").
        norm_type: the kind of all norms ("layernorm"); see :class:`~fairseq_lnplace.layers.norm.Norm`.
        qk_norm, qk_norm_length: a norm of queries and keys beside any placement (None); see :func:`.with_qk_norm`.
        layer_norm_eps: what the norms add to the variance (1e-5).
        options: the placement's own options by name; ``lnplace show PLACEMENT`` tells them.
        init: "xavier", "xavier_normal" or "fairseq"; see :func:`~fairseq_lnplace.layers.initialisation.initialise`.
        device, dtype: of the weights, as in ``torch.nn``.
    """

    placement: str | Placement
    dim_feedforward: int
    dropout: float
    attention_dropout: float
    activation_dropout: float
    activation: str | Callable[[Tensor], Tensor]
    norm_type: str
    qk_norm: str | None
    qk_norm_length: int | None
    layer_norm_eps: float
    options: Mapping[str, Any]
    init: str
    device: torch.device | str | None
    dtype: torch.dtype | None


def stack_spec(side: Side, encoder_layers: int, decoder_layers: int, settings: Settings) -> StackSpec:
    """Return what a stack is built from, in a model of so many layers; 0 for a missing stack.

    Raises:
        LnplaceError: the placement, the norm type or an option is unknown or out of range.
    """
    if unknown := settings.keys() - Settings.__annotations__.keys():
        raise must_be(min(unknown), f"left out, as the settings are {', '.join(Settings.__annotations__)}", "given")
    for each, number in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        fewest = int(each == side)
        if number < fewest:
            raise must_be(f"{each} layers", f"at least {fewest}", number)
    given = settings.get("placement", "preln_final")
    if isinstance(given, str) and given not in placements.names():
        raise must_be("placement", f"one of {', '.join(placements.names())}", given)
    placement = placements.get(given) if isinstance(given, str) else given
    options = own_options(placement, settings.get("options", {}))
    norm_type = settings.get("norm_type", "layernorm")
    allowed = NORM_TYPES if side == "encoder" else CAUSAL_NORM_TYPES
    if norm_type not in allowed:
        future = "" if side == "encoder" else " (a decoder must not see the future)"
        raise must_be("norm_type", f"{' or '.join(allowed)}{future}", norm_type)
    epsilon = settings.get("layer_norm_eps", 1e-5)
    if not epsilon >= 0:  # nan is neither
        raise must_be("layer_norm_eps", "at least 0", epsilon)
    depth = encoder_layers if side == "encoder" else decoder_layers
    return StackSpec(
        normalised(placement.resolved(options), settings),
        options,
        side,
        layers=list(range(1, depth + 1)),
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        norm_type=norm_type,
        cross=encoder_layers > 0 and decoder_layers > 0,
        norm_eps=epsilon,
    )


def normalised(placement: Placement, settings: Settings) -> Placement:
    """Return a placement with the norms of queries and keys that the settings ask for.

    Raises:
        LnplaceError: there are no such norms, or the placement has its own.
    """
    try:
        return with_qk_norm(placement, settings.get("qk_norm"), settings.get("qk_norm_length"))
    except LnplaceError as error:  # which names the commands' option
        names = str(error).replace("--qk-norm-length", "qk_norm_length").replace("--qk-norm", "qk_norm")
        raise LnplaceError(names) from None


def own_options(placement: Placement, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a placement's own options, defaults filled in.

    Raises:
        LnplaceError: one is unknown, another placement's, of another type, or out of range.
    """
    for name, value in given.items():
        if name not in METHOD_OPTIONS:
            raise must_be("options", f"of {', '.join(METHOD_OPTIONS)}", name)
        kind = METHOD_OPTIONS[name].kind
        if value is not None and not isinstance(value, (int, float) if kind is float else kind):
            raise must_be(name, f"a {kind.__name__}", repr(value))
    try:
        return method_options(placement.name, placement.options, given)
    except LnplaceError as error:  # which names the commands' option
        sentence = str(error)
        for name in given:
            sentence = sentence.replace("--" + name.replace("_", "-"), name)
        raise LnplaceError(sentence) from None


def layer_size(d_model: int, nhead: int, settings: Settings, memory_dim: int = 0) -> LayerSize:
    """Return the sizes of a layer; ``memory_dim`` as of :class:`LayerSize`.

    Raises:
        LnplaceError: one is out of range.
    """
    ffn_dim = settings.get("dim_feedforward", 2048)
    for name, value in (("d_model", d_model), ("nhead", nhead), ("dim_feedforward", ffn_dim)):
        if value < 1:
            raise must_be(name, "at least 1", value)
    if memory_dim < 0:
        raise must_be("memory_dim", "at least 1", memory_dim)
    if d_model % nhead:
        raise must_be("nhead", f"a divisor of d_model {d_model}", nhead)
    dropout = settings.get("dropout", 0.1)
    attention_dropout = settings.get("attention_dropout", dropout)
    activation_dropout = settings.get("activation_dropout", dropout)
    for name, p in (
        ("dropout", dropout),
        ("attention_dropout", attention_dropout),
        ("activation_dropout", activation_dropout),
    ):
        if not 0 <= p <= 1:
            raise must_be(name, "between 0 and 1", p)
    activation = settings.get("activation", "relu")
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            raise must_be("activation", f"{' or '.join(ACTIVATIONS)} or a function", activation)
        activation = ACTIVATIONS[activation]
    return LayerSize(
        d_model,
        ffn_dim,
        nhead,
        memory_dim=memory_dim,
        dropout=dropout,
        attention_dropout=attention_dropout,
        activation_dropout=activation_dropout,
        activation=activation,
    )


def layer_spec(spec: StackSpec, layer: int) -> LayerSpec:
    """Return what the layer of this number, from 1, of a stack is built from.

    Raises:
        LnplaceError: there is no such layer.
    """
    layers = spec.layers()
    if not 1 <= layer <= len(layers):
        raise must_be("layer", f"from 1 to layers, {len(layers)}", layer)
    return layers[layer - 1]


def on_device(settings: Settings) -> AbstractContextManager[object]:
    """Return a context in which weights are made on the settings' device."""
    device = settings.get("device")
    return nullcontext() if device is None else torch.device(device)


def finish(module: nn.Module, settings: Settings) -> None:
    """Initialise a module's layers, and turn it to the type that the settings ask for.

    Raises:
        LnplaceError: there is no such initialisation.
    """
    init = settings.get("init", "xavier")
    if init not in INITS:
        raise must_be("init", " or ".join(INITS), init)
    initialise(module, init)
    module.to(device=settings.get("device"), dtype=settings.get("dtype"))  # a spec's own module was made elsewhere
