"""Lines become figures, and figures SVG for a page: matplotlib draws, what would clash in a page is taken out."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from fairseq_lnplace.palette import style_of
from fairseq_lnplace.report.curves import UNITS, Array, Line, Metric
from fairseq_lnplace.report.layers import Panel

__all__ = ["Frames", "layer_figure", "progress_figure", "swatch"]

# For each time, for each line: the points x, y on the figure.
Frames = list[list[list[tuple[float, float]]]]

SIZE = (4.4, 2.9)  # inches; the page scales a figure to its column
PLACE = (0.15, 0.16, 0.83, 0.81)  # of the axes in a figure: the same in all, so that panels stand in line
STYLE = {"svg.fonttype": "none", "font.size": 9.5}
MARKED = 16  # the most points that bear markers
CROSS: dict[str, Any] = {"marker": "x", "markersize": 9, "markeredgewidth": 2.5, "linestyle": "none", "clip_on": False}
FROM_ZERO = ("bleu", "eval_bleu", "lr")


def blank(xlabel: str) -> tuple[Figure, Axes]:
    """Return a figure with one panel; the page says above it what it shows."""
    figure = Figure(figsize=SIZE)
    axes = figure.add_axes(PLACE, xlabel=xlabel)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def look(line: Line) -> dict[str, Any]:
    """Return a line's style; those with many points bear no markers."""
    style: dict[str, Any] = {**style_of(line.placement, line.variant), "linewidth": 1.6, "markersize": 4}
    if line.published:
        return style | {"linestyle": (0, (2, 2)), "linewidth": 1, "marker": "x", "markersize": 5}
    return style | ({"marker": "none"} if len(line.xs) > MARKED else {})


def draw(axes: Axes, line: Line) -> Any:
    """Draw a line with its band; return the line."""
    style = look(line)
    if line.low is not None and line.high is not None:
        axes.fill_between(line.xs, line.low, line.high, color=style["color"], alpha=0.2, linewidth=0)
    (drawn,) = axes.plot(line.xs, line.ys, **style)
    return drawn


def logarithmic(axes: Axes, low: float, high: float) -> None:
    """Make the vertical axis logarithmic, with plain numbers, as many as tell the range."""
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    decades = np.log10(high / low)
    digits = (1, 1.5, 2, 3, 5, 7) if decades < 1 else (1, 2, 5) if decades < 3 else (1,)
    axes.yaxis.set_major_locator(LogLocator(subs=digits, numticks=12))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


@rc_context(STYLE)
def progress_figure(lines: Sequence[Line], metric: Metric, unit: str) -> str:
    """Return the lines of one metric against one of UNITS, as SVG; a cross is where a seed diverged."""
    figure, axes = blank(UNITS[unit])
    for behind, line in zip(reversed(range(len(lines))), lines, strict=True):
        drawn = draw(axes, line)
        if metric.name == "lr":  # often the same; thicker below, so that each shows
            drawn.set_linewidth(1.6 + 1.6 * min(behind, 3))
    low, high = limits(lines, metric.logarithmic)
    if metric.logarithmic:
        logarithmic(axes, low, high)
    else:
        axes.set_ylim(0 if metric.name in FROM_ZERO else low, high)
    axes.set_xlim(left=0)
    for line in lines:
        for x, y in line.ends:
            axes.plot([x], np.clip([y], *axes.get_ylim()), color=look(line)["color"], **CROSS)
    if unit != "minutes":
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    return svg(figure, f"{metric.name}-{unit}")


def limits(lines: Sequence[Line], logarithmic: bool) -> tuple[float, float]:
    """Return the range of the vertical axis: all values, but those of what diverges may leave the picture."""
    kept = [line for line in lines if not line.ends] or lines
    values = np.concatenate([each for line in kept for each in (line.ys, line.low, line.high) if each is not None])
    return margin(values, logarithmic)


def margin(values: Array, logarithmic: bool) -> tuple[float, float]:
    """Return the values' range and a little more."""
    if logarithmic:
        values = np.log10(values[values > 0]) if (values > 0).any() else np.array([0.0])
    space = 0.06 * (np.ptp(values) or 1.0)
    low, high = float(values.min() - space), float(values.max() + space)
    return (10**low, 10**high) if logarithmic else (low, high)


@rc_context(STYLE)
def layer_figure(panel: Panel) -> tuple[str, Frames]:
    """Return a panel at its last time as SVG, and where its points are at every time.

    The lines are marked by ``data-line``, counted from 0.
    """
    figure, axes = blank(panel.xlabel)
    for number, times in enumerate(zip(*panel.frames, strict=True)):
        # The page moves the points that are drawn, so that all a line ever has must be.
        line = max(reversed(times), key=lambda line: len(line.xs))
        draw(axes, line if len(times) == 1 else replace(line, low=None)).set_gid(f"moving{number}")
    lines = [line for frame in panel.frames for line in frame]
    layers = np.unique(np.concatenate([line.xs for line in lines]))
    axes.set_xlim(layers[0] - 0.3, layers[-1] + 0.3)
    axes.xaxis.set_major_locator(FixedLocator(layers.tolist()) if len(layers) <= 12 else MaxNLocator(integer=True))
    low, high = margin(np.concatenate([line.ys for line in lines]), panel.logarithmic)
    if panel.logarithmic:
        logarithmic(axes, low, high)
    else:
        axes.set_ylim(low, high)
    text = re.sub(r'<g id="moving(\d+)"', r'<g data-line="\1"', svg(figure, panel.name))
    return text, [[points(figure, axes, line) for line in frame] for frame in panel.frames]


def points(figure: Figure, axes: Axes, line: Line) -> list[tuple[float, float]]:
    """Return where a line's points are on a figure that was drawn; SVG counts 72 to an inch, and from the top."""
    pixels = axes.transData.transform(np.stack([line.xs, line.ys], axis=1)) * 72 / figure.dpi
    return [(round(float(x), 1), round(float(SIZE[1] * 72 - y), 1)) for x, y in pixels]


@rc_context(STYLE)
def swatch(line: Line) -> str:
    """Return a short piece of a line, for legends, as SVG whose names begin with "swatch"."""
    figure = Figure(figsize=(0.5, 0.2))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 2), ylim=(-1, 1))
    axes.axis("off")
    axes.plot([0.1, 1, 1.9], [0, 0, 0], **look(line), markevery=[1], clip_on=False)
    return svg(figure, "swatch")


def svg(figure: Figure, name: str) -> str:
    """Return a figure as an element of a page; ``name`` keeps its names apart from those of other figures."""
    target = io.StringIO()
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None}, dpi=figure.dpi)
    text = target.getvalue()
    text = re.sub(r"<(metadata|style).*?</\1>", "", text[text.index("<svg") :], flags=re.DOTALL)
    width, height = (72 * inches for inches in figure.get_size_inches())
    text = re.sub(r"^<svg[^>]*>", f'<svg aria-hidden="true" viewBox="0 0 {width:g} {height:g}">', text)
    text = re.sub(r"font(-family)?: [^;]*'DejaVu Sans'[^;\"]*;?", "", text)  # the page's
    used = set(re.findall(r'(?:href="|url\()#([\w-]+)', text))
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    text = re.sub(r' id="(?!moving)([^"]*)"', lambda id: f' id="{name}-{id[1]}"' if id[1] in used else "", text)
    # A hundredth of a point is enough for what stands in tags; the text between them stays.
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), text)
    return re.sub(r"\s*\n\s*", "\n", text)
