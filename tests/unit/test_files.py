import json
from pathlib import Path

import pytest

from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.files import new_file, new_folder, write_json


def interrupt(path: Path) -> None:
    """Write half of something, then do as Ctrl-C does."""
    path.write_text("half")
    raise KeyboardInterrupt


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "sub" / "a.txt"
    with new_file(target) as partial:
        partial.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    with pytest.raises(KeyboardInterrupt), new_file(target) as partial:
        interrupt(partial)
    assert target.read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["a.txt"]


def test_a_folder_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "made"
    with pytest.raises(KeyboardInterrupt), new_folder("--dest", target) as folder:
        interrupt(folder / "x")
    assert not list(tmp_path.iterdir())
    target.mkdir()  # an empty one is filled
    with new_folder("--dest", target) as folder:
        (folder / "x").write_text("whole")
        assert not (target / "x").exists()
    assert (target / "x").read_text() == "whole"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(LnplaceError, match="`--dest` must be a new or empty folder"), new_folder("--dest", tmp_path):
        pass
    with pytest.raises(LnplaceError, match="`--dest` must be"), new_folder("--dest", tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").read_text() == "keep"


def test_a_folder_that_cannot_be_made_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LnplaceError, match="cannot be made"), new_folder("--dest", tmp_path / "file" / "under"):
        pass


def test_a_file_that_cannot_be_written_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(LnplaceError, match="folder cannot be written: it is a folder"), new_file(tmp_path / "folder"):
        pytest.fail("after the work")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    with pytest.raises(LnplaceError, match=r"/proc/a\.txt cannot be written"), new_file(Path("/proc/a.txt")):
        pytest.fail("after the work")
    with pytest.raises(FileNotFoundError, match="other"), new_file(tmp_path / "a.txt"):
        (tmp_path / "other").read_text()  # is not what cannot be written
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_json_keeps_umlauts(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"ü": 1})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert "ü" in text
    assert json.loads(text) == {"ü": 1}
