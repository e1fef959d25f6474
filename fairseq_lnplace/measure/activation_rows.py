"""Sizes of hidden states by layer, and the lines of Lemma 2 of Xiong et al. 2020 (2002.04745) beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_lnplace.measure.subject import Measurable, Row
from fairseq_lnplace.measure.trace import Trace, trace

__all__ = ["POST_INNER", "activation_rows", "outside", "pre_bounds"]

POST_INNER = 1.5  # E‖x^{post,5}‖²/d, at every layer


def pre_bounds(layer: int) -> tuple[float, float]:
    """Return between which numbers E‖x_l‖²/d of Pre-LN lies.

    The feed-forward adds 1/2 and attention between 0 and 1. The lemma starts at 1, has square matrices and no
    cross-attention.
    """
    return 1 + layer / 2, 1 + 3 * layer / 2


def outside(squares: Tensor, epsilon: float) -> float:
    """Return δ: the share of the ``squares`` that differ from their mean by more than ``epsilon`` times it."""
    mean = squares.mean()
    return float(((squares - mean).abs() > epsilon * mean).double().mean())


def activation_rows(subject: Measurable, batches: Sequence[Any], epsilon: float) -> list[Row]:
    """Return one row for each state x_0 ... x_L of each stack, over the tokens of all batches.

    - ``stream``: E‖x_l‖²/d; ``growth`` over the layer before; ``variance`` over features, averaged.
    - ``inner``: E‖·‖²/d of the last sum of the layer, before a norm on it (x^{post,5}; the stream itself in Pre-LN).
    - ``delta``: the share of tokens whose ‖·‖² of that sum is more than ``epsilon`` from the mean, relatively; of x_0
      in layer 0.

    Raises:
        LnplaceError: a layer hands on no tensor, or does not run once.
    """
    traces = [trace(subject, batch) for batch in batches]
    rows: list[Row] = []
    for side, states in traces[0].states.items():
        before = None
        for layer in range(len(states)):
            state = torch.cat([found.states[side][layer] for found in traces])
            summed = _last_sums(traces, side, layer) if layer else state
            squares = summed.square().sum(-1)
            stream = float(state.square().mean())
            rows.append(
                {
                    "side": side,
                    "layer": layer,
                    "stream": stream,
                    "growth": stream / before if before else None,
                    "variance": float(state.var(-1, correction=0).mean()),
                    "inner": float(summed.square().mean()) if layer else None,
                    "delta": outside(squares, epsilon),
                }
            )
            before = stream
    return rows


def _last_sums(traces: Sequence[Trace], side: str, layer: int) -> Tensor:
    """Return the last sum of a layer (from 1), of all tokens."""
    return torch.cat([found.layer(side, layer - 1)[-1].summed for found in traces])
