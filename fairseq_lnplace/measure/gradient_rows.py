"""Norms of gradients by matrix, as Xiong et al. 2020 (2002.04745), section 3.4, plot them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.measure.subject import Measurable, Row

__all__ = ["gradient_rows", "loss_of", "own_gradients"]


def gradient_rows(subject: Measurable, batches: Sequence[Any]) -> list[Row]:
    """Return one row a matrix, in the model's order; a shared one once.

    ``norm_of_mean`` is ‖mean_b g_b‖_F, the paper's quantity, and ``mean_of_norms`` mean_b ‖g_b‖_F, over the batches b;
    both are None where nothing is learned: frozen, or without a gradient in every batch. ``side`` and ``layer`` (from
    1) are None outside of the layers.

    Raises:
        LnplaceError: the subject has no loss.
    """
    matrices = {name: parameter for name, parameter in subject.model.named_parameters() if parameter.dim() > 1}
    total: dict[str, Tensor] = {}
    norms = dict.fromkeys(matrices, 0.0)
    for batch in batches:
        with own_gradients(subject.model):
            loss_of(subject, batch).backward()  # type: ignore[no-untyped-call]
            for name, parameter in matrices.items():
                if parameter.grad is not None:
                    gradient = parameter.grad.detach()
                    total[name] = total[name].add_(gradient) if name in total else gradient.clone()
                    norms[name] += float(torch.linalg.vector_norm(gradient))
    places = places_of(subject)
    return [
        {
            **place_of(name, places),
            "norm_of_mean": float(torch.linalg.vector_norm(total[name])) / len(batches) if name in total else None,
            "mean_of_norms": norms[name] / len(batches) if name in total else None,
        }
        for name in matrices
    ]


def loss_of(subject: Measurable, batch: Any) -> Tensor:
    """Return the loss of a batch, shape ().

    Raises:
        LnplaceError: the subject has none.
    """
    loss = subject.loss(batch)
    if loss is None:
        raise LnplaceError("`loss` must be given where gradients are measured")
    return loss


@contextmanager
def own_gradients(model: nn.Module) -> Iterator[None]:
    """Let the model have no gradients at first, and afterwards those that it had before."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        model.zero_grad(set_to_none=True)
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


def places_of(subject: Measurable) -> dict[str, tuple[str, int]]:
    """Return the stack, and the layer from 1, by the beginning of the names of a layer's parameters."""
    names = {module: f"{name}." for name, module in subject.model.named_modules()}
    stacks = subject.stacks.items()
    return {names[layer]: (side, number) for side, layers in stacks for number, layer in enumerate(layers, 1)}


def place_of(name: str, places: dict[str, tuple[str, int]]) -> Row:
    """Return the stack, the layer, and the matrix that a parameter's name tells."""
    start = next((start for start in places if name.startswith(start)), "")
    side, layer = places.get(start, (None, None))
    return {"side": side, "layer": layer, "matrix": name.removeprefix(start).removesuffix(".weight")}
