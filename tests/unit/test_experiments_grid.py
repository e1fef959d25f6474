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


BLOCKS = """
common: {arch: 'a_${._placement}', dropout: 0.1, data: here, prepare: make.sh, evaluate: [], tokens-per-update: 64}
blocks:
  - options: {optimizer: adam}
    product:
      placement: [post, pre]
      warmup: {none: {title: no warm-up, lr: '${._high}'}, long: {title: 'warm-up ${._long}', warmup: '${._long}'}}
  - product:
      tuned: {last: {title: Tuned, _placement: pre, after: pre-long, seed: 3, dropout: 0, evaluate: [{average: 2}]}}
scales:
  full: {train: {_long: 9, _high: 2}, evaluate: [{gen-subset: test}]}
  part: {train: {_long: 4, _high: 1}, keep: {placement: [pre]}, seeds: [5, 6]}
"""


@pytest.fixture
def blocks_file(tmp_path: Path) -> Path:
    path = tmp_path / "blocks.yaml"
    path.write_text(BLOCKS)
    return path


def test_a_block_gives_a_cell_for_each_combination_of_levels(blocks_file: Path) -> None:
    cells = read_grid(blocks_file, "full").cells
    assert [(cell.name, cell.title) for cell in cells] == [
        ("post-none", "post, no warm-up"),
        ("post-long", "post, warm-up 9"),
        ("pre-none", "pre, no warm-up"),
        ("pre-long", "pre, warm-up 9"),
        ("last", "Tuned"),
    ]
    post, last = cells[0], cells[-1]
    assert post.train == ("--arch", "a_post", "--dropout", "0.1", "--optimizer", "adam", "--lr", "2")
    assert post.levels == {"placement": "post", "warmup": "none"}
    assert (post.data, post.prepare, post.after, post.tokens_per_update) == ("here", "make.sh", None, 64)
    assert last.train == ("--arch", "a_pre", "--dropout", "0", "--seed", "3")
    assert (last.after, last.evaluate) == ("pre-long", ({"average": 2},))


def test_a_scale_keeps_levels_and_brings_seeds(blocks_file: Path) -> None:
    cells = read_grid(blocks_file, "part").cells
    names = ["pre-none-seed5", "pre-none-seed6", "pre-long-seed5", "pre-long-seed6", "last"]
    assert [cell.name for cell in cells] == names
    assert [option_of(cell.train, "seed") for cell in cells] == ["5", "6", "5", "6", "3"]
    assert len({cell.title for cell in cells[:2]}) == 1
    assert read_grid(blocks_file, "part", seeds=[8]).cells[0].name == "pre-none-seed8"


def test_chosen_cells_bring_those_they_start_from(blocks_file: Path) -> None:
    def chosen(*only: str) -> list[str]:
        return [cell.name for cell in read_grid(blocks_file, "full", only=only).cells]

    assert chosen("*-none") == ["post-none", "pre-none"]
    assert chosen("last") == ["pre-long", "last"]
    seeds = read_grid(blocks_file, "full", seeds=[1, 2], only=["post-none", "pre-none-seed2"])
    assert [cell.name for cell in seeds.cells] == ["post-none-seed1", "post-none-seed2", "pre-none-seed2"]
    with pytest.raises(
        LnplaceError, match=r"`--only` must be patterns for post-none, .*, last, but is nothing-like-it"
    ):
        chosen("*-none", "nothing-like-it")


def test_cells_of_another_experiment(blocks_file: Path) -> None:
    path = blocks_file.with_name("other.yaml")
    path.write_text(
        "blocks:\n"
        "  - {from: blocks, keep: {placement: [post], warmup: [long], tuned: []}}\n"
        "  - {product: {x: {y: {title: Y}}}}\n"
        "scales: {full: {train: {dropout: 7}}}\n"
    )
    theirs, own = read_grid(path, "full").cells
    assert theirs == read_grid(blocks_file, "full").cells[1], "the very same training, so that it is done once"
    assert own.train == ("--dropout", "7")


EXPERIMENTS = sorted(Path(read_grid.__code__.co_filename).parent.glob("*.yaml"))


@pytest.mark.parametrize(
    "path", [path for path in EXPERIMENTS if path.stem != "quickstart"], ids=lambda path: path.stem
)
@pytest.mark.parametrize("scale", ["full", "demo"])
def test_the_experiments_grids(path: Path, scale: str) -> None:
    grid = read_grid(path, scale)
    names = [cell.name for cell in grid.cells]
    assert len(set(names)) == len(names)
    for cell in grid.cells:
        assert cell.title
        assert cell.data
        assert cell.prepare
        for evaluation in cell.evaluate:
            assert evaluation["gen-subset"] == "test"
            assert ("checkpoint" in evaluation) != ("average" in evaluation)
        assert cell.after is None or cell.after in names[: names.index(cell.name)]
    levels = {(factor, level) for cell in grid.cells for factor, level in cell.levels.items()}
    for kind in grid.content.get("published", {}).values():
        for entry in kind:
            if entry["scale"] == scale:
                assert levels >= entry["levels"].items(), entry
