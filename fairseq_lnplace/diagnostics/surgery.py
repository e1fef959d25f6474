"""Models with a layer left out, two layers side by side, or other weights, for the length of a ``with`` block."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_lnplace.layers.initialisation import layers_of
from fairseq_lnplace.layers.transformer_layer import TransformerDecoderLayer, TransformerLayer

__all__ = ["borrowed_weights", "merged", "perturb", "removed"]

# what a layer returns, by the names under which it reads the same; the decoder's attention weights are not read
ENCODER_STREAMS = ("x", "second", "scores")
DECODER_STREAMS = ("x", None, "second", "self_scores", "cross_scores")

Streams = dict[str, Tensor | None]


def streams_of(layer: TransformerLayer) -> tuple[str | None, ...]:
    """Return the names of what the layer returns."""
    return DECODER_STREAMS if isinstance(layer, TransformerDecoderLayer) else ENCODER_STREAMS


def read(layer: TransformerLayer, args: tuple[Any, ...]) -> Streams:
    """Return the streams that a layer is called with."""
    given = inspect.signature(type(layer).forward).bind(layer, *args).arguments
    return {name: given.get(name) for name in streams_of(layer) if name}


def returned(layer: TransformerLayer, result: tuple[Any, ...]) -> Streams:
    """Return the streams that a layer returns."""
    return {name: value for name, value in zip(streams_of(layer), result, strict=True) if name}


def replaced(layer: TransformerLayer, result: tuple[Any, ...], streams: Streams) -> tuple[Any, ...]:
    """Return a layer's result with other streams."""
    return tuple(streams[name] if name else old for name, old in zip(streams_of(layer), result, strict=True))


@contextmanager
def removed(layer: TransformerLayer) -> Iterator[None]:
    """Let a layer hand on what it reads."""

    def hook(module: TransformerLayer, args: tuple[Any, ...], result: tuple[Any, ...]) -> tuple[Any, ...]:
        return replaced(module, result, read(module, args))

    handle = layer.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def merged(lower: TransformerLayer, upper: TransformerLayer) -> Iterator[None]:
    """Let two neighbouring layers read the same, x, and add what each makes of it: x + (lower(x) - x) + (upper(x) - x).

    In Pre-LN this is the essay's one layer with both branches side by side. A second stream and handed-on scores are
    added up likewise.
    """
    before: Streams = {}
    between: Streams = {}

    def lower_hook(module: TransformerLayer, args: tuple[Any, ...], result: tuple[Any, ...]) -> None:
        before.update(read(module, args))
        between.update(returned(module, result))

    def upper_input(module: TransformerLayer, args: tuple[Any, ...]) -> tuple[Any, ...]:
        bound = inspect.signature(type(module).forward).bind(module, *args)
        bound.arguments.update(before)
        return bound.args[1:]

    def upper_hook(module: TransformerLayer, args: tuple[Any, ...], result: tuple[Any, ...]) -> tuple[Any, ...]:
        after = returned(module, result)
        return replaced(module, result, {name: together(before[name], between[name], after[name]) for name in after})

    handles = [
        lower.register_forward_hook(lower_hook),
        upper.register_forward_pre_hook(upper_input),
        upper.register_forward_hook(upper_hook),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def together(before: Tensor | None, lower: Tensor | None, upper: Tensor | None) -> Tensor | None:
    """Return before + (lower - before) + (upper - before); an absent stream counts as 0."""
    if lower is None or upper is None:
        return upper
    return lower + upper if before is None else lower + upper - before


@contextmanager
def borrowed_weights(model: nn.Module, change: Callable[[], None]) -> Iterator[None]:
    """Let ``change`` alter the parameters; they are what they were afterwards."""
    kept = [parameter.detach().clone() for parameter in model.parameters()]
    try:
        change()
        yield
    finally:
        with torch.no_grad():
            for parameter, old in zip(model.parameters(), kept, strict=True):
                parameter.copy_(old)


@torch.no_grad()
def perturb(model: nn.Module, size: float, seed: int) -> None:
    """Add Gaussian noise to every matrix of the layers, ``size`` times the matrix' root mean square."""
    draw = torch.Generator().manual_seed(seed)
    for layer in layers_of(model):
        for matrix in (parameter for parameter in layer.parameters() if parameter.dim() > 1):
            noise = torch.randn(matrix.shape, generator=draw).to(matrix)
            matrix.add_(noise * (size * matrix.square().mean().sqrt()))
