"""How much of a model's depth counts: steps, angles, and what becomes of the model when layers are merged or removed.

Sources: Su Jianlin, articles 9009 and 8747 (steps and merging in Pre-Norm); Men et al. 2024, ShortGPT (Block
Influence); Sun et al. 2025, 2502.05795 (angular distance); Liu et al. 2020, 2004.08249 (dependency, output change);
Xie et al. 2023, 2304.14802 (collapse); Wang et al. 2022, 2203.00555 (model update).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, layer_norm

from fairseq_lnplace.measure.gradient_rows import loss_of, own_gradients
from fairseq_lnplace.measure.subject import Measurable, Row
from fairseq_lnplace.measure.surgery import borrowed_weights, evaluated, merged, perturb, removed
from fairseq_lnplace.measure.trace import Trace, trace

__all__ = ["collapse_at_start", "depth_tables", "distance", "effective_depth"]

PERTURBATION = 0.01  # of a matrix' root mean square
NATS = math.log(2)  # in one bit


def distance(x: Tensor, y: Tensor) -> float:
    """Return the angle between the rows of two N x C tensors over π, averaged."""
    return float(torch.arccos(cosine_similarity(x.double(), y.double(), dim=-1).clamp(-1, 1)).mean()) / math.pi


def collapse_at_start(terms: int) -> float:
    """Return Var(LN(x_k) - LN(x_{k-1})) if x_k is a sum of k = ``terms`` uncorrelated terms of one size: about 1/k."""
    return 2 / (terms + math.sqrt(terms**2 - terms))


def effective_depth(merge_errors: Sequence[float]) -> float:
    """Return 1 + Σ min(1, e_t) over the merge errors e_t of layers 2 ... L.

    A stack all of whose layers might as well read the same has 1; one in which every layer makes something else of
    what the layer before it adds has L.
    """
    return 1 + sum(min(1.0, error) for error in merge_errors)


def depth_tables(subject: Measurable, batches: Sequence[Any], lr: float) -> dict[str, list[Row]]:
    """Return the measurements of one model, without dropout.

    - ``layers``, by layer t from 1: ``step`` ‖x_t - x_{t-1}‖/‖x_{t-1}‖ and ``cosine`` of the two, averaged over tokens;
      ``influence`` 1 - cosine; ``merge_error`` of what the layer adds when it reads what the layer before it reads,
      relative to what it adds otherwise (root mean squares); ``loss_merged`` with the layer before it and
      ``loss_removed``, in bits a token.
    - ``sublayers``, by sub-layer k from 1: ``dependency`` E‖branch‖²/(E‖branch‖² + E‖skip‖²), Admin's β_{k,k}² for
      uncorrelated terms; ``collapse`` Var(LN(x_k) - LN(x_{k-1})).
    - ``distances``: ``distance`` between what layers l and l+n read (layer L+1 reads the stack's output).
    - ``stacks``: ``effective_depth``; of the whole model ``loss`` in bits a token, ``output_change``
      E‖ŷ* - ŷ‖²/(d ε²) of the normalised output under noise of relative size ε on every matrix, and ``model_update``,
      the root mean square change of the output after one step of Adam with ``lr``.

    Losses, and the update, are None where no loss is known.

    Raises:
        LnplaceError: a layer hands on no tensor, or does not run once.
    """
    traces = [trace(subject, batch) for batch in batches]
    loss = _mean_loss(traces)
    whole = {
        "loss": loss,
        "output_change": _output_change(subject, batches),
        "model_update": None if loss is None else _update(subject, batches, lr),
    }
    tables: dict[str, list[Row]] = {"layers": [], "sublayers": [], "distances": [], "stacks": []}
    for side, layers in subject.stacks.items():
        states = [torch.cat(parts) for parts in zip(*(found.states[side] for found in traces), strict=True)]
        rows = [_step(before, after) for before, after in pairwise(states)]
        for index, row in enumerate(rows):
            with removed(layers[index]):
                row["loss_removed"] = _mean_loss([trace(subject, batch) for batch in batches])
            row["merge_error"] = row["loss_merged"] = None
            if index:
                with merged(layers[index - 1], layers[index]):
                    together = [trace(subject, batch) for batch in batches]
                row["loss_merged"] = _mean_loss(together)
                row["merge_error"] = _relative(_added(together, side, index), _added(traces, side, index))
        tables["layers"] += [{"side": side, "layer": layer, **row} for layer, row in enumerate(rows, 1)]
        tables["sublayers"] += _sublayers(traces, side, states[0])
        tables["distances"] += [
            {"side": side, "layer": low + 1, "n": high - low, "distance": distance(states[low], states[high])}
            for low in range(len(states))
            for high in range(low + 1, len(states))
        ]
        errors = [row["merge_error"] for row in rows[1:]]
        tables["stacks"].append(
            {"side": side, "depth": len(layers), "effective_depth": effective_depth(errors), **whole}
        )
    return tables


def _mean_loss(traces: Sequence[Trace]) -> float | None:
    """Return the mean over batches of the loss, in bits a token."""
    losses = [found.loss for found in traces if found.loss is not None]
    return sum(losses) / len(losses) / NATS if losses else None


def _step(before: Tensor, after: Tensor) -> Row:
    """Return how far one layer goes."""
    cosine = float(cosine_similarity(before, after, dim=-1).mean())
    step = float(((after - before).norm(dim=-1) / before.norm(dim=-1)).mean())
    return {"step": step, "cosine": cosine, "influence": 1 - cosine}


def _added(traces: Sequence[Trace], side: str, index: int) -> Tensor:
    """Return what all sub-layers of a layer (from 0) add, at all tokens."""
    return torch.cat([torch.stack([part.added for part in found.layer(side, index)]).sum(0) for found in traces])


def _relative(other: Tensor, one: Tensor) -> float:
    """Return ‖other - one‖/‖one‖, and 0 for two zeros."""
    difference, size = float((other - one).norm()), float(one.norm())
    return difference / size if size else 0.0


def _sublayers(traces: Sequence[Trace], side: str, start: Tensor) -> list[Row]:
    """Return a row for each sub-layer of a stack."""
    rows: list[Row] = []
    before = start
    for parts in zip(*([part for part in found.passages if part.side == side] for found in traces), strict=True):
        added, skip, after = (torch.cat([getattr(p, name) for p in parts]) for name in ("added", "skip", "after"))
        own, rest = float(added.square().sum()), float(skip.square().sum())
        rows.append(
            {
                "side": side,
                "sublayer": len(rows) + 1,
                "branch": parts[0].branch,
                "dependency": own / (own + rest),
                "collapse": float((_normed(after) - _normed(before)).var(-1, correction=0).mean()),
            }
        )
        before = after
    return rows


def _normed(x: Tensor) -> Tensor:
    return layer_norm(x, [x.size(-1)])


def _changed(subject: Measurable, batches: Sequence[Any], change: Callable[[], None]) -> tuple[Tensor, Tensor]:
    """Return the outputs of all batches before and after a change of the weights, which is taken back."""
    outputs = []
    with evaluated(subject.model):
        outputs.append(torch.cat([subject.output(batch) for batch in batches]))
    with borrowed_weights(subject.model, change), evaluated(subject.model):
        outputs.append(torch.cat([subject.output(batch) for batch in batches]))
    return outputs[0], outputs[1]


def _output_change(subject: Measurable, batches: Sequence[Any]) -> float:
    """Return how far noise on the weights moves the normalised output; see :func:`depth_tables`."""
    layers = [layer for stack in subject.stacks.values() for layer in stack]
    one, other = _changed(subject, batches, lambda: perturb(layers, PERTURBATION, subject.seed))
    return float((_normed(other) - _normed(one)).square().mean()) / PERTURBATION**2


def _update(subject: Measurable, batches: Sequence[Any], lr: float) -> float:
    """Return how far one step of Adam on the first batch moves the output; see :func:`depth_tables`."""

    def step() -> None:
        optimizer = torch.optim.Adam(subject.model.parameters(), lr=lr, betas=(0.9, 0.98))
        with evaluated(subject.model), own_gradients(subject.model), torch.enable_grad():
            loss_of(subject, batches[0]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    one, other = _changed(subject, batches, step)
    return float((other - one).square().mean().sqrt())
