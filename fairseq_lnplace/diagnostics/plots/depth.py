"""The figures of `lnplace diagnose depth`: what each layer and sub-layer does, and what the model is without it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairseq_lnplace.diagnostics.plots.panels import (
    blank,
    closed_form,
    legend,
    line,
    lines,
    logarithmic,
    sides_of,
    whole_numbers,
)
from fairseq_lnplace.diagnostics.tables import Row
from fairseq_lnplace.measure.depth_tables import collapse_at_start
from fairseq_lnplace.palette import style_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["bleu_figure", "distance_figure", "layer_figure", "sublayer_figure"]


def layer_figure(rows: Sequence[Row], stacks: Sequence[Row], title: str) -> Figure:
    """Return how far each layer goes, its merge error, and the losses without it; a row of panels for each stack.

    Args:
        rows, stacks: the tables of :func:`.depth_tables.depth_tables`, averaged over seeds, with label and placement.
        title: above the panels.
    """
    sides = sides_of(rows)
    figure, panels = blank(len(sides), 4, title, width=4)
    for side, (step, error, removed, merged) in zip(sides, panels, strict=True):
        own = [row for row in rows if row["side"] == side]
        for axes, name in ((step, "step"), (error, "merge_error"), (removed, "loss_removed"), (merged, "loss_merged")):
            lines(axes, own, "layer", name)
            whole_numbers(axes)
            axes.set_xlabel(f"{side} layer t")
        layers = sorted({row["layer"] for row in own})
        for power, style, text in ((-0.5, "--", "1/√t"), (-1.0, ":", "1/t")):
            closed_form(step, layers, [layer**power for layer in layers], text, style)
        step.set_ylabel("relative step ‖x_t - x_{t-1}‖ / ‖x_{t-1}‖")
        logarithmic(step)
        depths = {row["label"]: row for row in stacks if row["side"] == side}
        said = "\n".join(f"{row['effective_depth']:.1f} of {row['depth']}: {label}" for label, row in depths.items())
        error.set_title(f"effective depth\n{said}", fontsize="x-small")
        error.set(ylabel="merge error e_t (relative)", ylim=(0, None))
        removed.set_ylabel("loss without layer t (bits a token)")
        merged.set_ylabel("loss, t beside t-1 (bits a token)")
        for axes in (removed, merged):
            for label, row in depths.items():
                axes.axhline(row["loss"], color=style_of(_placement(own, label))["color"], linewidth=0.7, linestyle=":")
    legend(figure)
    return figure


def _placement(rows: Sequence[Row], label: str) -> str:
    """Return the placement of the model with this label."""
    return str(next(row["placement"] for row in rows if row["label"] == label))


def sublayer_figure(rows: Sequence[Row], title: str) -> Figure:
    """Return Admin's dependency and ResiDual's collapse by sub-layer, with the closed forms at equal sizes."""
    sides = sides_of(rows)
    figure, panels = blank(len(sides), 2, title)
    for side, (dependency, collapse) in zip(sides, panels, strict=True):
        own = [row for row in rows if row["side"] == side]
        numbers = sorted({row["sublayer"] for row in own})
        lines(dependency, own, "sublayer", "dependency")
        lines(collapse, own, "sublayer", "collapse")
        closed_form(dependency, numbers, [1 / (k + 1) for k in numbers], "terms of one size: 1/(k+1)")
        closed = [collapse_at_start(k + 1) for k in numbers]
        closed_form(collapse, numbers, closed, "terms of one size: 2/(n + √(n² - n)), n = k+1", ":")
        dependency.set(xlabel=f"{side} sub-layer k", ylabel="dependency β²: the branch's share of the sum")
        collapse.set(xlabel=f"{side} sub-layer k", ylabel="Var(LN(x_k) - LN(x_{k-1}))")
        for axes in (dependency, collapse):
            whole_numbers(axes)
            logarithmic(axes)
    legend(figure)
    return figure


def distance_figure(rows: Sequence[Row], title: str) -> Figure:
    """Return the angular distances between what layers l and l+n read, one map for each model and stack."""
    stacks = list(dict.fromkeys((row["label"], row["side"]) for row in rows))
    columns = min(2, len(stacks))
    figure, panels = blank(math.ceil(len(stacks) / columns), columns, title)
    image = None
    for (label, side), axes in zip(stacks, panels.flat, strict=False):
        own = [row for row in rows if (row["label"], row["side"]) == (label, side)]
        size = max(row["n"] for row in own)
        grid = [[math.nan] * size for _ in range(size)]
        for row in own:
            grid[row["n"] - 1][row["layer"] - 1] = row["distance"]
        edges = (0.5, size + 0.5, 0.5, size + 0.5)
        image = axes.imshow(grid, origin="lower", extent=edges, vmin=0, vmax=0.5, cmap="cividis", aspect="auto")
        axes.grid(False)
        axes.set_title(label, fontsize="small")
        axes.set(xlabel=f"{side} layer l", ylabel="n")
    for axes in panels.flat[len(stacks) :]:
        axes.set_visible(False)
    if image is not None:
        figure.colorbar(image, ax=panels, label="angle between the inputs of layers l and l+n (1 = 180°)")
    return figure


def bleu_figure(rows: Sequence[Row], title: str) -> Figure:
    """Return BLEU without each layer (filled markers), and with it beside the one before (hollow), by stack.

    Args:
        rows: of :func:`.bleu.bleu_rows`, with label and placement.
        title: above the panels.
    """
    sides = sides_of(rows)
    figure, panels = blank(1, len(sides), title)
    for side, axes in zip(sides, panels.flat, strict=True):
        for label in dict.fromkeys(row["label"] for row in rows):
            own = [row for row in rows if row["label"] == label]
            placement = own[0]["placement"]
            for variant, what in enumerate(("removed", "merged")):
                found = [row for row in own if (row["side"], row["what"]) == (side, what)]
                line(axes, found, "layer", "bleu", f"{label}: {what}", placement, variant)
            whole = next(row["bleu"] for row in own if row["what"] == "whole")
            axes.axhline(whole, color=style_of(placement)["color"], linewidth=0.7, linestyle=":")
        axes.set(xlabel=f"{side} layer t", ylabel="BLEU (dotted: the whole model)", ylim=(0, None))
        whole_numbers(axes)
    legend(figure)
    return figure
