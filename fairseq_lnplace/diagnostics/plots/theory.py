"""The figure of `lnplace diagnose theory`: what the paper proves beside its set-up, simulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairseq_lnplace.diagnostics.plots.panels import (
    DOTTED,
    GREY,
    blank,
    closed_form,
    legend,
    lines,
    logarithmic,
    whole_numbers,
)
from fairseq_lnplace.diagnostics.tables import Row
from fairseq_lnplace.measure.activation_rows import POST_INNER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["theory_figure"]


def theory_figure(lemmas: Sequence[Row], theorem: Sequence[Row], decay: Sequence[Row]) -> Figure:
    """Return Lemma 2 and Theorem 1 as simulated; rows as of :mod:`.theory`."""
    figure, panels = blank(2, 2, "the paper's set-up, simulated: one head, W^Q = W^K = 0, square Gaussian matrices")
    (sizes, depths), (widths, layers) = panels
    second = [{"label": row["placement"], **row} for row in lemmas if row["lemma"] == 2]
    lines(sizes, second, "layer", "measured")
    pre = [row for row in second if row["low"] != row["high"]]
    for name, style, text in (("low", "--", "1 + l/2"), ("high", "-.", "1 + 3l/2")):
        closed_form(sizes, [row["layer"] for row in pre], [row[name] for row in pre], f"Lemma 2: {text}", style)
    sizes.axhline(POST_INNER, color=GREY, linestyle=":", label="Lemma 2: 3/2")
    sizes.set(xlabel="layer", ylabel="E‖x‖²/d (Post-LN: before the norm)")
    whole_numbers(sizes)
    logarithmic(sizes)
    gradient = "‖dL/dW2‖ of the last layer (nats a token)"
    for axes, x, fixed, label in ((depths, "depth", "width", "layers, L"), (widths, "width", "depth", "width, d")):
        value = max(row[fixed] for row in theorem)
        rows = sorted((row for row in theorem if row[fixed] == value), key=lambda row: row[x])
        lines(axes, rows, x, "gradient")
        for placement in dict.fromkeys(row["placement"] for row in rows):
            own = [row for row in rows if row["placement"] == placement]
            scale = max(row["ratio"] for row in own)
            bound = [row["bound"] * scale for row in own]
            text = "bounds of Theorem 1, touching"
            closed_form(axes, [row[x] for row in own], bound, text, DOTTED, linewidth=None)
        axes.set(xlabel=label, ylabel=gradient, xscale="log")
        logarithmic(axes)
        ticks = sorted({row[x] for row in rows})
        axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
        axes.set_xticks([], minor=True)
    lines(layers, decay, "layer", "gradient")
    post = [row for row in decay if row["placement"] == "postln"]
    predicted = [row["predicted"] for row in post]
    closed_form(layers, [row["layer"] for row in post], predicted, "appendix F: (2/3)^((L-l)/2)")
    layers.set(xlabel="layer", ylabel="‖dL/dW2‖ (nats a token)")
    whole_numbers(layers)
    logarithmic(layers)
    legend(figure)
    return figure
