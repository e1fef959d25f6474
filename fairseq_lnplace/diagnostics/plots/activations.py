"""The figure of `lnplace diagnose activations`: sizes of the stream and of the last sum, and how often they stray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairseq_lnplace.diagnostics.plots.panels import (
    GREY,
    blank,
    closed_form,
    legend,
    lines,
    logarithmic,
    sides_of,
    whole_numbers,
)
from fairseq_lnplace.diagnostics.tables import Row
from fairseq_lnplace.measure.activation_rows import POST_INNER, pre_bounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["activation_figure"]


def activation_figure(rows: Sequence[Row], title: str, epsilon: float) -> Figure:
    """Return the sizes of the stream and of the last sum, with Lemma 2's lines, and δ; a row for each stack.

    Args:
        rows: of :func:`.activation_rows.activation_rows`, averaged over seeds, each with its label and placement.
        title: above the panels.
        epsilon: what δ was counted with.
    """
    sides = sides_of(rows)
    figure, panels = blank(len(sides), 3, title)
    for side, (stream, inner, delta) in zip(sides, panels, strict=True):
        own = [row for row in rows if row["side"] == side]
        layers = sorted({row["layer"] for row in own})
        for axes, name in ((stream, "stream"), (inner, "inner"), (delta, "delta")):
            lines(axes, own, "layer", name)
            whole_numbers(axes)
        for which, (text, style) in enumerate((("1 + l/2", "--"), ("1 + 3l/2", "-."))):
            values = [pre_bounds(layer)[which] for layer in layers]
            closed_form(stream, layers, values, f"Lemma 2, Pre-LN: {text}", style)
        inner.axhline(POST_INNER, color=GREY, linestyle=":", label="Lemma 2, Post-LN: 3/2")
        stream.set(xlabel=f"{side} layer (0: its input)", ylabel="E‖x‖²/d")
        inner.set(xlabel=f"{side} layer", ylabel="E‖last sum before a norm‖²/d")
        delta.set(
            xlabel=f"{side} layer (0: its input)", ylabel=f"share of tokens further than {epsilon:g}", ylim=(0, 1)
        )
        logarithmic(stream)
        logarithmic(inner)
    legend(figure)
    return figure
