"""A checkpoint of this package's as one of stock fairseq's, wherever its equation is also stock's."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_lnplace.checkpoints import options
from fairseq_lnplace.compat import load_checkpoint
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.export.weights import StockWeights
from fairseq_lnplace.files import new_file
from fairseq_lnplace.placements.stock import normalize_before, obstacle
from fairseq_lnplace.plugin.models.kinds import Kind, kind_of
from fairseq_lnplace.plugin.models.method import Method
from fairseq_lnplace.plugin.models.options import our_fields

__all__ = ["StockModel", "stock_model", "to_fairseq"]


@dataclass(frozen=True)
class StockModel:
    """A model of stock fairseq's with the outputs of one of ours.

    Attributes:
        state: our checkpoint, as it was read.
        kind: what kind of model it is.
        options: the options of stock's model, by name.
        weights: its state dict.
        untied: whether embeddings that were shared are no longer, as one took over a factor.
    """

    state: Mapping[str, Any]
    kind: Kind
    options: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    untied: bool


def stock_model(checkpoint: Path) -> StockModel:
    """Return stock's equal of a checkpoint's model.

    Raises:
        LnplaceError: stock fairseq has no such model, or the file is no checkpoint of this package's models.
    """
    state = load_checkpoint(checkpoint)
    if not isinstance(state.get("cfg"), Mapping):
        raise must_be("checkpoint", "one that fairseq 0.12.2 wrote", checkpoint)
    model = options(state, "model")
    kind = kind_of(model)
    depths = [model[f"{side}_layers"] if side in kind.stacks else 0 for side in ("encoder", "decoder")]
    method = Method.from_config(Namespace(**model), *depths)
    check(method, kind)
    weights = StockWeights(state["model"], model, kind, method)
    weights.fold()
    given = stock_options({**model, **weights.options}, kind, method)
    return StockModel(state, kind, given, weights.state, weights.untied)


def to_fairseq(checkpoint: Path, output: Path) -> str:
    """Write a checkpoint of stock fairseq's with the same outputs; return what it is, in words.

    The optimizer's state is left out: it belongs to other weights.

    Raises:
        LnplaceError: as of :func:`stock_model`.
    """
    stock = stock_model(checkpoint)
    name = stock.kind.stock
    exported = {key: value for key, value in stock.state.items() if key != "last_optimizer_state"}
    exported["model"] = stock.weights
    cfg = exported["cfg"]
    exported["cfg"] = {
        **cfg,
        "model": stock.options if stock.kind.has_dataclass else Namespace(**stock.options, arch=name),
        "common": {**cfg["common"], "user_dir": None},
    }
    with new_file(output) as partial:
        torch.save(exported, partial)
    untied = "; its embeddings share no weights any more, as one took over a factor" if stock.untied else ""
    return f"a checkpoint of stock fairseq's `{name}`{untied}"


def check(method: Method, kind: Kind) -> None:
    """Check that stock fairseq has a model of this equation.

    Raises:
        LnplaceError: it has not; the sentence says why.
    """
    name = method.placement.name
    for side in kind.stacks:
        stack = method.stack(side)
        if stack.norm_type != "layernorm":
            raise must_be("checkpoint", "of layernorm, stock fairseq's only norm", f"of {stack.norm_type}")
        if reason := obstacle(method.placement, method.options, stack.positions):
            raise LnplaceError(f"Stock fairseq has no equivalent of {name}: {reason}")


def stock_options(model: Mapping[str, Any], kind: Kind, method: Method) -> dict[str, Any]:
    """Return the options of stock's model, out of those of ours."""
    ours = {"arch", *(name for name, *_ in our_fields())}
    stock = {name: value for name, value in model.items() if name not in ours and not name.endswith("__name")}
    for side in kind.stacks:
        first = method.stack(side).positions[0]
        slots = method.placement.at(first, method.options).self_attention
        stock |= {f"{side}_normalize_before": bool(normalize_before(slots)), f"{side}_layers_to_keep": None}
    if "decoder" in kind.stacks:
        stock["no_decoder_final_norm"] = not method.placement.final_norm and stock["decoder_normalize_before"]
    return stock | {"_name": kind.stock}
