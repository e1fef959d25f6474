import re
from pathlib import Path

import numpy as np
import pytest
from lxml import etree

from fairseq_lnplace.report.curves import Line, Metric
from fairseq_lnplace.report.figures import layer_figure, progress_figure, swatch
from fairseq_lnplace.report.layers import Panel

LOSS = Metric("loss", "loss", lambda run: (np.array([]), np.array([])))


def line(xs: list[float], ys: list[float], placement: str = "postln", **more: object) -> Line:
    return Line("title", placement, 0, np.array(xs, dtype=float), np.array(ys, dtype=float), **more)  # type: ignore[arg-type]


def drawn(svg: str, colour: str) -> list[list[tuple[float, float]]]:
    """The points of the paths that are stroked in a colour."""
    paths = re.findall(rf'<path d="([^"]*)"[^>]*stroke: {colour.lower()}', svg)
    return [[(float(x), float(y)) for x, y in re.findall(r"[ML] ?(\S+) (\S+)", path)] for path in paths]


def tick_of(svg: str, text: str) -> float:
    """The height of a number at the vertical axis, whose text stands a little below it."""
    found = re.search(rf'<text[^>]* x="(\S+)" y="(\S+)"[^>]*>{text}</text>', svg)
    assert found
    return float(found[2]) - 3.6


def test_a_line_runs_through_its_points() -> None:
    svg = progress_figure([line([0, 10, 20], [200, 400, 300])], LOSS, "updates")
    (path,) = drawn(svg, "#D55E00")
    (x0, y0), (x1, y1), (x2, y2) = path
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.03)
    assert y0 - y1 == pytest.approx(2 * (y2 - y1), abs=0.03), "up is less in SVG"
    assert tick_of(svg, "400") == pytest.approx(y1, abs=1)


def test_what_diverges_leaves_the_picture_and_its_cross_stays_in() -> None:
    steady, wild = line([0, 10], [5, 4]), line([0, 5], [5, 1e9], "preln_final", ends=[(5.0, 1e9)])
    svg = progress_figure([steady, wild], LOSS, "updates")
    alone = progress_figure([steady], LOSS, "updates")
    assert np.allclose(drawn(svg, "#D55E00"), drawn(alone, "#D55E00")), "the range is the steady one's"
    edge = re.search(r'<rect x="\S+" y="(\S+)"', svg)
    assert edge
    assert f'y="{edge[1]}" style="fill: #0072b2' in svg, "the cross, at the upper edge"


@pytest.mark.parametrize("logarithmic", [False, True])
def test_frames_are_where_the_figure_draws_its_points(logarithmic: bool) -> None:
    frames = [
        [line([1, 2, 3], [1, 10, 100]), line([], [], "preln_final")],
        [line([1, 2, 3], [5, 6, 7]), line([1, 2], [20, 2], "preln_final")],
    ]
    svg, points = layer_figure(Panel("name", "layer", "norm", logarithmic, frames))
    assert [[len(line) for line in frame] for frame in points] == [[3, 0], [3, 2]]
    for number, colour in enumerate(("#D55E00", "#0072B2")):
        (path,) = drawn(svg, colour)
        assert np.array(points[1][number]) == pytest.approx(np.array(path), abs=0.06)
        assert f'data-line="{number}"' in svg
    (_, low), (_, middle), (_, high) = points[0][0]
    share = (low - middle) / (low - high)
    assert share == pytest.approx(0.5 if logarithmic else 9 / 99, abs=0.01)


def test_a_figure_holds_every_point_that_its_frames_need() -> None:
    frames = [[line([1, 2, 3], [1, 2, 3])], [line([1], [2])]]  # the last time has fewer
    svg, points = layer_figure(Panel("name", "layer", "norm", False, frames))
    assert len(re.findall(r'<use [^>]*style="fill: #d55e00', svg)) == 3
    assert [len(frame[0]) for frame in points] == [3, 1]


def test_figures_are_well_formed_and_clash_with_nothing() -> None:
    first, second = (progress_figure([line([0, 1], [1, 2])], LOSS, unit) for unit in ("updates", "epochs"))
    look = swatch(line([], []))
    names = [re.findall(r' id="([^"]*)"', svg) for svg in (first, second, look)]
    assert not set(names[0]) & set(names[1])
    assert all(name.startswith("swatch-") for name in names[2])
    for svg in (first, second, look):
        root = etree.fromstring(svg.replace("xlink:href", "href"))
        assert root.get("aria-hidden") == "true"
        assert root.get("viewBox").startswith("0 0 ")
        assert "http" not in svg
        assert "<style" not in svg
        used = re.findall(r'(?:href="|url\()#([\w-]+)', svg)
        assert set(used) == set(re.findall(r' id="([^"]*)"', svg))


def test_small_numbers_stand_at_the_axis_in_full() -> None:
    svg = progress_figure([line([0, 10], [0.0005, 0.002])], LOSS, "updates")
    assert tick_of(svg, r"0\.0020*") < tick_of(svg, r"0\.0010*")
    svg, _ = layer_figure(Panel("name", "layer", "norm", True, [[line([1, 2], [0.0005, 0.002])]]))
    assert tick_of(svg, r"0\.001") < tick_of(svg, r"0\.0005")


def test_learning_rates_that_are_the_same_all_show() -> None:
    rates = Metric("lr", "learning rate", LOSS.values)
    lines = [line([0, 10], [1, 2]), line([0, 10], [1, 2], "preln_final")]
    widths = re.findall(
        r"stroke: #(?:d55e00|0072b2); stroke-width: (\S+?)[;\"]", progress_figure(lines, rates, "updates")
    )
    assert float(widths[0]) > float(widths[1])


def test_published_values_are_dashed() -> None:
    ours = progress_figure([line([0, 1], [1, 2])], LOSS, "epochs")
    theirs = progress_figure([line([0, 1], [1, 2], published=True)], LOSS, "epochs")
    assert "stroke-dasharray" not in ours
    assert "stroke-dasharray" in theirs


def test_colours_are_the_palettes(tmp_path: Path) -> None:
    assert "stroke: #0072b2" in swatch(line([], [], "preln_final"))
    assert "stroke: #000000" in swatch(line([], [], ""))
