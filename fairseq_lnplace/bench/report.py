"""A benchmark's rows as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from fairseq_lnplace.files import new_file

__all__ = ["draw", "table"]

Rows = Sequence[dict[str, Any]]

# key of a row -> heading and format
COLUMNS = {
    "side": ("side", "{}"),
    "layers": ("layers", "{}"),
    "seconds": ("seconds", "{:.3f}"),
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
        text = key == "side"
        shown.add_column(COLUMNS[key][0], justify="left" if text else "right", overflow="fold", no_wrap=not text)
    for row in rows:
        shown.add_row(*(COLUMNS[key][1].format(row[key]) if key in row else "" for key in keys))
    return shown


def draw(rows: Rows, caption: str, path: Path) -> None:
    """Draw the rows to a picture: lines over the number of layers where they differ in it, else a bar for each side."""
    from matplotlib.figure import Figure  # slow to import

    figure = Figure(figsize=(8, 1.6 + 0.3 * len(rows)) if "layers" not in rows[0] else (9, 4), layout="constrained")
    figure.suptitle(caption, fontsize="medium")
    if "layers" in rows[0]:
        for column, (key, label) in enumerate((("seconds", "seconds a round"), ("peak_mib", "peak memory, MiB")), 1):
            axes = figure.add_subplot(1, 2, column, xlabel="layers of encoder and of decoder", ylabel=label)
            for side in dict.fromkeys(row["side"] for row in rows):
                own = [row for row in rows if row["side"] == side]
                axes.plot([row["layers"] for row in own], [row[key] for row in own], marker="o", label=side)
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
            axes.legend()
    else:
        key, label = ("speed", "speed") if "speed" in rows[0] else ("memory", "peak memory")
        axes = figure.add_subplot(xlabel=f"{label} as a multiple of {rows[0]['side']}")
        values = [row[key] for row in rows]
        ranges = [row.get("speed_range", [row[key]] * 2) for row in rows]
        errors = [
            [value - low for value, (low, _) in zip(values, ranges, strict=True)],
            [high - value for value, (_, high) in zip(values, ranges, strict=True)],
        ]
        bars = axes.barh([row["side"] for row in rows], values, xerr=errors, capsize=3)
        axes.bar_label(bars, fmt="%.2f", label_type="center", color="white")
        axes.axvline(1, color="black", linewidth=0.8)
        axes.invert_yaxis()
    with new_file(path) as partial:
        figure.savefig(partial, format="png", dpi=150)
