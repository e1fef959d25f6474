"""The few kinds of things that a diagram consists of, and how each looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

__all__ = ["EXTRA", "GREY", "Pen", "Point"]

INK, GREY, EXTRA = "#1b2733", "#8a949e", "#b4501e"
FILLS = {"norm": "#2f5d8c", "block": "#e3ebf3", "plain": "#ffffff", "scale": "#f6c667"}

Point = tuple[float, float]


@dataclass(frozen=True)
class Pen:
    """Draws the diagram's few kinds of things."""

    axes: Axes

    def box(self, x: float, y: float, kind: str, text: str, width: float = 2.1) -> None:
        """Draw a box around a centre; a scale is a small circle."""
        ink = "white" if kind == "norm" else INK
        if kind == "scale":
            self.axes.add_patch(Circle((x, y), 0.25, facecolor=FILLS[kind], edgecolor=INK, linewidth=1, zorder=3))
        else:
            height = 0.5
            shape = FancyBboxPatch(
                (x - width / 2, y - height / 2),
                width,
                height,
                boxstyle="round,pad=0,rounding_size=0.09",
                facecolor=FILLS[kind],
                edgecolor=GREY if kind == "plain" else INK,
                linewidth=1,
                zorder=3,
            )
            self.axes.add_patch(shape)
        self.axes.text(x, y, text, color=ink, fontsize=10, ha="center", va="center_baseline", zorder=4)

    def add(self, x: float, y: float) -> None:
        """Draw an addition."""
        self.axes.add_patch(Circle((x, y), 0.2, facecolor="white", edgecolor=INK, linewidth=1.3, zorder=3))
        for dx, dy in ((0.11, 0.0), (0.0, 0.11)):
            self.axes.plot([x - dx, x + dx], [y - dy, y + dy], color=INK, linewidth=1.3, zorder=4)

    def line(self, *points: Point, arrow: bool = False, color: str = INK, dashed: bool = False) -> None:
        """Draw a line through points, with a head at its end if asked for."""
        xs, ys = zip(*points, strict=True)
        dashes = (0, (4, 2)) if dashed else "-"
        self.axes.plot(xs, ys, color=color, linewidth=1.4, linestyle=dashes, solid_joinstyle="round", zorder=2)
        if arrow:
            (x0, y0), (x, y) = points[-2:]
            length = max(abs(x - x0), abs(y - y0))
            tail = (x - 0.3 * (x - x0) / length, y - 0.3 * (y - y0) / length)
            head = FancyArrowPatch(
                tail, (x, y), arrowstyle="-|>", mutation_scale=11, color=color, shrinkA=0, shrinkB=0, zorder=2.5
            )
            self.axes.add_patch(head)

    def frame(self, left: float, bottom: float, right: float, top: float, faint: bool = False) -> None:
        """Draw a frame around a layer, or a faint one around a sub-layer that is drawn in parts."""
        shape = FancyBboxPatch(
            (left, bottom),
            right - left,
            top - bottom,
            boxstyle="round,pad=0,rounding_size=0.15",
            facecolor="#f3f6f9" if faint else "none",
            edgecolor=GREY,
            linewidth=0.8 if faint else 1.2,
            linestyle="-" if faint else (0, (6, 3)),
            zorder=1,
        )
        self.axes.add_patch(shape)

    def text(self, x: float, y: float, text: str, **style: Any) -> None:
        """Write a note."""
        self.axes.text(x, y, text, **{"fontsize": 9, "color": INK, "va": "center_baseline", **style}, zorder=4)
