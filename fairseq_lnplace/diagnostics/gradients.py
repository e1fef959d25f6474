"""Norms of gradients by matrix, as Xiong et al. 2020 (2002.04745), section 3.4, plot them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_lnplace.diagnostics.subjects import Subject, loss_of
from fairseq_lnplace.diagnostics.tables import Row
from fairseq_lnplace.plugin.models.method import LAYER

__all__ = ["gradient_rows", "matrices_of"]


def matrices_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters with two or more axes by name, a shared one once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.dim() > 1}


def gradient_rows(subject: Subject, samples: Sequence[dict[str, Any]]) -> list[Row]:
    """Return one row a matrix, in the model's order.

    ``norm_of_mean`` is ‖mean_b g_b‖_F, the paper's quantity, and ``mean_of_norms`` mean_b ‖g_b‖_F, over the batches b;
    both are None where nothing is learned: frozen, or without a gradient in every batch. ``side`` and ``layer`` (from
    1) are None outside of the layers.
    """
    matrices = matrices_of(subject.model)
    total: dict[str, Tensor] = {}
    norms = dict.fromkeys(matrices, 0.0)
    for sample in samples:
        subject.model.zero_grad(set_to_none=True)
        loss_of(subject, sample).backward()  # type: ignore[no-untyped-call]
        for name, parameter in matrices.items():
            if parameter.grad is not None:
                gradient = parameter.grad.detach()
                total[name] = total[name].add_(gradient) if name in total else gradient.clone()
                norms[name] += float(torch.linalg.vector_norm(gradient))
    subject.model.zero_grad(set_to_none=True)
    return [
        {
            **place_of(name),
            "norm_of_mean": float(torch.linalg.vector_norm(total[name])) / len(samples) if name in total else None,
            "mean_of_norms": norms[name] / len(samples) if name in total else None,
        }
        for name in matrices
    ]


def place_of(name: str) -> Row:
    """Return the stack, the layer from 1, and the matrix that a parameter's name tells."""
    matrix = name.removesuffix(".weight")
    if found := LAYER.match(name):
        return {"side": found[1], "layer": int(found[2]) + 1, "matrix": matrix[found.end() :]}
    return {"side": None, "layer": None, "matrix": matrix}
