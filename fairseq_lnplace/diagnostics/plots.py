"""Tables become figures; the only module of the measurements that draws."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_lnplace.diagnostics.paper import DIFFERENCES, FIGURE_3, INITIAL, LAST_BY_DEPTH, SIDE
from fairseq_lnplace.diagnostics.tables import Row
from fairseq_lnplace.files import new_file
from fairseq_lnplace.measure.activation_rows import POST_INNER, pre_bounds
from fairseq_lnplace.measure.depth_tables import collapse_at_start
from fairseq_lnplace.palette import style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "activation_figure",
    "bleu_figure",
    "depth_figure",
    "distance_figure",
    "gradient_figure",
    "layer_figure",
    "save",
    "sublayer_figure",
    "theory_figure",
]

MATRICES = {"fc1": "W1", "fc2": "W2"}
NORM = "‖mean gradient‖ (nats a token)"
GREY = "0.5"


def save(figure: Figure, dest: Path, name: str) -> list[Path]:
    """Write the figure as PNG and SVG; return the paths."""
    paths = [dest / f"{name}.{kind}" for kind in ("png", "svg")]
    for path in paths:
        kind = path.suffix[1:]
        with new_file(path) as partial:
            figure.savefig(partial, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return paths


def blank(rows: int, columns: int, title: str, width: float = 4.6, height: float = 3.6) -> tuple[Figure, Any]:
    """Return a figure with a grid of panels, rows x columns."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows + 0.8), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat:
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, panels


def line(axes: Axes, rows: Sequence[Row], x: str, y: str, label: str, placement: str, variant: int = 0) -> None:
    """Draw ``y`` against ``x`` in the placement's style, with a band of one standard deviation over the seeds.

    ``variant`` counts the placement's lines in this picture; those after the first are thinner, with hollow markers.
    """
    rows = [row for row in rows if row[y] is not None]
    xs, ys = [row[x] for row in rows], [row[y] for row in rows]
    style: dict[str, Any] = {**style_of(placement, variant), "markersize": 5, "label": label}
    if variant:
        style |= {"markerfacecolor": "white", "linewidth": 1}
    axes.plot(xs, ys, **style)
    spread = [row.get(f"{y}_std") or 0.0 for row in rows]
    if any(spread):
        low, high = ([value + sign * each for value, each in zip(ys, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(xs, low, high, color=style["color"], alpha=0.2, linewidth=0)


def lines(axes: Axes, rows: Sequence[Row], x: str, y: str) -> None:
    """Draw one line for each label among the rows."""
    seen: Counter[str] = Counter()
    for label in dict.fromkeys(row["label"] for row in rows):
        own = [row for row in rows if row["label"] == label]
        placement = own[0]["placement"]
        line(axes, own, x, y, label, placement, seen[placement])
        seen[placement] += 1


def paper_line(axes: Axes, placement: str, state: str, values: dict[int, float]) -> None:
    """Draw digitised values: crosses in the placement's colour, upright at initialisation, joined by dots."""
    marker = "+" if state == INITIAL else "x"
    style: dict[str, Any] = {
        "color": style_of(placement)["color"],
        "linestyle": ":",
        "linewidth": 1,
        "marker": marker,
        "markersize": 8,
    }
    axes.plot(list(values), list(values.values()), label=f"paper: {placement}, {state}", **style)


def whole_numbers(axes: Axes) -> None:
    """Let the horizontal axis have ticks at whole numbers alone."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def logarithmic(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with plain numbers at 1, 2 and 5."""
    from matplotlib.ticker import LogLocator

    axes.set_yscale("log")
    axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")


def legend(figure: Figure, note: str = "") -> None:
    """Put one legend of all panels below them, under a note."""
    handles: dict[str, Any] = {}
    for panel in figure.axes:
        handles |= {text: handle for handle, text in zip(*panel.get_legend_handles_labels(), strict=True)}
    style: dict[str, Any] = {"ncols": 2, "frameon": False, "fontsize": "small", "title_fontsize": "x-small"}
    figure.legend(handles.values(), handles, loc="outside lower center", title=note or None, **style)


def sides_of(rows: Iterable[Row]) -> list[str]:
    """Return the stacks among the rows, the encoder first."""
    return sorted({row["side"] for row in rows if row["side"]}, reverse=True)


def gradient_figure(rows: Sequence[Row], title: str, with_paper: bool) -> Figure:
    """Return Figure 3 (a, b): the gradients of both feed-forward matrices against the layer, a row for each stack.

    Args:
        rows: of :func:`.gradients.gradient_rows`, averaged over seeds, each with its label and placement.
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
            axes.plot(depths, guide, color=GREY, linestyle=(0, (1, 3)), label="1/√L")
    axes.set(xlabel="layers in each stack, L", ylabel=f"last W2: {NORM}")
    logarithmic(axes)
    axes.set_xticks(depths)
    legend(figure)
    return figure


def activation_figure(rows: Sequence[Row], title: str, epsilon: float) -> Figure:
    """Return the sizes of the stream and of the last sum, with Lemma 2's lines, and δ; a row for each stack.

    Args:
        rows: of :func:`.activations.activation_rows`, averaged over seeds, each with its label and placement.
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
            stream.plot(layers, values, color=GREY, linestyle=style, linewidth=1, label=f"Lemma 2, Pre-LN: {text}")
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


def theory_figure(lemmas: Sequence[Row], theorem: Sequence[Row], decay: Sequence[Row]) -> Figure:
    """Return Lemma 2 and Theorem 1 as simulated; rows as of :mod:`.theory`."""
    figure, panels = blank(2, 2, "the paper's set-up, simulated: one head, W^Q = W^K = 0, square Gaussian matrices")
    (sizes, depths), (widths, layers) = panels
    second = [{"label": row["placement"], **row} for row in lemmas if row["lemma"] == 2]
    lines(sizes, second, "layer", "measured")
    pre = [row for row in second if row["low"] != row["high"]]
    for name, style, text in (("low", "--", "1 + l/2"), ("high", "-.", "1 + 3l/2")):
        bound = [row[name] for row in pre]
        sizes.plot(
            [row["layer"] for row in pre], bound, color=GREY, linestyle=style, linewidth=1, label=f"Lemma 2: {text}"
        )
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
            axes.plot([row[x] for row in own], bound, color=GREY, linestyle=(0, (1, 3)), label=text)
        axes.set(xlabel=label, ylabel=gradient, xscale="log")
        logarithmic(axes)
        ticks = sorted({row[x] for row in rows})
        axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
        axes.set_xticks([], minor=True)
    lines(layers, decay, "layer", "gradient")
    post = [row for row in decay if row["placement"] == "postln"]
    predicted = [row["predicted"] for row in post]
    layers.plot(
        [row["layer"] for row in post],
        predicted,
        color=GREY,
        linestyle="--",
        linewidth=1,
        label="appendix F: (2/3)^((L-l)/2)",
    )
    layers.set(xlabel="layer", ylabel="‖dL/dW2‖ (nats a token)")
    whole_numbers(layers)
    logarithmic(layers)
    legend(figure)
    return figure


def layer_figure(rows: Sequence[Row], stacks: Sequence[Row], title: str) -> Figure:
    """Return how far each layer goes, its merge error, and the losses without it; a row of panels for each stack.

    Args:
        rows, stacks: the tables of :func:`.depth.depth_tables`, averaged over seeds, with label and placement.
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
            step.plot(layers, [layer**power for layer in layers], color=GREY, linestyle=style, linewidth=1, label=text)
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
        grey: dict[str, Any] = {"color": GREY, "linestyle": "--", "linewidth": 1}
        dependency.plot(numbers, [1 / (k + 1) for k in numbers], label="terms of one size: 1/(k+1)", **grey)
        closed = [collapse_at_start(k + 1) for k in numbers]
        collapse.plot(
            numbers, closed, label="terms of one size: 2/(n + √(n² - n)), n = k+1", **(grey | {"linestyle": ":"})
        )
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
