"""The package registers once and silently, whichever way it is imported first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fairseq_lnplace

pytestmark = pytest.mark.slow

PACKAGE = Path(fairseq_lnplace.__file__).parent
ASK = """
import sys
from argparse import Namespace
from fairseq import utils
utils.import_user_module(Namespace(user_dir={user_dir!r}))
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY
assert "transformer_preln_final" in ARCH_MODEL_REGISTRY and "inverse_sqrt_nowarmup" in LR_SCHEDULER_REGISTRY
import fairseq_lnplace
assert ARCH_MODEL_REGISTRY["transformer_deepnorm"] is fairseq_lnplace.plugin.models.translation.TransformerLNPlaceModel
utils.import_user_module(Namespace(user_dir={user_dir!r}))
"""


def python(code: str, folder: Path, status: int = 0, path: str = "", **environment: str) -> str:
    """Run Python code in a folder, in a process of its own, and return what it said, but for fairseq's own log."""
    everything = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=everything, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == status, done.stderr[-2000:]
    lines = (done.stdout + done.stderr).splitlines(keepends=True)
    return "".join(line for line in lines if " | INFO | fairseq" not in line)


@pytest.mark.parametrize("user_dir", [str(PACKAGE), f"{PACKAGE}/"], ids=["plain", "trailing slash"])
def test_as_user_dir_first_from_another_folder(user_dir: str, tmp_path: Path) -> None:
    assert python(ASK.format(user_dir=user_dir), tmp_path) == ""


def test_as_a_relative_user_dir(tmp_path: Path) -> None:
    relative = os.path.relpath(PACKAGE, tmp_path)
    assert python(ASK.format(user_dir=relative), tmp_path) == ""


@pytest.mark.parametrize("first", ["import fairseq_lnplace", "from fairseq_lnplace.plugin.models import translation"])
def test_as_a_package_first(first: str, tmp_path: Path) -> None:
    assert python(first + ASK.format(user_dir=str(PACKAGE)), tmp_path) == ""


def test_torchs_compiler_does_not_come_along(tmp_path: Path) -> None:
    """It takes seconds to import, and its threads abort some processes at their end."""
    code = (
        ASK.format(user_dir=str(PACKAGE))
        + "print([name for name in ('torch._dynamo', 'triton') if name in sys.modules])"
    )
    assert python(code, tmp_path) == "[]\n"


def test_an_empty_folder_called_fairseq_is_no_fairseq(tmp_path: Path) -> None:
    """It would be a namespace package, "unknown location", if it came first."""
    (tmp_path / "fairseq").mkdir()
    assert python("import fairseq_lnplace" + ASK.format(user_dir=str(PACKAGE)), tmp_path) == ""


def test_in_a_spawned_child(tmp_path: Path) -> None:
    """As fairseq starts its ranks: the child gets the configuration, and imports the user directory itself."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import torch\n"
        f"def child(rank):\n    exec({ASK.format(user_dir=str(PACKAGE))!r}, {{}})\n"
        "if __name__ == '__main__':\n    torch.multiprocessing.spawn(child, nprocs=2)\n",
        encoding="utf-8",
    )
    assert python(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", tmp_path) == ""


def test_installed_and_as_a_checkout_at_once(tmp_path: Path) -> None:
    """Whichever is imported first is used; a second copy as user directory is refused, but a link is the same copy."""
    checkout = tmp_path / "a checkout" / "fairseq_lnplace"
    shutil.copytree(PACKAGE, checkout, ignore=shutil.ignore_patterns("__pycache__"))
    assert python(ASK.format(user_dir=str(checkout)), tmp_path) == ""
    said = python(
        "import fairseq_lnplace, sys\n"
        f"sys.argv = ['fairseq-train', 'data', '--user-dir', {str(checkout)!r}, '--arch', 'transformer_postln']\n"
        "from fairseq_cli.train import cli_main\n"
        "cli_main()",
        tmp_path,
        status=1,
    )
    assert said.count("\n") == 1
    assert f"`--user-dir` must be {PACKAGE}, where fairseq_lnplace is imported from, but is another copy" in said
    link = tmp_path / "links" / "fairseq_lnplace"
    link.parent.mkdir()
    link.symlink_to(PACKAGE)
    assert python("import fairseq_lnplace" + ASK.format(user_dir=str(link)), tmp_path) == ""


TRAIN = """
import sys
sys.argv = ['fairseq-train', 'data', '--user-dir', {user_dir!r}, '--arch', 'transformer_postln']
from fairseq_cli.train import cli_main
cli_main()
"""


@pytest.mark.parametrize("first", ["", "import fairseq_lnplace"], ids=["user dir first", "package first"])
def test_by_a_link_of_another_name(first: str, tmp_path: Path) -> None:
    (tmp_path / "placements").symlink_to(PACKAGE)
    assert python(first + ASK.format(user_dir=str(tmp_path / "placements")), tmp_path) == ""


def test_a_link_to_another_copy_first(tmp_path: Path) -> None:
    """The checkout that the link leads to is used, and not an installed one beside it."""
    checkout = tmp_path / "a checkout" / "fairseq_lnplace"
    shutil.copytree(PACKAGE, checkout, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "placements").symlink_to(checkout)
    where = f"assert fairseq_lnplace.__file__ == {str(checkout / '__init__.py')!r}, fairseq_lnplace.__file__\n"
    assert python(ASK.format(user_dir=str(tmp_path / "placements")) + where, tmp_path) == ""


def test_a_copy_of_another_name(tmp_path: Path) -> None:
    copy = tmp_path / "my_plugin"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    said = python("import fairseq_lnplace" + TRAIN.format(user_dir=str(copy)), tmp_path, status=1)
    assert said.count("\n") == 1
    assert (
        f"`--user-dir` must be {PACKAGE}, where fairseq_lnplace is imported from, but is another copy: {copy}" in said
    )


def test_another_package_of_the_name(tmp_path: Path) -> None:
    """It comes first on the path; fairseq works nevertheless, and who asks for this package is told."""
    (tmp_path / "fairseq_lnplace").mkdir()
    (tmp_path / "fairseq_lnplace" / "__init__.py").write_text("")
    pth = f"exec(open({str(PACKAGE / 'fairseq_lnplace.pth')!r}).read())\n"
    path = os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])
    assert python(pth + "import fairseq.models", tmp_path, path=path) == ""
    said = python(pth + TRAIN.format(user_dir="fairseq_lnplace"), tmp_path, status=1, path=path)
    assert said.count("\n") == 1
    assert "`fairseq_lnplace` must be this package, but another of its name comes first on Python's path" in said


def test_from_a_folder_of_the_packages_name(tmp_path: Path) -> None:
    """As a clone has it, where fairseq asks without a user directory."""
    clone = tmp_path / "fairseq_lnplace"
    clone.mkdir()
    for folder in (clone, tmp_path):
        assert python("import fairseq_lnplace" + ASK.format(user_dir=None), folder) == ""


def test_a_clash_is_told_in_one_sentence(tmp_path: Path) -> None:
    said = python(
        "from fairseq.models import register_model_architecture\n"
        "register_model_architecture('transformer', 'transformer_deepnorm')(lambda args: None)\n"
        "import fairseq_lnplace",
        tmp_path,
        status=1,
    )
    assert "`transformer_deepnorm` must be free for fairseq_lnplace, but another package has registered it" in said
