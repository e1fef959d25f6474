"""scripts/prepare_demo.sh on two small packages of our own, and with the generator; nothing is downloaded."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from help_packages import build_packages

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not (Path(sys.prefix) / "bin" / "lnplace").exists(), reason="lnplace is not installed")


def prepare_demo(*options: str, cwd: Path, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LNPLACE_VENV": sys.prefix, "PATH": path, "TMPDIR": str(cwd)}
    command = [shutil.which("bash") or "bash", str(ROOT / "scripts" / "prepare_demo.sh"), *options]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, encoding="utf-8", check=False)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages whose text is the toy corpus: 10 pairs a page."""
    toy = {
        each: (ROOT / "data/toy" / f"train.{each}").read_text(encoding="utf-8").splitlines() for each in ("de", "en")
    }
    starts = range(0, len(toy["de"]), 10)
    pages = {str(start): {each: lines[start : start + 10] for each, lines in toy.items()} for start in starts}
    return build_packages(tmp_path_factory.mktemp("packages"), pages)


@pytest.mark.slow
def test_packages_become_data_once(packages: Path, tmp_path: Path) -> None:
    dest = tmp_path / "with space" / "demo"
    options = ["--packages", str(packages), "--vocab-size", "150", "--dest", str(dest)]
    done = prepare_demo(*options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{dest}\n"
    manifest = json.loads((dest / "prepared.json").read_text())
    assert manifest["note"] == "LibreOffice help, 3 to 50 words"
    assert sum(counts["pairs"] for counts in manifest["counts"].values()) == 460
    assert [path.name for path in tmp_path.iterdir()] == ["with space"], "the scratch folder must go"

    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = prepare_demo(*options, cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, f"{dest}\n")
    other = prepare_demo(*options, "--max-words", "9", cwd=tmp_path)
    assert (other.returncode, other.stdout) == (1, "")
    assert "was made with other settings" in other.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.slow
def test_the_path_of_the_papers(packages: Path, tmp_path: Path) -> None:
    dest = tmp_path / "moses"
    options = ["--packages", str(packages), "--vocab-size", "100", "--dest", str(dest)]
    done = prepare_demo(*options, "--variant", "moses", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((dest / "prepared.json").read_text())
    assert manifest["note"] == "LibreOffice help, 3 to 50 words, Moses, lower-cased"
    assert manifest["encoding"]["tokeniser"] == "moses"
    raw, words = ((dest / form / "test.en").read_text(encoding="utf-8") for form in ("raw", "tokenised"))
    assert raw.lower().replace(" ", "") == words.replace(" ", "").replace("&apos;", "'")
    assert raw != words
    other = prepare_demo(*options, cwd=tmp_path)
    assert "was made with other settings" in other.stderr


@pytest.mark.slow
def test_a_failure_leaves_nothing(packages: Path, tmp_path: Path) -> None:
    dest = tmp_path / "demo"
    done = prepare_demo("--packages", str(packages), "--vocab-size", "1000000", "--dest", str(dest), cwd=tmp_path)
    assert done.returncode == 1
    assert "`--vocab-size` must be at most" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    for attempt in range(5):  # on a busy machine the signal may come when all is done
        folder = tmp_path / str(attempt)
        folder.mkdir()
        status = interrupted(folder)
        if status:
            break
    assert status != 0
    assert [path for path in folder.rglob("*") if path != folder / "out"] == []


def interrupted(folder: Path) -> int:
    """Make data, interrupt that while it binarises, and return how the script ended."""
    environment = {**os.environ, "LNPLACE_VENV": sys.prefix, "TMPDIR": str(folder)}
    command = ["bash", str(ROOT / "scripts/prepare_demo.sh"), "--generated", "--dest", str(folder / "out" / "demo")]
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # a shell that runs the tests in the background has all they start ignore it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while not list(folder.glob("out/.demo.*.partial")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does, to the shell and what it runs
    return process.wait(timeout=60)


@pytest.mark.slow
def test_without_apt_the_text_is_generated_and_named_so(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "dirname", "basename", "grep", "mktemp", "rm", "cat"):
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    dest = tmp_path / "made"
    done = prepare_demo("--max-words", "20", "--dest", str(dest), cwd=tmp_path, path=str(tools))
    assert done.returncode == 0, done.stderr
    assert "no apt here" in done.stderr
    manifest = json.loads((dest / "prepared.json").read_text())
    assert manifest["note"] == "synthetic text, 3 to 20 words"
    assert manifest["counts"]["train"]["pairs"] == 27600


def test_wrong_options_are_told(tmp_path: Path) -> None:
    for options, message in (
        (["--max-word", "9"], "--max-word is not one of the options"),
        (["--dest"], "--dest needs a value"),
        (["--packages", str(tmp_path), "--dest", str(tmp_path / "demo")], "does not hold the packages"),
        (["--variant", "mose"], "--variant must be moses or sentencepiece, but is mose"),
    ):
        done = prepare_demo(*options, cwd=tmp_path)
        assert done.returncode == 1
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
    assert prepare_demo("--help", cwd=tmp_path).returncode == 0
