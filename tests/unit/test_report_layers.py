from pathlib import Path

import pytest
from written_runs import write_cell, write_depth, write_layer_stats

from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.report import layers
from fairseq_lnplace.report.layers import Panel, positions_of, trained_panels
from fairseq_lnplace.report.measured import depth_rows, measured_panels, read_measured
from fairseq_lnplace.runs.groups import Group, Spread, grouped
from fairseq_lnplace.runs.trained_run import read_runs


@pytest.fixture
def groups(tmp_path: Path) -> list[Group]:
    """Two seeds of Pre-LN, of which the second is measured at other updates, and one of another setting."""
    runs = tmp_path / "runs"
    write_layer_stats(write_cell(runs / "pre-1", seed=1), [10, 20, 30])
    write_layer_stats(write_cell(runs / "pre-2", seed=2), [20], scale=3)
    write_layer_stats(write_cell(runs / "zero", title="Other", lr=3, seed=1), [30], scale=2)
    return grouped(read_runs([runs]))


def gradients(panels: list[Panel]) -> Panel:
    (found,) = [panel for panel in panels if panel.ylabel == "decoder: gradient norm, feed-forward"]
    return found


def test_every_time_shows_the_newest_statistics_of_each_run(groups: list[Group]) -> None:
    positions = positions_of(groups)
    assert positions == [10, 20, 30]
    panels = trained_panels(groups, positions)
    assert [panel.ylabel for panel in panels] == [
        "decoder: gradient norm, feed-forward",
        "decoder: E‖x‖²/d behind the layer",
        "decoder: relative update, feed-forward",
    ]
    frames = [[(line.title, line.ys.tolist()) for line in frame] for frame in gradients(panels).frames]
    assert frames == [
        [("Pre-LN", [10, 20]), ("Other", [])],
        [("Pre-LN", [(20 + 60) / 2, (40 + 120) / 2]), ("Other", [])],
        [("Pre-LN", [(30 + 60) / 2, (60 + 120) / 2]), ("Other", [60, 120])],
    ]
    assert gradients(panels).frames[0][0].xs.tolist() == [1, 2]
    assert panels[2].frames[0][0].ys.tolist() == [10 / 4, 20 / 4], "the update over the weight"


def test_the_slider_has_a_limited_number_of_positions(groups: list[Group], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "POSITIONS", 2)
    assert positions_of(groups) == [10, 30]
    assert positions_of([]) == []


def test_many_layers_and_settings_have_fewer_positions(groups: list[Group], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "POINTS", 8)  # two layers in each of two settings: two times
    assert positions_of(groups) == [10, 30]


def test_measurements_are_found_at_any_depth_and_other_files_of_their_names_are_none(tmp_path: Path) -> None:
    write_depth(tmp_path / "a" / "b" / "depth.json", "pre-1/checkpoint_best")
    (tmp_path / "gradients.json").write_text('{"experiment": "gradients"}')
    (tmp_path / "activations.json").write_text("cut sho")
    (found,) = read_measured([tmp_path, tmp_path / "a"])
    assert (found.name, found.path) == ("depth", tmp_path / "a" / "b" / "depth.json")
    with pytest.raises(LnplaceError, match=r"`--diagnose` must be a folder .* but is \S+/none, which is none"):
        read_measured([tmp_path / "none"])


def test_measured_checkpoints_bear_their_runs_titles(groups: list[Group], tmp_path: Path) -> None:
    write_depth(tmp_path / "depth.json", *(f"{name}/checkpoint_best" for name in ("pre-1", "zero", "pre-2", "absent")))
    (measured,) = read_measured([tmp_path])
    rows = depth_rows(measured, groups)
    assert [(row["title"], row["side"], row["layers"]) for row in rows] == [
        ("Pre-LN", "decoder", 2),
        ("Other", "decoder", 2),
        ("arch, absent/checkpoint_best", "decoder", 2),
    ]
    assert rows[0]["effective"] == Spread(pytest.approx(1.2), 1.1, 1.3, 2), "of both seeds"
    assert rows[0]["loss"] == Spread(2.0, 1.0, 3.0, 2)
    step, removed = measured_panels(measured, groups, "m")
    assert step.ylabel == "decoder: relative step of the stream"
    assert [line.title for line in removed.frames[0]] == [row["title"] for row in rows]
    assert removed.frames[0][0].ys.tolist() == [((1 + 1) + (3 + 1)) / 2, ((1 + 2) + (3 + 2)) / 2]
    looks = [(line.placement, line.variant) for line in removed.frames[0]]
    assert looks[:2] == [(group.placement, group.variant) for group in groups]
    assert len(set(looks)) == 3


def test_several_checkpoints_of_a_run_are_told_apart(groups: list[Group], tmp_path: Path) -> None:
    write_depth(tmp_path / "depth.json", "pre-1/checkpoint1", "pre-1/checkpoint2", "pre-2/checkpoint2")
    (measured,) = read_measured([tmp_path])
    assert [row["title"] for row in depth_rows(measured, groups)] == ["Pre-LN, checkpoint1", "Pre-LN, checkpoint2"]
    (frame,) = next(iter(measured_panels(measured, groups, "m"))).frames
    assert len({line.variant for line in frame}) == 2
