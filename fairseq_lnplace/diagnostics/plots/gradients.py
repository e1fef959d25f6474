"""The figures of `lnplace diagnose gradients`: gradients against the layer, and the last one's against depth."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairseq_lnplace.diagnostics.paper import DIFFERENCES, FIGURE_3, LAST_BY_DEPTH, SIDE
from fairseq_lnplace.diagnostics.plots.panels import (
    DOTTED,
    blank,
    closed_form,
    legend,
    lines,
    logarithmic,
    paper_line,
    sides_of,
    whole_numbers,
)
from fairseq_lnplace.diagnostics.tables import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["depth_figure", "gradient_figure"]

MATRICES = {"fc1": "W1", "fc2": "W2"}
NORM = "‖mean gradient‖ (nats a token)"


def gradient_figure(rows: Sequence[Row], title: str, with_paper: bool) -> Figure:
    """Return Figure 3 (a, b): the gradients of both feed-forward matrices against the layer, a row for each stack.

    Args:
        rows: of :func:`.gradient_rows.gradient_rows`, averaged over seeds, each with its label and placement.
        title: above the panels.
        with_paper: whether to draw the paper's values beside ours.
    """
    rows = [row for row in rows if row["matrix"] in MATRICES]
    sides = sides_of(rows)
    figure, panels = blank(len(sides), len(MATRICES), title)
    drawn = {row["placement"] for row in rows}
    for side, line_of_panels in zip(sides, panels, strict=True):
        for (matrix, symbol), axes in zip(MATRICES.items(), line_of_panels, strict=True):
            own = [row for row in rows if (row["side"], row["matrix"]) == (side, matrix)]
            lines(axes, own, "layer", "norm_of_mean")
            for series in FIGURE_3:
                if with_paper and side == SIDE and series.matrix == matrix and series.placement in drawn:
                    paper_line(axes, series.placement, series.state, series.values)
            axes.set(xlabel=f"{side} layer", ylabel=f"{symbol}: {NORM}")
            logarithmic(axes)
            whole_numbers(axes)
    legend(figure, textwrap.fill(DIFFERENCES, 130) if with_paper else "")
    return figure


def depth_figure(rows: Sequence[Row], title: str) -> Figure:
    """Return Figure 3 (c, d): the gradient of the last feed-forward's second matrix against depth.

    Args:
        rows: each with label, placement, depth and norm_of_mean, averaged over seeds.
        title: above the panel.
    """
    figure, panels = blank(1, 1, title, width=6)
    axes = panels[0, 0]
    lines(axes, rows, "depth", "norm_of_mean")
    for series in LAST_BY_DEPTH:
        if series.placement in {row["placement"] for row in rows}:
            paper_line(axes, series.placement, series.state, series.values)
    depths = sorted({row["depth"] for row in rows})
    for label in dict.fromkeys(row["label"] for row in rows):
        first = next(row for row in rows if row["label"] == label)
        if first["placement"] == "preln_final":
            guide = [first["norm_of_mean"] * (first["depth"] / depth) ** 0.5 for depth in depths]
            closed_form(axes, depths, guide, "1/√L", DOTTED, linewidth=None)
    axes.set(xlabel="layers in each stack, L", ylabel=f"last W2: {NORM}")
    logarithmic(axes)
    axes.set_xticks(depths)
    legend(figure)
    return figure
