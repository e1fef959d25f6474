"""What a working installation needs, one check per need, each with the command that mends it.

Nothing of torch, fairseq or the models is imported here: whatever may be broken is tried in a fresh Python process, so
that the doctor stays well where the patient is not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

__all__ = ["CHECKS", "Finding", "examine"]

MINIMAL_FREE_GB = 2.0  # the demo corpus, its binary form and three arms of checkpoints take about half of it
REINSTALL = "pip install --force-reinstall --no-deps fairseq_lnplace (in a checkout: bash scripts/setup.sh)"


@dataclass(frozen=True)
class Finding:
    """What one check found: whether all is well, what there is, and, if not all is well, the command that mends it."""

    check: str
    ok: bool
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Return what every check finds, in the order in which to mend things."""
    return [check() for check in CHECKS]


def python() -> Finding:
    """Python 3.10 to 3.13."""
    version = sys.version.split()[0]
    ok = (3, 10) <= sys.version_info[:2] <= (3, 13)
    return Finding("python", ok, version, "" if ok else "PYTHON=python3.11 bash scripts/setup.sh")


def compiler() -> Finding:
    """A C++ compiler and Python's headers, which building fairseq takes."""
    found = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if not found:
        return Finding("compiler", False, "no C++ compiler", "apt-get install g++")
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        return Finding("compiler", False, f"{found}, but no Python.h", "apt-get install python3-dev")
    return Finding("compiler", True, found)


def torch() -> Finding:
    """torch 2.6 or newer, whose loading of checkpoints is safe."""
    remedy = "pip install torch==2.13.0"
    answer = _try("import torch; answer(torch.__version__)")
    if isinstance(answer, _Broken):
        return Finding("torch", False, answer.reason, remedy)
    old = tuple(int(part) for part in answer.split(".")[:2]) < (2, 6)
    return Finding("torch", not old, f"{answer}, older than 2.6" if old else answer, remedy if old else "")


def accelerator() -> Finding:
    """A GPU that torch can use, where there is one, and whether it knows bfloat16."""
    answer = _try(
        "import torch; cuda = torch.cuda.is_available();"
        "answer([torch.cuda.get_device_name(), torch.cuda.is_bf16_supported()] if cuda else None)"
    )
    if isinstance(answer, _Broken):
        return Finding("accelerator", False, "unknown, for torch does not run", "pip install torch==2.13.0")
    if answer:
        name, bf16 = answer
        return Finding("accelerator", True, f"{name}, {'with' if bf16 else 'without'} bfloat16 (--bf16)")
    if shutil.which("nvidia-smi"):
        found = "there is an NVIDIA driver, but torch cannot use its GPU"
        return Finding("accelerator", False, found, "nvidia-smi, then pip install a torch built for that CUDA version")
    return Finding("accelerator", True, "none: train with --cpu, in float32 or --bf16")


def hydra() -> Finding:
    """hydra-core 1.3 with omegaconf 2.3, beside which fairseq was tested."""
    wanted = {"hydra-core": "1.3", "omegaconf": "2.3"}
    there = {name: _version(name) for name in wanted}
    ok = all(there[name].startswith(f"{wanted[name]}.") for name in wanted)
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in there.items())
    return Finding("hydra", ok, found, "" if ok else "pip install hydra-core==1.3.2 omegaconf==2.3.0")


def hook() -> Finding:
    """The start-up hook, which repairs fairseq when it is imported."""
    answer = _try("import sys; answer(any(type(finder).__name__ == 'Watcher' for finder in sys.meta_path))")
    ok = answer is True
    return Finding("hook", ok, "active" if ok else "fairseq_lnplace.pth is not at work", "" if ok else REINSTALL)


def fairseq() -> Finding:
    """The released fairseq 0.12.2, which imports."""
    version = _version("fairseq")
    answer = _try("import fairseq; answer(True)")
    if isinstance(answer, _Broken):
        found = f"{version} does not import: {answer.reason}" if version else "missing"
        return Finding("fairseq", False, found, "pip install --no-deps fairseq==0.12.2")
    return Finding(
        "fairseq", True, version if version == "0.12.2" else f"{version or 'a checkout'}, not the tested 0.12.2"
    )


def registration() -> Finding:
    """The plugin, whose architectures fairseq knows once the package is imported."""
    answer = _try(
        "import fairseq_lnplace; from fairseq.models import ARCH_MODEL_REGISTRY as known;"
        "answer([sum(model.__module__.startswith('fairseq_lnplace.') for model in known.values()),"
        "'transformer_postln' in known])"
    )
    if isinstance(answer, _Broken):
        return Finding("registration", False, answer.reason, "mend what is named above, then: " + REINSTALL)
    count, ok = answer
    return Finding("registration", ok, f"{count} architectures", "" if ok else REINSTALL)


def disk() -> Finding:
    """Room in this folder for data and checkpoints."""
    free = shutil.disk_usage(".").free / 1e9
    ok = free >= MINIMAL_FREE_GB
    return Finding("disk", ok, f"{free:.1f} GB free in {os.getcwd()}", "" if ok else "work in a folder with 2 GB free")


CHECKS: tuple[Callable[[], Finding], ...] = (
    python,
    compiler,
    torch,
    accelerator,
    hydra,
    hook,
    fairseq,
    registration,
    disk,
)


@dataclass(frozen=True)
class _Broken:
    """Why a fresh Python could not answer, as the last line that it wrote."""

    reason: str


def _try(code: str) -> Any:
    """Run code in a fresh Python, in which `answer(x)` tells x, anything that JSON knows; return x or a `_Broken`."""
    prelude = "import json\ndef answer(x): print('\\n' + json.dumps(x))\n"
    done = subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    said = done.stderr.strip().splitlines() or [f"Python ended with status {done.returncode}"]
    return _Broken(said[-1])


def _version(distribution: str) -> str:
    """Return the installed version, or "" where there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
