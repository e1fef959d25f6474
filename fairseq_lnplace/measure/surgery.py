"""Models without dropout, with a layer left out, two side by side, or other weights, for the length of a ``with``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_lnplace.layers.streams import Streams
from fairseq_lnplace.measure.handed_on import called_with, read, replaced, returned

__all__ = ["borrowed_weights", "evaluated", "merged", "perturb", "removed"]

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Switch dropout off, and gradients, for a while."""
    modes = [(module, module.training) for module in model.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    # torch's encoder would hand nested tensors on, of the real positions alone
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        model.train(modes[0][1])
        for module, training in modes:
            module.training = training


@contextmanager
def removed(layer: nn.Module) -> Iterator[None]:
    """Let a layer hand on what it reads."""

    def hook(module: nn.Module, args: Args, kwargs: Kwargs, result: Any) -> Any:
        return replaced(result, read(args, kwargs))

    with layer.register_forward_hook(hook, with_kwargs=True):
        yield


@contextmanager
def merged(lower: nn.Module, upper: nn.Module) -> Iterator[None]:
    """Let two neighbouring layers read the same, x, and add what each makes of it: x + (lower(x) - x) + (upper(x) - x).

    In Pre-LN this is the essay's one layer with both branches side by side. A second stream and handed-on scores are
    added up likewise.
    """
    before: list[Streams] = []
    between: list[Streams] = []

    def lower_hook(module: nn.Module, args: Args, kwargs: Kwargs, result: Any) -> None:
        before[:], between[:] = [read(args, kwargs)], [returned(result)]

    def upper_input(module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        return called_with(before[0], args, kwargs)

    def upper_hook(module: nn.Module, args: Args, kwargs: Kwargs, result: Any) -> Any:
        below, one, other = before[0], between[0], returned(result)
        summed = Streams(
            one.x + other.x - below.x,
            together(below.second, one.second, other.second),
            together(below.self_scores, one.self_scores, other.self_scores),
            cross_scores=together(below.cross_scores, one.cross_scores, other.cross_scores),
        )
        return replaced(result, summed)

    with ExitStack() as hooks:
        hooks.enter_context(lower.register_forward_hook(lower_hook, with_kwargs=True))
        hooks.enter_context(upper.register_forward_pre_hook(upper_input, with_kwargs=True))
        hooks.enter_context(upper.register_forward_hook(upper_hook, with_kwargs=True))
        yield


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
def perturb(layers: Iterable[nn.Module], size: float, seed: int) -> None:
    """Add Gaussian noise to every matrix of the layers, ``size`` times the matrix' root mean square."""
    draw = torch.Generator().manual_seed(seed)
    for layer in layers:
        for matrix in (parameter for parameter in layer.parameters() if parameter.dim() > 1):
            noise = torch.randn(matrix.shape, generator=draw).to(matrix)
            matrix.add_(noise * (size * matrix.square().mean().sqrt()))
