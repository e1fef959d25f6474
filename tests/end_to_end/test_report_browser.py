"""The report in a browser: it draws, its slider and its units work, it fits narrow and wide windows, alone on disk."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from written_runs import inner, valid, write_cell, write_depth, write_evaluation, write_layer_stats

from fairseq_lnplace.cli import main

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed (scripts/test.sh installs it as root)"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything there is in it, and with words that are longer than a narrow window."""
    folder = tmp_path_factory.mktemp("runs")
    long = "a_word_that_nobody_would_break_" * 4
    log = "".join(inner(update) + valid(update, str(9 - update / 20)) for update in range(10, 60, 10))
    for number, options in enumerate([{"seed": 1}, {"seed": 2}, {"lr": 3, "data_buffer": long}, {"user_data": long}]):
        cell = write_cell(folder / f"run{number}", log=log, **options)
        write_evaluation(cell, "checkpoint_best", "test", 20.0)
        write_evaluation(cell, "checkpoint1", "valid", 10.0)
        write_layer_stats(cell, [10, 30, 50], layers=3, scale=1 + number)
    write_cell(folder / "diverged", "diverged", inner(10) + inner(20, loss="nan"), title=f"Post-LN {long}")
    write_depth(folder / "depth.json", "run0/checkpoint_best", f"{long}/checkpoint_best")
    assert main(["report", str(folder), "--output", str(folder / "report.html")]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])


@pytest.fixture(params=[(400, "light"), (1600, "dark")], ids=["narrow", "wide"])
def page(report: Path, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page in a window; whatever it says or asks for must be nothing but itself."""
    width, colours = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=colours, offline=True)
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    yield page
    assert said == []
    assert asked == [report.as_uri()]
    context.close()


def test_it_draws_what_it_has(report: Path, page: Page) -> None:
    assert report.stat().st_size < 5_000_000
    shown = page.locator("figure:visible")
    assert shown.count() == 5 + 3 + 2  # learning curves against one unit, layers during training, depth
    for number in range(shown.count()):
        box = shown.nth(number).locator("svg").bounding_box()
        assert box
        assert box["width"] > 250
        assert box["height"] > 150
    assert page.get_by_text("diverged at update 20").first.is_visible()


def test_nothing_overflows_even_with_all_details_open(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    width, window = page.evaluate("[document.scrollingElement.scrollWidth, window.innerWidth]")
    assert width <= window
    outside = page.evaluate(
        "[...document.querySelectorAll('section *')].filter(each => !each.closest('.scroll')"
        " && each.getBoundingClientRect().right > window.innerWidth + 1).map(each => each.outerHTML.slice(0, 80))"
    )
    assert outside == []


def test_the_slider_moves_the_lines_and_tells_the_time(page: Page) -> None:
    figure = page.locator("#layers figure").first

    def state() -> tuple[str | None, list[str | None], str]:
        markers = figure.locator("[data-line] use")
        heights = [markers.nth(number).get_attribute("y") for number in range(markers.count())]
        path = figure.locator("[data-line] > path").first.get_attribute("d")
        return path, heights, page.locator("output").inner_text()

    slider = page.locator("#time")
    last = state()
    assert last[2] == "update 50, epoch 5.0"
    slider.focus()
    page.keyboard.press("Home")
    first = state()
    assert first[2] == "update 10, epoch 1.0"
    assert slider.get_attribute("aria-valuetext") == first[2]
    assert first[0] != last[0]
    assert all(float(a or 0) > float(b or 0) for a, b in zip(first[1], last[1], strict=True)), "gradients have grown"
    page.keyboard.press("End")
    assert state() == last


def test_the_units_change_the_curves(page: Page) -> None:
    for unit in ("epochs", "minutes", "updates"):
        page.locator(f"label[for=unit-{unit}]").click()
        shown = page.locator("#curves figure:visible")
        assert {shown.nth(number).get_attribute("data-unit") for number in range(shown.count())} == {unit}
