"""What runs on the CPU runs on a GPU, as far as a device that is none can tell: see ``tests/other_device``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from other_device.device import compiled

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_on_another_device(tmp_path: Path) -> None:
    environment = {**os.environ, "OTHER_DEVICE": str(compiled(tmp_path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/other_device/cases.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
