"""A method's diagram as a file: its stacks' layers side by side, under the title and above the legend."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

from matplotlib import rc_context
from matplotlib.figure import Figure

from fairseq_lnplace import placements
from fairseq_lnplace.files import new_file
from fairseq_lnplace.placements import equation
from fairseq_lnplace.placements.at_depth import Depth, slots_of
from fairseq_lnplace.placements.describe import describe
from fairseq_lnplace.placements.diagram.column import COLUMN_GAP, INNER, MARGIN, Column
from fairseq_lnplace.placements.diagram.legend import legend
from fairseq_lnplace.placements.diagram.pen import GREY, Pen
from fairseq_lnplace.placements.options import method_options
from fairseq_lnplace.placements.spec import Options, Placement

__all__ = ["draw", "draw_columns"]

INCHES = 0.6  # of a unit of the axes
LETTER = 0.106  # the mean width of a note's letter


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
