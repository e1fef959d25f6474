import json
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from written_runs import inner, valid, write_cell, write_depth, write_evaluation, write_layer_stats

from fairseq_lnplace.cli import main
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.report.page import Judgement, Published, build, write
from fairseq_lnplace.runs.trained_run import read_runs


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds, a diverged and an interrupted training, with statistics and a measurement."""
    folder = tmp_path_factory.mktemp("runs") / "grid"
    for seed, loss in ((1, "4"), (2, "3")):
        cell = write_cell(
            folder / f"pre-{seed}", log=inner(10) + valid(10, loss) + inner(20) + valid(20, "8"), seed=seed
        )
        write_evaluation(cell, "checkpoint_best", "test", 20.0 + seed)
        write_evaluation(cell, "checkpoint1", "valid", 9.0)
        write_layer_stats(cell, [10, 20])
    diverged = inner(10, loss="9") + inner(20, loss="nan")
    write_cell(folder / "x-diverged", "diverged", diverged, "Post-LN <fast>", arch="transformer_postln_tiny")
    write_cell(folder / "y-stopped", "training", title="DeepNorm", placement="deepnorm", warmup_updates=400)
    write_depth(folder / "diagnose" / "depth.json", "pre-1/checkpoint_best")
    return folder


def page_of(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "lxml")


def rows_of(page: BeautifulSoup, label: str) -> list[list[str]]:
    """The text of a table, a list for each row."""
    rows = page.select(f'[aria-label="{label}"] tr')
    return [[" ".join(cell.get_text(" ").split()) for cell in row.select("th, td")] for row in rows]


def test_the_command_writes_the_page_and_says_what_is_in_it(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "report.html"
    assert main(["report", str(experiment), "--output", str(output)]) == 0
    assert capsys.readouterr().out == (
        "4 trainings of 3 settings: 2 finished, 1 diverged, 1 interrupted. "
        f"The lowest validation loss is Pre-LN's, 3.50. The highest BLEU is Pre-LN's, 21.5.\n{output}\n"
    )
    page = page_of(output)
    assert page.h1.get_text() == "Trainings side by side"
    assert [section["id"] for section in page.select("section")] == [
        *("results", "settings", "curves", "layers", "measured", "again"),
    ]
    assert [link["href"][1:] for link in page.select("nav a")] == [section["id"] for section in page.select("section")]


@pytest.fixture(scope="module")
def page(experiment: Path) -> BeautifulSoup:
    assert main(["report", str(experiment), "--output", str(experiment / "report.html")]) == 0
    return page_of(experiment / "report.html")


def test_results_have_states_scores_and_the_spread_over_seeds(page: BeautifulSoup) -> None:
    assert rows_of(page, "Results") == [
        ["setting", "state", "updates", "valid loss", "valid ppl", "BLEU", "chrF", "minutes"],
        ["Pre-LN", "2 finished", "20", "3.50 3.00 to 4.00", "32.0", "21.5 21.0 to 22.0", "50.0", "2.0"],
        ["Post-LN <fast>", "diverged at update 20", "20", "–", "–", "–", "–", "2.0"],
        ["DeepNorm", "interrupted at update 10", "10", "6.00", "32.0", "–", "–", "1.0"],
    ]
    each = rows_of(page, "Each training")
    assert [row[:3] for row in each[1:3]] == [["Pre-LN", "1", "finished"], ["Pre-LN", "2", "finished"]]
    text = page.select_one("#results").get_text(" ")
    assert "BLEU: nrefs:1" in " ".join(text.split())
    assert "checkpoint_best.pt (beam 5)" in text


def test_settings_show_what_differs_and_fold_the_rest(page: BeautifulSoup) -> None:
    assert rows_of(page, "Options in which the settings differ") == [
        ["setting", "arch", "placement", "warmup-updates"],
        ["Pre-LN", "transformer_preln_final_tiny", "–", "–"],
        ["Post-LN <fast>", "transformer_postln_tiny", "–", "–"],
        ["DeepNorm", "transformer_preln_final_tiny", "deepnorm", "400"],
    ]
    common = {pair.dt.get_text(): pair.dd.get_text() for pair in page.select("#settings dl div")}
    assert common == {"data": "data", "lr": "1e-3", "cpu": "yes", "max-update": "20"}


def test_each_curve_is_drawn_against_three_units(page: BeautifulSoup) -> None:
    labels = [figure.figcaption.get_text() for figure in page.select('#curves figure[data-unit="epochs"]')]
    assert labels == [
        *("validation loss (bits a token)", "BLEU, valid set, beam 5", "training loss (bits a token)"),
        *("learning rate", "gradient norm before clipping"),
    ]
    assert len(page.select("#curves figure")) == 3 * len(labels)
    assert [entry.get_text().strip() for entry in page.select("#curves .legend li")] == [
        "Pre-LN",
        "Post-LN <fast>",
        "DeepNorm",
    ]


def test_the_slider_has_the_updates_of_the_statistics(page: BeautifulSoup) -> None:
    slider = page.select_one("#time")
    assert (slider["min"], slider["max"], slider["value"]) == ("0", "1", "1")
    assert page.select_one("output").get_text() == "update 20, epoch 2.0"
    frames = json.loads(page.select_one("#frames").get_text())
    assert list(frames) == [figure["data-panel"] for figure in page.select("#layers figure")]
    assert [len(panel) for panel in frames.values()] == [2, 2, 2]


def test_effective_depth_is_in_a_table(page: BeautifulSoup) -> None:
    assert rows_of(page, "Effective depth")[1:] == [["Pre-LN", "decoder", "2", "1.10", "1.00"]]
    assert page.select_one("#measured h3").get_text() == "depth, on 1 batch of 500 tokens of toy"


def test_versions_and_commands(page: BeautifulSoup) -> None:
    commands = [block.get_text() for block in page.select("#again pre")]
    assert len(commands) == 4
    assert commands[0].startswith("fairseq-train data --user-dir x")
    assert "fairseq_lnplace" in rows_of(page, "Versions")[0][1]


def test_nothing_is_asked_of_the_network_and_every_figure_is_described(experiment: Path, page: BeautifulSoup) -> None:
    text = (experiment / "report.html").read_text(encoding="utf-8")
    assert "http" not in text
    assert len(text) < 5_000_000
    ids = [element["id"] for element in page.select("[id]")]
    assert len(ids) == len(set(ids))
    for figure in page.select("figure"):
        assert figure.select_one('[role="img"]')["aria-label"].startswith(figure.figcaption.get_text())


def test_a_language_model_has_no_bleu_and_a_classifier_has_accuracy(tmp_path: Path) -> None:
    log = inner(10) + valid(10) + valid(20, "7", valid_accuracy="80") + valid(30, "8", valid_accuracy="75")
    write_cell(tmp_path / "a", log=inner(10) + valid(10))
    page = BeautifulSoup(build(read_runs([tmp_path])), "lxml")
    assert rows_of(page, "Results")[0] == ["setting", "state", "updates", "valid loss", "valid ppl", "minutes"]
    assert "BLEU" not in page.get_text()
    assert not page.select("#layers, #measured, #claims, script")
    write_cell(tmp_path / "b", log=log, lr=2)
    page = BeautifulSoup(build(read_runs([tmp_path])), "lxml")
    assert [row[5] for row in rows_of(page, "Results")] == ["accuracy", "–", "80.0"]


def test_claims_published_values_and_further_tables(experiment: Path) -> None:
    class Table:
        caption, headings, lines = "across", ["warm-up", "Pre-LN"], [["none", "21"]]

    claim = Judgement("Pre-LN needs no warm-up", "Xiong et al. 2020", "cannot tell", "one seed")
    runs = read_runs([experiment])
    curve = Published("Pre-LN, Adam", "bleu", "epochs", [1, 2], [11.7, 20.8], "Figure 4(b)", "preln_final")
    text = build(runs, [claim], [curve], "Heading", about="About", command="bash it", tables=[Table()])
    page = BeautifulSoup(text, "lxml")
    assert rows_of(page, "Claims and verdicts")[1:] == [
        ["Pre-LN needs no warm-up Xiong et al. 2020", "cannot tell", "one seed"]
    ]
    assert page.select_one(".badge.cannot-tell")
    assert rows_of(page, "across") == [["warm-up", "Pre-LN"], ["none", "21"]]
    assert page.select_one("#again pre").get_text() == "bash it"
    assert "Pre-LN, Adam: Figure 4(b) (against epochs)" in page.select_one("#curves").get_text()
    dashed = [figure["data-unit"] for figure in page.select("#curves figure") if "stroke-dasharray: 2,2" in str(figure)]
    bare = BeautifulSoup(build(runs), "lxml")
    without = [
        figure["data-unit"] for figure in bare.select("#curves figure") if "stroke-dasharray: 2,2" in str(figure)
    ]
    assert (dashed, without) == (["epochs"], [])


def test_a_page_of_measurements_alone(experiment: Path) -> None:
    from fairseq_lnplace.report.measured import read_measured

    page = BeautifulSoup(build([], measured=read_measured([experiment])), "lxml")
    assert [section["id"] for section in page.select("section")] == ["measured", "again"]


def test_signatures_that_differ_are_pointed_out(tmp_path: Path) -> None:
    for seed in (1, 2):
        folder = write_cell(tmp_path / str(seed), log="", seed=seed)
        write_evaluation(folder, "checkpoint_best", "test", 1.0, chrf={"score": 1.0, "signature": f"nc:{seed}"})
    text = " ".join(BeautifulSoup(build(read_runs([tmp_path])), "lxml").get_text(" ").split())
    assert "chrF: nc:1 and nc:2 (scores of different signatures do not compare)" in text
    assert "BLEU: nrefs:1 chrF" in text
    assert "Nothing was logged yet." in text


def test_the_table_as_json(experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            ["report", str(experiment / "pre-1"), str(experiment / "pre-2"), "--output", str(tmp_path / "r"), "--json"]
        )
        == 0
    )
    first, *_ = json.loads(capsys.readouterr().out)
    assert first["title"] == "Pre-LN"
    assert [run["seed"] for run in first["runs"]] == [1, 2]
    assert first["BLEU"] == {"mean": 21.5, "low": 21.0, "high": 22.0, "count": 2}


def test_what_is_wrong_is_told_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, run = tmp_path, write_cell(tmp_path / "cell")
    (folder / "empty").mkdir()
    for words, message in (
        ([folder / "none"], f"`RUN` must be the folder of a training, but is {folder}/none, which is not there"),
        ([folder / "empty"], f"No log of a training with JSON lines is in {folder}/empty: "),
        ([run, "--output", folder], f"`--output` must be a file, but is {folder}, which is a folder"),
        ([run, "--output", run / "train.log" / "x"], f"The folder {run}/train.log cannot be made: "),
    ):
        assert main(["report", *map(str, words)]) == 1
        output, errors = capsys.readouterr()
        assert output == ""
        assert errors.startswith(f"lnplace: {message}")
        assert errors.count("\n") == 1


def test_a_page_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(LnplaceError, match=r"report.html cannot be written: No space left on device"):
        write(tmp_path / "report.html", "page")
