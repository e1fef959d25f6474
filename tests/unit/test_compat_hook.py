"""The start-up hook and the dataclass repair, in fresh interpreters without torch, on every Python that is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "fairseq_lnplace"
PTH = PACKAGE / "fairseq_lnplace.pth"

# The same kind of fault as in fairseq 0.12.2, beside the same thing done right.
FAULTY = """
from dataclasses import dataclass, field

@dataclass
class FairseqDataclass:
    name: str = ""

@dataclass
class Common(FairseqDataclass):
    seed: int = 7

@dataclass
class FairseqConfig(FairseqDataclass):
    common: Common = Common()
    other: Common = field(default=Common(seed=8))
"""
WHOLE = FAULTY.replace("Common = Common()", "Common = field(default_factory=Common)").replace(
    "field(default=Common(seed=8))", "field(default_factory=Common)"
)


@cache
def interpreter(version: str) -> str | None:
    """The path of a Python of this version, or None; pyenv's shims exist without one, so each is tried."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"versions/{version}.*/bin/python"))]
    for candidate in filter(None, [sys.executable, *found]):
        asked = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(asked, capture_output=True, text=True).stdout.strip() == version:
            return candidate
    return None


def run(code: str, *path: Path, python: str = sys.executable, hook: bool = True) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh Python that has `path` and this package on its path, after the .pth file's line."""
    first = f"exec(open({str(PTH)!r}).read())\n" if hook else ""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*path, PACKAGE.parent]))}
    # -S: no site-packages, thus neither torch nor the .pth file of an installation.
    return subprocess.run(
        [python, "-S", "-c", first + code], capture_output=True, text=True, env=environment, cwd=PACKAGE.parent.parent
    )


def fake_fairseq(folder: Path, configs: str) -> Path:
    """Write a package `fairseq` whose import executes `fairseq.dataclass.configs`; return its folder."""
    (folder / "fairseq" / "dataclass").mkdir(parents=True)
    (folder / "fairseq" / "__init__.py").write_text("import fairseq.dataclass.configs\n")
    (folder / "fairseq" / "dataclass" / "__init__.py").write_text("")
    (folder / "fairseq" / "dataclass" / "configs.py").write_text(configs)
    return folder


REPORT = """
from fairseq.dataclass.configs import FairseqConfig
fields = FairseqConfig.__dataclass_fields__
print(fields["common"].default.seed, fields["other"].default.seed, len({FairseqConfig(), FairseqConfig()}))
"""


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_faulty_defaults_work_on_every_python(version: str, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    fake_fairseq(tmp_path, FAULTY)
    refused = run("import fairseq", tmp_path, python=python, hook=False)
    assert (refused.returncode == 0) == (version == "3.10")  # else there is nothing to repair, and nothing is shown
    if version != "3.10":
        repaired = run(REPORT, tmp_path, python=python)
        assert (repaired.stdout, repaired.stderr) == ("7 8 2\n", "")


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_the_released_configurations_work_on_every_python(version: str, tmp_path: Path) -> None:
    python = interpreter(version)
    spec = find_spec("fairseq")
    if python is None or spec is None or not spec.submodule_search_locations:
        pytest.skip(f"no Python {version}, or no fairseq here")
    released = Path(spec.submodule_search_locations[0]) / "dataclass"
    fake_fairseq(tmp_path, "")
    for name in ("configs.py", "constants.py"):
        shutil.copy(released / name, tmp_path / "fairseq" / "dataclass")
    (tmp_path / "torch.py").write_text("class cuda:\n    device_count = staticmethod(lambda: 1)\n")
    (tmp_path / "omegaconf.py").write_text("MISSING = '???'\ndef II(name): return '${' + name + '}'\n")
    code = """
import builtins
builtins.help = "help"  # 0.12.2 mistakes this function for a word; site would define it
from fairseq.dataclass.configs import FairseqConfig
print(FairseqConfig.__dataclass_fields__["common"].default.seed)
"""
    done = run(code, tmp_path, python=python)
    assert (done.stdout, done.stderr) == ("1\n", "")  # 1: fairseq's own default seed


def test_a_whole_fairseq_is_left_alone(tmp_path: Path) -> None:
    fake_fairseq(tmp_path, WHOLE)
    code = """
from fairseq.dataclass.configs import FairseqConfig, FairseqDataclass
FairseqConfig()
print(FairseqConfig.__hash__, FairseqDataclass.__new__ is object.__new__)
"""
    assert run(code, tmp_path).stdout == "None True\n"


def test_other_faults_of_the_module_are_not_hidden(tmp_path: Path) -> None:
    fake_fairseq(tmp_path, FAULTY + "\nraise ValueError('something else')")
    assert run("import fairseq", tmp_path).stderr.endswith("ValueError: something else\n")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 takes such defaults anyway")
def test_nothing_outside_fairseq_changes(tmp_path: Path) -> None:
    fake_fairseq(tmp_path, FAULTY)
    (tmp_path / "other.py").write_text(FAULTY)
    code = """
import builtins, dataclasses
before = builtins.__build_class__, dataclasses.dataclass, dataclasses._process_class
import fairseq
assert before == (builtins.__build_class__, dataclasses.dataclass, dataclasses._process_class)
import other
"""
    assert "mutable default <class 'other.Common'>" in run(code, tmp_path).stderr.splitlines()[-1]


def test_the_hook_waits_for_fairseq() -> None:
    code = "import json, sys; print(sorted(n for n in sys.modules if n.startswith(('fairseq', 'torch', 'startup'))))"
    assert run(code).stdout == "[]\n"


def test_the_hook_costs_under_5_ms() -> None:
    code = f"""
from time import process_time  # not the clock on the wall, which other processes slow down
start = process_time()
exec(open({str(PTH)!r}).read())
print(1000 * (process_time() - start))
"""
    assert min(float(run(code, hook=False).stdout) for _ in range(5)) < 5.0


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 takes such defaults anyway")
def test_the_hook_repairs_beside_another_package_of_the_name(tmp_path: Path) -> None:
    fake_fairseq(tmp_path, FAULTY)
    (tmp_path / "fairseq_lnplace").mkdir()
    (tmp_path / "fairseq_lnplace" / "__init__.py").write_text("raise ValueError('nobody asked for it')")
    done = run(REPORT, tmp_path)
    assert (done.stdout, done.stderr) == ("7 8 2\n", "")
    (tmp_path / "later" / "fairseq_lnplace").mkdir(parents=True)
    (tmp_path / "later" / "fairseq_lnplace" / "__init__.py").write_text("")  # known before this one by what runs next
    done = run(f"import sys; sys.path.insert(0, {str(tmp_path / 'later')!r})\n" + REPORT, tmp_path)
    assert (done.stdout, done.stderr) == ("7 8 2\n", "")


def test_the_hook_is_silent_where_the_package_is_gone() -> None:
    code = f"import sys; sys.path[:] = [p for p in sys.path if p != {str(PACKAGE.parent)!r}]\n"
    done = run(code + f"exec(open({str(PTH)!r}).read())\nimport json", hook=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_checkout_activates_once_and_repairs_what_is_imported() -> None:
    code = """
import sys, types
sys.modules["fairseq_lnplace"] = types.ModuleType("fairseq_lnplace")  # stands in for the package, which needs torch
sys.modules["fairseq_lnplace"].__path__ = [PACKAGE]
numpy = sys.modules["fairseq.data.data_utils"] = types.ModuleType("fairseq.data.data_utils")
numpy.np = types.ModuleType("numpy")
numpy.np.percentile = lambda a, q: None
from fairseq_lnplace import compat
compat.activate()
compat.activate()
print(sys.meta_path.count(compat.FINDER), numpy.np.int)
""".replace("PACKAGE", repr(str(PACKAGE)))
    assert run(code, hook=False).stdout == "1 <class 'int'>\n"


def test_spawned_processes_are_repaired(tmp_path: Path) -> None:
    fake_fairseq(tmp_path, FAULTY)
    (tmp_path / "sitecustomize.py").write_text(PTH.read_text())  # what site does with the .pth file of an installation
    (tmp_path / "work.py").write_text(
        "import multiprocessing\n"
        "def seed(_):\n"
        "    from fairseq.dataclass.configs import FairseqConfig\n"
        "    return FairseqConfig().other.seed\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(seed, [0]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "work.py")], capture_output=True, text=True, env=environment, timeout=60
    )
    assert (done.stdout, done.stderr) == ("[8]\n", "")


def test_each_repair_is_made_once_in_an_installed_checkout(tmp_path: Path) -> None:
    """The package is imported first: its finder takes the place of the one that waits since the start of Python."""
    fake_fairseq(tmp_path, WHOLE)
    code = f"""
import sys, types
sys.modules["fairseq_lnplace"] = types.ModuleType("fairseq_lnplace")  # stands in for the package, which needs torch
sys.modules["fairseq_lnplace"].__path__ = [{str(PACKAGE)!r}]
from fairseq_lnplace import compat
made = []
compat.REPAIRS["fairseq"] = lambda module, execute: (made.append(module.__name__), execute(module))
compat.activate()
import fairseq
print(made, [type(finder).__name__ for finder in sys.meta_path].count("Watcher"))
"""
    assert run(code, tmp_path).stdout == "['fairseq'] 0\n"
