"""The panels of a figure: their axes, the lines in them, and the legend below; and the figure's files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_lnplace.diagnostics.paper import INITIAL
from fairseq_lnplace.diagnostics.tables import Row
from fairseq_lnplace.files import new_file
from fairseq_lnplace.palette import style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "DOTTED",
    "GREY",
    "blank",
    "closed_form",
    "legend",
    "line",
    "lines",
    "logarithmic",
    "paper_line",
    "save",
    "sides_of",
    "whole_numbers",
]

GREY = "0.5"
DOTTED = (0, (1, 3))  # sparsely


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


def closed_form(
    axes: Axes, xs: Sequence[int], ys: Sequence[float], label: str, linestyle: Any = "--", linewidth: float | None = 1
) -> None:
    """Draw in grey what a formula gives; a width of None is matplotlib's own."""
    axes.plot(xs, ys, color=GREY, linestyle=linestyle, linewidth=linewidth, label=label)


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
