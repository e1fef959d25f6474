"""What passes through a model's layers in one forward, read by hooks that are gone afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_lnplace.diagnostics.subjects import Subject, loss_of
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.layers.initialisation import layers_of
from fairseq_lnplace.layers.residual import Residual
from fairseq_lnplace.layers.transformer_layer import TransformerLayer

__all__ = ["Passage", "Trace", "evaluated", "real_positions", "stacks_of", "tapped", "trace"]

BRANCHES = {"self_attn_layer_norm": "SA", "encoder_attn_layer_norm": "CA", "final_layer_norm": "FF"}


@dataclass(frozen=True)
class Passage:
    """What passed one residual connection, at the N real positions of a batch; tensors are N x C.

    Attributes:
        side: encoder or decoder.
        layer: from 1, as the model was trained.
        branch: SA, CA or FF.
        skip: the stream as it is added: scaled, and with the layer's input where the method adds that too.
        added: the branch as it is added: normalised and scaled.
        after: the stream that leaves.
    """

    side: str
    layer: int
    branch: str
    skip: Tensor
    added: Tensor
    after: Tensor

    @property
    def summed(self) -> Tensor:
        """The sum, before a norm on it; Post-LN's x^{post,5} after the feed-forward."""
        return self.skip + self.added


@dataclass
class Trace:
    """What passed through a model.

    Attributes:
        states: by stack, the stream x_0 ... x_L: what each layer reads, and what the last one gives; N x C each.
        passages: every residual connection in order of execution.
        loss: of the batch, nats a token.
    """

    states: dict[str, list[Tensor]] = field(default_factory=dict)
    passages: list[Passage] = field(default_factory=list)
    loss: float = 0.0

    def layer(self, side: str, index: int) -> list[Passage]:
        """Return the passages of a stack's layer, counted from 0 among those that there are."""
        numbers = list(dict.fromkeys(passage.layer for passage in self.passages if passage.side == side))
        return [passage for passage in self.passages if (passage.side, passage.layer) == (side, numbers[index])]


def stacks_of(model: nn.Module) -> dict[str, list[TransformerLayer]]:
    """Return the layers of each stack, from the bottom, the encoder first.

    Raises:
        LnplaceError: they are not this package's.
    """
    stacks: dict[str, list[TransformerLayer]] = {}
    for layer in layers_of(model):
        stacks.setdefault(layer.spec.position.side, []).append(layer)
    if not stacks:
        raise LnplaceError("`--arch` must be of this package's models, whose layers can be looked into")
    return stacks


def real_positions(subject: Subject, sample: dict[str, Any], side: str) -> Tensor:
    """Return which positions of what a stack reads are no padding, B x T."""
    inputs = sample["net_input"]
    tokens: Tensor = (
        inputs.get("prev_output_tokens", inputs["src_tokens"]) if side == "decoder" else inputs["src_tokens"]
    )
    return tokens.ne(subject.criterion.padding_idx)


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Switch dropout off, and gradients, for a while."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


@contextmanager
def tapped(module: nn.Module, method: str, seen: Callable[[tuple[Any, ...], Any], None]) -> Iterator[None]:
    """Let ``seen`` have the arguments and the result of each call of a method, for a while."""
    original, before = getattr(module, method), vars(module).get(method)

    def spy(*args: Any) -> Any:
        result = original(*args)
        seen(args, result)
        return result

    vars(module)[method] = spy  # before the class's own
    try:
        yield
    finally:
        if before is None:
            del vars(module)[method]
        else:
            vars(module)[method] = before


def trace(subject: Subject, sample: dict[str, Any]) -> Trace:
    """Run one batch without dropout and return what passed through the layers.

    Raises:
        LnplaceError: the layers are not this package's.
    """
    found = Trace()
    with ExitStack() as hooks:
        hooks.enter_context(evaluated(subject.model))
        for side, layers in stacks_of(subject.model).items():
            real = real_positions(subject, sample, side)
            for layer in layers:
                hooks.enter_context(_streams(layer, found.states.setdefault(side, []), real, layer is layers[-1]))
                for name in layer.norm_names():
                    if getattr(layer, name) is not None:
                        hooks.enter_context(_passages(layer, name, found.passages, real))
        found.loss = float(loss_of(subject, sample))
    return found


@contextmanager
def _streams(layer: TransformerLayer, states: list[Tensor], real: Tensor, last: bool) -> Iterator[None]:
    """Append what the layer reads to the states, and after the last layer what it gives."""

    def hook(module: nn.Module, args: tuple[Tensor, ...], result: tuple[Tensor, ...]) -> None:
        states.append(args[0][real])
        if last:
            states.append(result[0][real])

    handle = layer.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _passages(layer: TransformerLayer, name: str, passages: list[Passage], real: Tensor) -> Iterator[None]:
    """Append what passes one of the layer's residual connections."""
    residual: Residual = getattr(layer, name)
    position = layer.spec.position
    parts: dict[str, Tensor] = {}

    def skipped(args: tuple[Any, ...], result: Tensor) -> None:
        parts["skip"] = result

    def normed(args: tuple[Any, ...], result: Tensor) -> None:
        parts["normed"] = args[0]

    def left(args: tuple[Any, ...], result: tuple[Tensor, Tensor | None]) -> None:
        _, _, _, layer_input, layer_scale, _ = args
        after = result[0]
        summed = parts["normed"] if residual.add_norm or residual.second_add_norm is not None else after
        if residual.gate:
            summed = summed / (1 - nn.functional.silu(layer_scale))
        skip = parts["skip"] + layer_input if residual.layer_skip else parts["skip"]
        tensors = (tensor[real] for tensor in (skip, summed - skip, after))
        passages.append(Passage(position.side, position.layer, BRANCHES[name], *tensors))

    with ExitStack() as hooks:
        hooks.enter_context(tapped(residual, "skip", skipped))
        if residual.second_add_norm is not None:
            hooks.enter_context(tapped(residual.second_add_norm, "normalize", normed))
        else:
            hooks.enter_context(tapped(residual, "normalize", normed))
        hooks.enter_context(tapped(residual, "leave", left))
        yield
