"""A method as a diagram: one encoder and one decoder layer, laid out from the slots.

The stream x runs upwards; beside it stand the branches, the decoder's mirrored, so that the encoder's output comes in
between. Lengths are in units of UNIT inches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

from fairseq_lnplace import placements
from fairseq_lnplace.files import new_file
from fairseq_lnplace.placements import equation
from fairseq_lnplace.placements.at_depth import Depth, slots_of
from fairseq_lnplace.placements.describe import describe
from fairseq_lnplace.placements.options import method_options
from fairseq_lnplace.placements.spec import ONE, UNIT, Options, Placement, Slots

__all__ = ["draw"]

INCHES = 0.6  # of a unit
PITCH = 0.8  # from one box of a branch to the next
GAP = 0.62  # between what stands on the stream
BRANCH, OUTER, INNER = 1.75, 3.5, -0.95  # beside the stream: the branch, what runs outside of it, what runs opposite
LETTER = 0.106  # the mean width of a note's letter
MARGIN = 0.3  # of a layer's frame
COLUMN_GAP = 1.0
INK, GREY, EXTRA = "#1b2733", "#8a949e", "#b4501e"
FILLS = {"norm": "#2f5d8c", "block": "#e3ebf3", "plain": "#ffffff", "scale": "#f6c667"}
LABELS = {"SA": "self-attention", "CA": "cross-attention", "FFN": "feed-forward"}

Point = tuple[float, float]
Part = tuple[str, str]  # kind and text


@dataclass(frozen=True)
class Pen:
    """Draws the diagram's few kinds of things."""

    axes: Axes

    def box(self, x: float, y: float, kind: str, text: str, width: float = 2.1) -> None:
        """Draw a box around a centre; a scale is a small circle."""
        ink = "white" if kind == "norm" else INK
        if kind == "scale":
            self.axes.add_patch(Circle((x, y), 0.25, facecolor=FILLS[kind], edgecolor=INK, linewidth=1, zorder=3))
        else:
            height = 0.5
            shape = FancyBboxPatch(
                (x - width / 2, y - height / 2),
                width,
                height,
                boxstyle="round,pad=0,rounding_size=0.09",
                facecolor=FILLS[kind],
                edgecolor=GREY if kind == "plain" else INK,
                linewidth=1,
                zorder=3,
            )
            self.axes.add_patch(shape)
        self.axes.text(x, y, text, color=ink, fontsize=10, ha="center", va="center_baseline", zorder=4)

    def add(self, x: float, y: float) -> None:
        """Draw an addition."""
        self.axes.add_patch(Circle((x, y), 0.2, facecolor="white", edgecolor=INK, linewidth=1.3, zorder=3))
        for dx, dy in ((0.11, 0.0), (0.0, 0.11)):
            self.axes.plot([x - dx, x + dx], [y - dy, y + dy], color=INK, linewidth=1.3, zorder=4)

    def line(self, *points: Point, arrow: bool = False, color: str = INK, dashed: bool = False) -> None:
        """Draw a line through points, with a head at its end if asked for."""
        xs, ys = zip(*points, strict=True)
        dashes = (0, (4, 2)) if dashed else "-"
        self.axes.plot(xs, ys, color=color, linewidth=1.4, linestyle=dashes, solid_joinstyle="round", zorder=2)
        if arrow:
            (x0, y0), (x, y) = points[-2:]
            length = max(abs(x - x0), abs(y - y0))
            tail = (x - 0.3 * (x - x0) / length, y - 0.3 * (y - y0) / length)
            head = FancyArrowPatch(
                tail, (x, y), arrowstyle="-|>", mutation_scale=11, color=color, shrinkA=0, shrinkB=0, zorder=2.5
            )
            self.axes.add_patch(head)

    def frame(self, left: float, bottom: float, right: float, top: float, faint: bool = False) -> None:
        """Draw a frame around a layer, or a faint one around a sub-layer that is drawn in parts."""
        shape = FancyBboxPatch(
            (left, bottom),
            right - left,
            top - bottom,
            boxstyle="round,pad=0,rounding_size=0.15",
            facecolor="#f3f6f9" if faint else "none",
            edgecolor=GREY,
            linewidth=0.8 if faint else 1.2,
            linestyle="-" if faint else (0, (6, 3)),
            zorder=1,
        )
        self.axes.add_patch(shape)

    def text(self, x: float, y: float, text: str, **style: Any) -> None:
        """Write a note."""
        self.axes.text(x, y, text, **{"fontsize": 9, "color": INK, "va": "center_baseline", **style}, zorder=4)


def inside_parts(slots: Slots, branch: str) -> list[Part]:
    """Return what a sub-layer consists of, as far as norms or scales stand inside it; else the sub-layer as one."""
    attention = branch != "FFN"
    inner: list[Part] = [("norm", "LN")] if slots.inner_norm else []
    if not attention:
        return [("block", "W₁, φ"), *inner, ("block", "W₂")] if inner else [("block", LABELS[branch])]
    if not (slots.qkv_norm or slots.head_scale or slots.inner_norm):
        return [("block", LABELS[branch])]
    projected: list[Part] = [("block", "$W_q, W_k, W_v$"), ("norm", "LN on q, k, v")] if slots.qkv_norm else []
    heads: list[Part] = [("scale", "γ")] if slots.head_scale else []
    return [*projected, ("block", "heads"), *heads, *inner, ("block", "$W_o$")]


def before_parts(slots: Slots) -> list[Part]:
    """Return what stands between the stream and a sub-layer."""
    norm: list[Part] = [("norm", "LN")] if slots.in_norm else []
    return norm + ([("scale", "c")] if slots.in_scale is not ONE else [])


def after_parts(slots: Slots) -> list[Part]:
    """Return what stands between a sub-layer and the add."""
    norm: list[Part] = [("norm", "LN")] if slots.out_norm else []
    scaled = slots.branch_scale != UNIT
    return norm + ([("scale", equation.branch_name(slots.branch_scale))] if scaled else [])


class Column:
    """One layer of one stack, with the stack's start and end where the layer is the first or the last of its kind.

    Args:
        pen: draws.
        left: the left edge of the layer's frame.
        toward: 1 where branches stand to the right of the stream, -1 to the left.
        placement: the method.
    """

    def __init__(self, pen: Pen, left: float, toward: int, placement: Placement) -> None:
        self.pen, self.toward, self.placement = pen, toward, placement
        beside = placement.second_stream is not None or placement.residual_scores
        self.width = (OUTER + 0.4 if beside else BRANCH + 1.35) + 2 * MARGIN - INNER
        self.x = left + MARGIN - INNER if toward > 0 else left + self.width - MARGIN + INNER
        self.left = left
        self.y = self.top = 0.0
        self.attentions: list[float] = []  # the heights of self-attention and cross-attention

    def at(self, offset: float) -> float:
        """Return the x of something beside the stream."""
        return self.x + self.toward * offset

    def rise(self, by: float) -> float:
        """Let the stream rise, and return its new height."""
        self.pen.line((self.x, self.y), (self.x, self.y + by))
        self.y += by
        return self.y

    def on_stream(self, kind: str, text: str, width: float = 1.2) -> None:
        """Draw something that the stream runs through."""
        self.pen.box(self.x, self.rise(GAP), kind, text, width)

    def start(self, text: str) -> None:
        """Draw the stack's input."""
        self.pen.box(self.x, self.y, "plain", text, 2.4)
        if self.placement.embedding_norm:
            self.rise(0.1)
            self.on_stream("norm", "LN")
        self.rise(0.7)
        if self.placement.second_stream is not None:
            self.pen.line((self.x, self.y), (self.at(OUTER), self.y), (self.at(OUTER), self.y + 0.3), color=EXTRA)
            self.pen.box(self.at(BRANCH), self.y, "scale", "s")
            self.pen.text(self.at(OUTER), self.y - 0.25, "r", color=EXTRA, ha="center", fontsize=11)
        self.rise(0.3)

    def layer(self, layer: Sequence[tuple[str, Slots]], label: str) -> None:
        """Draw one layer in its frame."""
        bottom = self.y
        self.rise(0.5)
        if self.placement.history != "none":
            self.history()
        layer_input = self.y
        for branch, slots in layer:
            self.sublayer(branch, slots, layer_input)
        self.rise(0.1)
        self.pen.frame(self.left, bottom, self.left + self.width, self.y)
        self.pen.text(self.at(BRANCH), bottom + 0.22, label, ha="center", color=GREY, fontweight="bold")
        if self.placement.second_stream is not None:
            self.pen.line((self.at(OUTER), bottom), (self.at(OUTER), self.y), color=EXTRA)
        if self.placement.residual_scores:
            for chain, y in enumerate(self.attentions):
                self.scores(y, bottom, self.at(OUTER - 0.4 + 0.45 * chain))
        if self.placement.history != "none":
            far = self.at(INNER)
            self.pen.line((self.x, self.y), (far, self.y), color=EXTRA, dashed=True)
            self.pen.line((far, bottom - 0.25), (far, self.y), color=EXTRA, dashed=True)
            self.pen.text(far, bottom - 0.4, "y", color=EXTRA, ha="center", fontsize=11)

    def sublayer(self, branch: str, slots: Slots, layer_input: float) -> None:
        """Draw a sub-layer from its fork to what stands after its add."""
        pen, placement = self.pen, self.placement
        x, bx = self.x, self.at(BRANCH)
        before, inside, after = before_parts(slots), inside_parts(slots, branch), after_parts(slots)
        parts = [*before, *inside, *after]
        fork = self.y
        heights = [fork + 0.62 + PITCH * index for index in range(len(parts))]
        join = self.rise(heights[-1] - fork + 0.62)
        if len(inside) > 1:
            low, high = heights[len(before)] - 0.38, heights[len(before) + len(inside) - 1] + 0.38
            pen.frame(bx - 1.2, low, bx + 1.2, high, faint=True)
            pen.text(
                bx + self.toward * 1.36,
                (low + high) / 2,
                LABELS[branch],
                rotation=90,
                color=GREY,
                ha="center",
                va="center",
            )
        pen.line((x, fork), (bx, fork), (bx, join), (self.at(0.2), join), arrow=True)
        for y, (kind, text) in zip(heights, parts, strict=True):
            pen.box(bx, y, kind, text)
        if branch != "FFN":
            self.attentions.append(heights[len(before)])
        if slots.skip_scale != UNIT:
            pen.box(x, (fork + join) / 2, "scale", equation.skip_name(slots.skip_scale))
        if slots.layer_skip:
            far = self.at(INNER)
            pen.line((x, layer_input), (far, layer_input), (far, join), (self.at(-0.2), join), arrow=True, color=EXTRA)
        pen.add(x, join)
        if placement.second_stream is not None:
            pen.line((bx, join), (self.at(OUTER - 0.2), join), arrow=True, color=EXTRA)
            pen.box((bx + self.at(OUTER)) / 2, join, "scale", "s")
            pen.add(self.at(OUTER), join)
        if slots.gate:
            self.rise(0.05)
            self.on_stream("scale", "g")
        if slots.add_norm:
            self.on_stream("norm", "LN")
        self.rise(0.5)

    def scores(self, y: float, bottom: float, x: float) -> None:
        """Draw, along ``x``, the attention scores that come from the layer below and go to the one above."""
        edge = self.at(BRANCH + 1.05)
        self.pen.line((x, bottom - 0.35), (x, y - 0.13), (edge, y - 0.13), arrow=True, color=EXTRA, dashed=True)
        self.pen.line((edge, y + 0.13), (x, y + 0.13), (x, self.y + 0.45), arrow=True, color=EXTRA, dashed=True)
        self.pen.text(x, bottom - 0.5, "S", color=EXTRA, ha="center", fontsize=11)

    def history(self) -> None:
        """Draw the sum over the layers below that the next layer, or the stack's end, reads."""
        form = "Σ W·LN(y)" if self.placement.history == "pre" else "LN(Σ W·y)"
        y = self.rise(0.45)
        self.pen.box(self.x, y, "norm", form, 1.5)
        self.pen.line((self.at(INNER), y - 0.4), (self.at(INNER), y), (self.at(-0.75), y), color=EXTRA, dashed=True)
        self.rise(0.5)

    def end(self, text: str, arrow: bool) -> None:
        """Draw the stack's end and name its output, to which an arrow points if nothing in the diagram reads it."""
        placement = self.placement
        if placement.history != "none":
            self.pen.line((self.at(INNER), self.y), (self.at(INNER), self.y + 0.6), color=EXTRA, dashed=True)
            self.rise(0.3)
            self.history()
        if placement.second_stream is not None:
            r = self.at(OUTER)
            if placement.final_norm:
                join = self.rise(1.25)
                self.pen.line((r, self.y - 1.25), (r, join), (self.at(0.2), join), arrow=True, color=EXTRA)
                self.pen.box(r, join - 0.6, "norm", "LN", 1.2)
                self.pen.add(self.x, join)
        elif placement.final_norm:
            self.on_stream("norm", "LN", 1.2)
        self.out(text, arrow)

    def out(self, text: str, arrow: bool = True) -> None:
        """Let the stream leave, and name where to."""
        self.pen.line((self.x, self.y), (self.x, self.y + 0.65), arrow=arrow)
        self.top = self.y + 0.65
        self.pen.text(self.x, self.top + 0.22, text, ha="center")
        self.y = self.top + 0.4

    def read_memory(self, y: float, gap: float, memory: Point | None) -> None:
        """Draw how the encoder's output comes to cross-attention: from ``memory``, through the gap at the left."""
        edge = (self.at(BRANCH + 1.05), y)
        if memory is not None:
            self.pen.line(memory, (gap, memory[1]), (gap, y), edge, arrow=True)
        else:
            self.pen.line((gap, y), edge, arrow=True)
            self.pen.text(gap - 0.1, y, "encoder output", ha="center", va="center", rotation=90)


def draw_columns(pen: Pen, placement: Placement, options: Options, depth: Depth) -> tuple[float, float]:
    """Draw every stack's layers of different kinds side by side; return how far to the right and up they reach."""
    edge, tops, memory = INNER - MARGIN, [], None
    for side in depth.sides:
        toward = -1 if side == "decoder" and depth.encoder_layers else 1
        ranges = list(equation.layer_ranges(placement, options, depth.positions(side)[-1]))
        for first, last in ranges:
            column = Column(pen, edge, toward, placement)
            if first == 1:
                column.start("embedded source" if side == "encoder" else "embedded target")
            else:
                pen.text(column.x, column.y, f"from layer {first - 1}", ha="center")
                column.y += 0.2
                column.rise(0.65)
            layer = placement.at(depth.positions(side)[first - 1], options)
            label = f"{side} {equation.range_name(first, last)}"
            column.layer(list(slots_of(layer, depth.branches(side))), label)
            if last == depth.layers(side):
                column.end(f"{side} output", arrow=side == depth.sides[-1])
            else:
                column.out(f"to layer {last + 1}")
            for y in column.attentions[1:]:
                column.read_memory(y, edge - COLUMN_GAP / 2, memory if first == 1 else None)
            if side == "encoder":
                memory = (column.x, column.top)
            tops.append(column.y)
            edge += column.width + COLUMN_GAP
    return edge - COLUMN_GAP, max(tops)


def legend(placement: Placement, options: Options, depth: Depth, about: dict[str, Any]) -> Iterator[str]:
    """Yield the lines below the diagram: the equation, and its symbols with their values at the start of training."""
    side = depth.sides[-1]
    for first, last in equation.layer_ranges(placement, options, depth.positions(side)[-1]):
        layer = list(slots_of(placement.at(depth.positions(side)[first - 1], options), depth.branches(side)))
        updates = [(branch, equation.update(placement, slots, branch)) for branch, slots in layer]
        if len({slots for _, slots in layer}) == 1:
            updates = [("F", equation.update(placement, layer[0][1], "F"))]
        before = "" if depth.layers(side) == last - first + 1 else f"{equation.range_name(first, last)}:   "
        yield before + "      ".join(line for _, lines in updates for line in lines)
        yield from (line for branch, slots in layer for line in equation.inside(placement, slots, branch))
    yield from equation.scores(placement, placement.mean_scores(depth.positions(side)[0], options) != 0)
    yield from equation.history(placement)
    for row in about["constants"]:
        at_start = " at the start" if "learned" in row["meaning"] else ""
        yield f"{row['symbol']}{spans(row['values'], ' = ', at_start)}: {row['meaning']}"
    for row in about["initialisation"]:
        apart = "" if row["cross_attention"] else " (cross-attention apart)"
        yield f"initialisation of {', '.join(row['matrices'])}{apart}: times{spans(row['values'], ' ')}"


def spans(values: dict[str, list[float]], before: str, after: str = "") -> str:
    """Return a constant's values in both stacks; nothing where it has none."""
    texts = {side: span(numbers) for side, numbers in values.items() if numbers}
    named = (
        list(texts.values())[:1]
        if len(set(texts.values())) == 1
        else [f"{text} ({side})" for side, text in texts.items()]
    )
    return f"{before}{', '.join(named)}{after}" if named else ""


def span(numbers: Sequence[float]) -> str:
    """Return a constant's value, or its first and last where it differs by layer."""
    return f"{numbers[0]:.4g}" if len(set(numbers)) <= 1 else f"{numbers[0]:.4g} … {numbers[-1]:.4g}"


def draw(name: str, depth: Depth, given: Options, path: Path) -> None:
    """Write the diagram of a method.

    Args:
        name: the method.
        depth: the depth whose numbers of layers and constants the diagram tells.
        given: the method's options; the rest have their defaults.
        path: the file, .svg or .png.

    Raises:
        LnplaceError: there is no such method, or an option is another's or out of its range.
    """
    about = describe(name, depth, given)
    method = placements.get(name)
    options = method_options(name, method.options, given)
    placement = method.resolved(options)
    figure = Figure()
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    pen = Pen(axes)
    right, top = draw_columns(pen, placement, options, depth)
    left = INNER - MARGIN
    right = max(right, left + LETTER * len(about["citation"]))
    pen.text(left, top + 0.9, about["title"], fontsize=17, fontweight="bold", ha="left")
    pen.text(left, top + 0.35, about["citation"], fontsize=9, color=GREY, ha="left")
    low = -0.8
    for line in legend(placement, options, depth, about):
        for part in wrap(line, int((right - left) / LETTER), subsequent_indent="    "):
            pen.text(left, low, part, ha="left")
            low -= 0.4
    axes.set(xlim=(left - 0.2, right + 0.2), ylim=(low, top + 1.4))
    figure.set_size_inches((right - left + 0.4) * INCHES, (top + 1.4 - low) * INCHES)
    with new_file(path) as partial, rc_context({"svg.hashsalt": name}):
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(partial, format=path.suffix[1:], dpi=200, metadata=metadata)
