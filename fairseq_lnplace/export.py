"""A checkpoint of this package's as one that needs nothing of it, wherever its equation is also another's."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fairseq_lnplace.checkpoints import options
from fairseq_lnplace.compat import load_checkpoint
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.files import new_file
from fairseq_lnplace.models._kinds import Kind, kind_of
from fairseq_lnplace.models._method import Method
from fairseq_lnplace.models._options import our_fields
from fairseq_lnplace.placements.stock import normalize_before, obstacle
from fairseq_lnplace.stock_weights import StockWeights

__all__ = ["TARGETS", "to_fairseq"]


def to_fairseq(checkpoint: Path, output: Path) -> str:
    """Write a checkpoint of stock fairseq's with the same outputs; return what it is, in words.

    The optimizer's state is left out: it belongs to other weights.

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
    exported = {key: value for key, value in state.items() if key != "last_optimizer_state"}
    exported["model"] = weights.state
    exported["cfg"] = {
        **state["cfg"],
        "model": stock_options({**model, **weights.options}, kind, method),
        "common": {**state["cfg"]["common"], "user_dir": None},
    }
    with new_file(output) as partial:
        torch.save(exported, partial)
    untied = "; its embeddings share no weights any more, as one took over a factor" if weights.untied else ""
    return f"a checkpoint of stock fairseq's `{kind.stock}`{untied}"


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


def stock_options(model: Mapping[str, Any], kind: Kind, method: Method) -> Any:
    """Return the configuration of stock's model, as stock's own checkpoints have it."""
    ours = {name for name, *_ in our_fields()}
    stock = {name: value for name, value in model.items() if name not in ours and not name.endswith("__name")}
    for side in kind.stacks:
        first = method.stack(side).positions[0]
        slots = method.placement.at(first, method.options).self_attention
        stock |= {f"{side}_normalize_before": bool(normalize_before(slots)), f"{side}_layers_to_keep": None}
    if "decoder" in kind.stacks:
        stock["no_decoder_final_norm"] = not method.placement.final_norm and stock["decoder_normalize_before"]
    stock["_name"] = kind.stock
    return stock if kind.has_dataclass else Namespace(**{**stock, "arch": kind.stock})


# what `lnplace export --to` offers: each writes `output` from a checkpoint and says what it wrote
TARGETS: dict[str, Callable[[Path, Path], str]] = {"fairseq": to_fairseq}
