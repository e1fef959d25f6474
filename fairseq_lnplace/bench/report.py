"""A benchmark's rows as a table and a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from fairseq_lnplace.files import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw", "table"]

Rows = Sequence[dict[str, Any]]

# key of a row -> heading and format
COLUMNS = {
    "side": ("side", "{}"),
    "operations": ("operations", "{}"),
    "layers": ("layers", "{}"),
    "seconds": ("seconds", "{:.3f}"),
    "share": ("share", "{:.0%}"),
    "calls": ("calls", "{}"),
    "most": ("mostly", "{}"),
    "spread": ("spread", "{:.0%}"),
    "speed": ("speed", "{:.2f}x"),
    "speed_range": ("rounds", "{0[0]:.2f}-{0[1]:.2f}"),
    "tokens_per_second": ("tokens/s", "{:.0f}"),
    "tokens_per_update": ("tokens/update", "{:.0f}"),
    "sentences_per_second": ("sentences/s", "{:.1f}"),
    "share_of_peak": ("of peak", "{:.0%}"),
    "memory": ("memory", "{:.2f}x"),
    "peak_mib": ("peak MiB", "{:.0f}"),
    "peak_total_mib": ("process MiB", "{:.0f}"),
    "loss_difference": ("loss ±", "{:.0e}"),
    "identical": ("same", "{:.1%}"),
    "score_difference": ("score ±", "{:.0e}"),
}


def table(rows: Rows, caption: str) -> Table:
    """Return the table of what the rows hold."""
    shown = Table(caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    keys = [key for key in COLUMNS if any(key in row for row in rows)]
    for key in keys:
        text = key in ("side", "operations", "most")
        shown.add_column(COLUMNS[key][0], justify="left" if text else "right", overflow="fold", no_wrap=not text)
    for row in rows:
        shown.add_row(*(COLUMNS[key][1].format(row[key]) if key in row else "" for key in keys))
    return shown


def draw(rows: Rows, caption: str, path: Path) -> None:
    """Draw the rows to a picture: lines over the number of layers, bars of each kind of operation, or a bar a side."""
    from matplotlib.figure import Figure  # slow to import

    ratios = not {"layers", "operations"} & rows[0].keys()
    figure = Figure(figsize=(8, 1.6 + 0.3 * len(rows)) if ratios else (9, 4), layout="constrained")
    figure.suptitle(textwrap.fill(caption, 100), fontsize="medium")
    if ratios:
        draw_ratios(rows, figure)
    elif "layers" in rows[0]:
        draw_depth(rows, figure)
    else:
        draw_profile(rows, figure)
    with new_file(path) as partial:
        figure.savefig(partial, format="png", dpi=150)


def draw_depth(rows: Rows, figure: Figure) -> None:
    """Draw seconds and memory over the number of layers, a line for each side."""
    for column, (key, label) in enumerate((("seconds", "seconds a round"), ("peak_mib", "peak memory, MiB")), 1):
        axes = figure.add_subplot(1, 2, column, xlabel="layers of encoder and of decoder", ylabel=label)
        for side, own in by_side(rows).items():
            axes.plot([row["layers"] for row in own], [row[key] for row in own], marker="o", label=side)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()


def draw_profile(rows: Rows, figure: Figure) -> None:
    """Draw a bar for each kind of operation and side."""
    kinds = list(dict.fromkeys(row["operations"] for row in rows))
    axes = figure.add_subplot(xlabel="seconds a round", yticks=range(len(kinds)), yticklabels=kinds)
    height = 0.8 / len(by_side(rows))
    for number, (side, own) in enumerate(by_side(rows).items()):
        places = [kinds.index(row["operations"]) + (number + 0.5) * height - 0.4 for row in own]
        axes.barh(places, [row["seconds"] for row in own], height, label=side)
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    axes.legend()


def draw_ratios(rows: Rows, figure: Figure) -> None:
    """Draw a bar for each side, as a multiple of the first."""
    key, label = ("speed", "speed") if "speed" in rows[0] else ("memory", "peak memory")
    axes = figure.add_subplot(xlabel=f"{label} as a multiple of {rows[0]['side']}")
    values = [row[key] for row in rows]
    ranges = [row.get("speed_range", [row[key]] * 2) for row in rows]
    errors = [
        [value - low for value, (low, _) in zip(values, ranges, strict=True)],
        [high - value for value, (_, high) in zip(values, ranges, strict=True)],
    ]
    axes.barh([row["side"] for row in rows], values, xerr=errors, capsize=3)
    for place, value in enumerate(values):  # at the bars' feet, where neither the baseline's line nor a range is
        axes.annotate(f"{value:.2f}", (0, place), (6, 0), textcoords="offset points", va="center", color="white")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()


def by_side(rows: Rows) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each side, in their order."""
    return {side: [row for row in rows if row["side"] == side] for side in dict.fromkeys(row["side"] for row in rows)}
