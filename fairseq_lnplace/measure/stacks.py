"""Which modules of a model are its layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import nn

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.layers.initialisation import layers_of

__all__ = ["stacks_of"]


def stacks_of(model: nn.Module, layers: str | Sequence[str] | None = None) -> Mapping[str, Sequence[nn.Module]]:
    """Return the layers of each stack, from the bottom.

    Args:
        model: whose they are.
        layers: what the layers are called, such as "encoder.layers.*", where * is the number of a layer: one pattern
            or several, in the order of execution. A stack is called by what stands before the star. Without patterns,
            this package's own layers, whose stacks are called encoder and decoder.

    Raises:
        LnplaceError: a pattern fits no layers; or there is none, and the layers are not this package's, or of two
            encoders or decoders.
    """
    if layers is None:
        return own_stacks(model)
    patterns = [layers] if isinstance(layers, str) else layers
    return {pattern.partition("*")[0].rstrip(".") or "layers": named(model, pattern) for pattern in patterns}


def own_stacks(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Return our own layers by the side that each knows."""
    stacks: dict[str, list[nn.Module]] = {}
    numbers: dict[str, list[int]] = {}
    for layer in layers_of(model):
        stacks.setdefault(layer.spec.position.side, []).append(layer)
        numbers.setdefault(layer.spec.position.side, []).append(layer.spec.position.layer)
    several = any(len(set(each)) < len(each) for each in numbers.values())
    if several or not stacks:
        expected = f"given where there is not one encoder and one decoder of this package's, as {suggestions(model)}"
        raise must_be("layers", expected, None)
    return stacks


def named(model: nn.Module, pattern: str) -> list[nn.Module]:
    """Return the modules with names of this pattern, by the number that stands for the star."""
    star = re.compile(re.escape(pattern).replace(r"\*", r"(\d+)", 1))
    found = {
        int(match[1]): module
        for name, module in model.named_modules(remove_duplicate=False)
        if "*" in pattern and (match := star.fullmatch(name))
    }
    if not found:
        raise must_be("layers", f"what the model's layers are called, as {suggestions(model)}", pattern)
    return [found[number] for number in sorted(found)]


def suggestions(model: nn.Module) -> str:
    """Return the patterns of the model's lists of modules, for a message."""
    lists = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module)]
    return " or ".join(f"{name}.*".lstrip(".") for name in lists) or "encoder.layers.* (the model has no ModuleList)"
