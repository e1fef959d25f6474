"""What an update or a step of a search frees, the next one gets without the system's help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairseq_lnplace import heap

SCRIPT = """
import resource, torch
from helpers import tiny_model

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        [torch.ones(8 * 2**20, dtype=torch.uint8) for _ in range(20)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
tiny_model("preln_final")
faults()
print(faults())
"""


@pytest.fixture
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
@pytest.mark.usefixtures("nothing_said")
def test_the_next_step_gets_the_memory_of_the_last() -> None:
    """Else the system hands out 2,048 pages for each of 5 x 20 pieces, unless something happens to lie behind them."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 512


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({}, 2),
        ({"MALLOC_ARENA_MAX": "1"}, 2),
        ({"MALLOC_TOP_PAD_": "131072"}, 0),
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}, 0),
        ({"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2"}, 2),
    ],
)
@pytest.mark.usefixtures("nothing_said")
def test_what_the_user_says_stands(said: dict[str, str], told: int, monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[tuple[int, int]] = []
    glibc = SimpleNamespace(mallopt=lambda *option: options.append(option))
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda _: glibc)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    heap.keep_freed_memory()
    assert len(options) == told


@pytest.mark.usefixtures("nothing_said")
def test_other_heaps_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda _: SimpleNamespace())
    heap.keep_freed_memory()
