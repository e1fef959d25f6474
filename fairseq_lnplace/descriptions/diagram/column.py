"""Where the things of one layer stand, beside the stream x, which runs upwards.

Lengths are in the units of the diagram's axes.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairseq_lnplace.descriptions.diagram.branch import LABELS, after_parts, before_parts, inside_parts
from fairseq_lnplace.descriptions.diagram.pen import EXTRA, GREY, Pen, Point
from fairseq_lnplace.placements import equation
from fairseq_lnplace.placements.spec import UNIT, Placement, Slots

__all__ = ["COLUMN_GAP", "INNER", "MARGIN", "Column"]

PITCH = 0.8  # from one box of a branch to the next
GAP = 0.62  # between what stands on the stream
BRANCH, OUTER, INNER = 1.75, 3.5, -0.95  # beside the stream: the branch, what runs outside of it, what runs opposite
MARGIN = 0.3  # of a layer's frame
COLUMN_GAP = 1.0


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
        forms = {"pre": ("norm", "Σ W·LN(y)"), "post": ("norm", "LN(Σ W·y)"), "dense": ("scale", "Σ a·y")}
        kind, text = forms[self.placement.history]
        y = self.rise(0.45)
        self.pen.box(self.x, y, kind, text, 1.5)
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
