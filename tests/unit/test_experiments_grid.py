from pathlib import Path

import pytest

from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.experiments.grid import fingerprint, option_of, read_grid

GRID = """
common: {arch: a, lr: 2e-3, adam-betas: "(0.9, 0.98)", share-all-embeddings: true, fp16: false, patience: null}
cells:
  one: {title: The first, dropout: 0}
  two: {title: The second, lr: 0.5, warmup: '${.lr}'}
scales:
  full: {train: {max-epoch: 5}, evaluate: [{checkpoint: checkpoint_best.pt, gen-subset: test}]}
  small: {train: {max-epoch: 1, lr: 1}, evaluate: []}
"""


@pytest.fixture
def grid_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(GRID)
    return path


def test_common_own_scale_and_extra_options_in_this_order(grid_file: Path) -> None:
    grid = read_grid(grid_file, "small", ("--seed", "7"))
    common = ("--arch", "a", "--lr", "1", "--adam-betas", "(0.9, 0.98)", "--share-all-embeddings")
    assert [cell.train for cell in grid.cells] == [
        (*common, "--dropout", "0", "--max-epoch", "1", "--seed", "7"),
        (*common, "--warmup", "1", "--max-epoch", "1", "--seed", "7"),
    ]
    assert [(cell.name, cell.title, cell.evaluate) for cell in grid.cells] == [
        ("one", "The first", ()),
        ("two", "The second", ()),
    ]
    first, second = read_grid(grid_file, "full").cells
    assert (option_of(first.train, "lr"), option_of(second.train, "lr")) == ("0.002", "0.5")
    assert option_of(second.train, "warmup") == "0.5"
    assert first.evaluate == ({"checkpoint": "checkpoint_best.pt", "gen-subset": "test"},)


def test_an_unknown_scale_is_told(grid_file: Path) -> None:
    with pytest.raises(LnplaceError, match="`--scale` must be one of full, small, but is huge"):
        read_grid(grid_file, "huge")


def test_the_last_of_equal_options_counts() -> None:
    assert option_of(("--lr", "1", "--cpu", "--lr", "2"), "lr") == "2"
    assert option_of(("--cpu",), "cpu") is None
    assert option_of((), "lr") is None


def test_equal_settings_and_data_give_an_equal_key(grid_file: Path) -> None:
    def keys(scale: str = "full", extra: tuple[str, ...] = (), data: str = "d") -> list[str]:
        return [cell.key(data) for cell in read_grid(grid_file, scale, extra).cells]

    assert keys() == keys()
    every = [*keys(), *keys("small"), *keys(extra=("--seed", "2")), *keys(data="e")]
    assert len(set(every)) == len(every)


def test_the_fingerprint_follows_the_content_alone(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        (folder / "dict.de.txt").write_text("a 1\n")
        (folder / "train.de-en.de.bin").write_bytes(b"abc")
    one, two = folders
    (two / "preprocess.log").write_text("another time\n")
    assert fingerprint(one) == fingerprint(two)
    (two / "train.de-en.de.bin").write_bytes(b"abd")
    assert fingerprint(one) != fingerprint(two)
    with pytest.raises(LnplaceError, match="`--data` must be a folder that `lnplace prepare` made"):
        fingerprint(tmp_path / "empty")


@pytest.mark.parametrize("scale", ["full", "fast"])
def test_the_quick_starts_arms_differ_only_where_they_should(scale: str) -> None:
    grid = read_grid(Path(read_grid.__code__.co_filename).with_name("quickstart.yaml"), scale)
    preln, postln, warmup = (cell.train for cell in grid.cells)
    assert [option_of(train, "warmup-updates") for train in (preln, postln)] == [None, None]
    hold = option_of(warmup, "hold-updates")
    assert hold
    assert option_of(warmup, "warmup-updates") == hold, "all three must share the decay"
    assert set(preln) ^ set(postln) == {"transformer_preln_final_tiny", "transformer_postln_tiny"}
    assert set(postln) ^ set(warmup) == {"--warmup-updates"}
