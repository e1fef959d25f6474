"""The placement equation as text, with a method's slots filled in.

One symbol stands for one slot in every method, whatever its paper calls it. Dropout on a branch is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fairseq_lnplace.placements.spec import ONE, UNIT, Constant, Options, Placement, Position, Scale, Slots, constant

__all__ = [
    "BRANCHES",
    "Symbol",
    "branch_name",
    "history",
    "inside",
    "layer_ranges",
    "range_name",
    "scores",
    "skip_name",
    "stack_end",
    "stack_start",
    "symbols",
    "update",
    "where",
]

ZERO = constant(0.0)
BRANCHES = ("SA", "CA", "FFN")  # self-attention, cross-attention, feed-forward: in the order of Layer.slots


@dataclass(frozen=True)
class Symbol:
    """A factor in a method's equation.

    Attributes:
        name: as the equation writes it.
        meaning: what it is, and what is trained of it.
        start: its value at the start of training; None where no depth decides it (measured, or scheduled).
    """

    name: str
    meaning: str
    start: Constant | None


def times(name: str, scale: Scale, factor: str) -> str:
    """Return the product of a scale called ``name`` and a factor."""
    if scale == UNIT:
        return factor
    return f"{name} ⊙ {factor}" if scale.learned == "vector" else f"{name}·{factor}"


def skip_name(scale: Scale) -> str:
    """Return how the skip's factor is written."""
    return "α" if scale.learned == "no" else "ω"


def branch_name(scale: Scale) -> str:
    """Return how the branch's factor is written."""
    return "λₜ" if scale.scheduled else "λ"


def update(placement: Placement, slots: Slots, branch: str) -> list[str]:
    """Return what one sub-layer called ``branch`` does to the streams: one assignment a line, in order."""
    h = "LN(x)" if slots.in_norm else "x"
    if slots.in_scale is not ONE:
        h = f"c·{h}"
    f = f"{branch}({h})"
    if slots.out_norm:
        f = f"LN({f})"
    f = times(branch_name(slots.branch_scale), slots.branch_scale, f)
    lines = []
    if placement.second_stream is not None:
        lines += [f"f = {f}", "r ← r + s·f"]
        f = "f"
    total = f"{times(skip_name(slots.skip_scale), slots.skip_scale, 'x')} + {f}"
    if slots.layer_skip:
        total = f"x_in + {total}"
    if slots.gate:
        lines.append(f"x ← {total}")
        total = "x − SiLU(g)·stop(x)"
    lines.append(f"x ← LN({total})" if slots.add_norm else f"x ← {total}")
    return lines


def inside(placement: Placement, slots: Slots, branch: str) -> list[str]:
    """Return what the method changes inside a sub-layer; nothing where it is the usual one.

    ``h`` is the sub-layer's input, ``m`` the encoder's output, ``φ`` the activation, ``LN_h`` a norm over the features
    of each head; biases are left out.
    """
    if branch == "FFN":
        return ["FFN(h) = W_2·LN(φ(W_1·h))"] if slots.inner_norm else []
    lines = []
    if slots.qkv_norm or slots.head_scale or slots.inner_norm:
        source = "m" if branch == "CA" else "h"
        projected = ["W_q·h", f"W_k·{source}", f"W_v·{source}"]
        norm = {"": "", "width": "LN", "head": "LN_h"}[slots.qkv_norm]
        text = f"heads({', '.join(f'{norm}({each})' if norm else each for each in projected)})"
        if slots.head_scale:
            text = f"(γ ⊙ {text})"
        if slots.inner_norm:
            text = f"LN({text})"
        lines.append(f"{branch}(h) = W_o·{text}")
    return lines


def scores(placement: Placement, mean: bool) -> list[str]:
    """Return how attention weights come about where the scores are handed on; nothing where they are not."""
    if not placement.residual_scores:
        return []
    divided = "S/l" if mean else "S"
    return [
        "S ← q·kᵀ/√d_h + S, from layer to layer; a chain each for SA and CA, S = 0 below layer 1",
        f"heads(q, k, v) = softmax({divided})·v",
    ]


def stack_start(placement: Placement) -> list[str]:
    """Return what happens to the embedded tokens ``e`` (with positions) before the first layer."""
    lines = ["x ← LN(e)" if placement.embedding_norm else "x ← e"]
    return lines + (["r ← s·x"] if placement.second_stream is not None else [])


def history(placement: Placement) -> list[str]:
    """Return what each layer, and the stack's end, reads where that is a sum over all layers below."""
    if placement.history == "none":
        return []
    if placement.history == "dense":
        return [
            "y_l = x; x ← Σⱼ a[l,j]·yⱼ, j = l, l − k, l − 2k … ≥ 0, where p divides l, the layers below; at the start "
            "a[l,l] = 1, others 0 (dilation k, period p)"
        ]
    total = "Σₖ W[l,k]·LNₖ(yₖ)" if placement.history == "pre" else "LNₗ(Σₖ W[l,k]·yₖ)"
    return [f"y_l = x; x ← {total}, k = 0 … l, l the layers below, LN₀ the identity"]


def stack_end(placement: Placement) -> list[str]:
    """Return what the stack puts out after the last layer."""
    if placement.second_stream is not None:
        return ["output = x + LN(r)" if placement.final_norm else "output = x"]
    return ["output = LN(x)" if placement.final_norm else "output = x"]


def layer_ranges(placement: Placement, options: Options, top: Position) -> Iterator[tuple[int, int]]:
    """Yield the first and last layer of each range with the same slots, in the stack whose last layer is ``top``."""
    split = 0 if placement.lower_layer is None else min(int(placement.lower_layers(top, options)), top.layers)
    for first, last in ((1, split), (split + 1, top.layers)):
        if first <= last:
            yield first, last


def range_name(first: int, last: int) -> str:
    """Return the name of a range of layers."""
    return f"layers {first}–{last}" if first < last else f"layer {first}"


def trained(scale: Scale) -> str:
    """Return what is trained of a scale, and where it starts if no depth decides that."""
    if scale.scheduled:
        return f"min(1, t/T) in update t, T = --{scale.scheduled.replace('_', '-')}"
    text = {"no": "constant", "vector": "learned, one number per feature", "layer": "learned, one number per layer"}
    return text[scale.learned] + (", start measured in the first training forwards" if scale.profiled else "")


def symbols(placement: Placement, slots: Slots) -> Iterator[Symbol]:
    """Yield the factors that a sub-layer's equation mentions."""
    if slots.in_scale is not ONE:
        yield Symbol("c", "factor on the branch's input: constant", slots.in_scale)
    skip, branch = slots.skip_scale, slots.branch_scale
    for name, on, scale in ((skip_name(skip), "skip", skip), (branch_name(branch), "branch", branch)):
        if scale != UNIT:
            measured = scale.profiled or scale.scheduled
            yield Symbol(name, f"factor on the {on}: {trained(scale)}", None if measured else scale.start)
    if placement.second_stream is not None:
        yield Symbol("s", "factor of the second stream r: constant", placement.second_stream)
    if slots.gate:
        yield Symbol("g", "gate after the add: learned, one number per layer; stop passes no gradient", ZERO)
    if slots.head_scale:
        yield Symbol("γ", "factor on the heads: learned, one number per head", ONE)


def norms(slots: Slots) -> str:
    """Return where norms stand in and around one sub-layer."""
    stand = (("in", slots.in_norm), ("qkv", slots.qkv_norm), ("inner", slots.inner_norm), ("out", slots.out_norm))
    return "+".join(name for name, there in (*stand, ("add", slots.add_norm)) if there) or "none"


def where(placement: Placement) -> str:
    """Return where norms stand in a method, in a few words.

    in: on a branch's input; out: on its output; add: after the add; inner: before a sub-layer's last matrix; qkv: on
    queries, keys and values; embedding and final: at the start and the end of a stack; layers: on what is read from
    each layer below.
    """
    parts = []
    names = ("first layer ", "others ") if placement.lower_layers == ONE else ("lower layers ", "upper layers ")
    for layer, prefix in zip((placement.lower_layer, placement.layer), names, strict=True):
        if layer is None:
            continue
        groups: dict[str, list[str]] = {}
        for branch, slots in zip(BRANCHES, layer.slots, strict=True):
            groups.setdefault(norms(slots), []).append(branch)
        text = ", ".join(kind if len(groups) == 1 else f"{'/'.join(names)} {kind}" for kind, names in groups.items())
        parts.append(text if placement.lower_layer is None else prefix + text)
    stack = (
        ("embedding", placement.embedding_norm),
        ("layers", placement.history in ("pre", "post")),
        ("final", placement.final_norm),
    )
    return ", ".join([*parts, *(name for name, there in stack if there)])
