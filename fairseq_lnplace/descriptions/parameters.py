"""The parameters that a method has besides the matrices and embeddings: their names, their shapes, their number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import get_args

from torch import nn

from fairseq_lnplace import placements
from fairseq_lnplace.layers.spec import LayerSize, StackSpec
from fairseq_lnplace.nn.stacks import Stack
from fairseq_lnplace.placements.at_depth import Depth
from fairseq_lnplace.placements.options import method_options
from fairseq_lnplace.placements.spec import Options, Placement, Side
from fairseq_lnplace.placements.stock import IDENTITY, STOCK_PLACEMENTS

__all__ = ["extra_parameters", "parameters"]

# The sizes of the stacks that are built for their names, on the meta device: they cost nothing, and no depth is one.
HEADS, HEAD_DIM, FFN = 10_007, 10_009, 50_021
DIM = HEADS * HEAD_DIM
SIZE_NAMES = {HEADS: "H", HEAD_DIM: "d/H", DIM: "d", FFN: "f", 1: "1"}
USUAL = r"(_proj|\.fc\d)\.(weight|bias)$"
MATRIX = "(L+1)²"  # DLCL's weights; all other matrices are Post-LN's too
AVERAGE = "L(L+3)/2"  # DenseFormer's, without dilation and period
SPARSE_AVERAGE = "Σ(⌊l/k⌋+1)"  # with them: over the l that p divides


def parameters(placement: Placement, options: Options, depth: Depth) -> dict[str, str]:
    """Return the names and shapes that the method gives a state dict, besides the matrices and embeddings.

    A ``*`` stands for the number of a layer, counted from 0. Shapes are in d (width), f (feed-forward), H (heads).
    """
    found: dict[str, str] = {}
    for side in depth.sides:
        for name, tensor in stack_on_meta(placement, options, depth, side).state_dict().items():
            if not re.search(USUAL, name):
                shape = " × ".join(SIZE_NAMES.get(size, str(size)) for size in tensor.shape)
                any_layer = re.sub(r"(?<=\.)[0-9]+(?=\.)", "*", name)
                found[f"{side}.{any_layer}"] = shape
    if placement.name not in STOCK_PLACEMENTS:
        found[IDENTITY] = "identifies the method"
    return found


def stack_on_meta(placement: Placement, options: Options, depth: Depth, side: Side) -> nn.Module:
    """Return a stack without memory."""
    depths = (depth.encoder_layers, depth.decoder_layers)
    spec = StackSpec(placement, options, side, list(range(1, depth.layers(side) + 1)), *depths, "layernorm")
    memory_dim = DIM if side == "decoder" and depth.encoder_layers else 0
    return Stack(spec, LayerSize(DIM, FFN, HEADS, memory_dim), {"device": "meta"})


def extra_parameters(placement: Placement, options: Options | None = None) -> dict[str, str]:
    """Return how many parameters a layer and a stack have more than Post-LN's, as formulas in d, f and H.

    The first layer is there by itself ("encoder_first_layer", "decoder_first_layer") where it has others than the rest.
    Without ``options`` they are the defaults.
    """
    own, usual = count(placement, options), postln_count()
    extra = {
        part: formula({size: own[part][size] - usual[part][size] for size in own[part] | usual[part]}) for part in own
    }
    for side in get_args(Side):
        if extra[f"{side}_first_layer"] == extra[f"{side}_layer"]:
            del extra[f"{side}_first_layer"]
    return extra


@cache
def postln_count() -> dict[str, Counter[str]]:
    """Return Post-LN's numbers of parameters; see :func:`count`."""
    return count(placements.get("postln"))


def count(placement: Placement, options: Options | None = None) -> dict[str, Counter[str]]:
    """Return how many times each part of a model has parameters of each size; see :func:`extra_parameters`."""
    options, depth = options or method_options(placement.name, placement.options, {}), Depth(2, 2)
    sparse = any(options.get(f"denseformer_{name}", 1) != 1 for name in ("dilation", "period"))
    average = SPARSE_AVERAGE if sparse else AVERAGE
    counts = {f"{side}{part}": Counter[str]() for part in ("_layer", "_first_layer") for side in depth.sides}
    counts["stack"] = Counter()
    for side in depth.sides:
        for name, tensor in stack_on_meta(placement, options, depth, side).named_parameters():
            layer = re.search(r"\.(\d+)\.", name)
            size = MATRIX if tensor.dim() == 2 else average if name == "history.weight" else SIZE_NAMES[tensor.numel()]
            if layer:
                counts[f"{side}{'_first' if layer[1] == '0' else ''}_layer"][size] += 1
            elif side == "encoder":  # the decoder's stack has the same
                counts["stack"][size] += 1
    return counts


def formula(counts: Mapping[str, int]) -> str:
    """Return a sum of sizes as text, such as "+2d +2f"."""
    terms = []
    for size in ("d", "f", "d/H", "H", MATRIX, AVERAGE, SPARSE_AVERAGE, "1"):
        if number := counts.get(size):
            factor = "" if abs(number) == 1 and size != "1" else str(abs(number))
            terms.append(f"{'−' if number < 0 else '+'}{factor}{'' if size == '1' else size}")
    return " ".join(terms) or "0"
