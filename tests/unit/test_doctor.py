"""`lnplace doctor`: every fault is found, told with its remedy, and makes the command fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from fairseq_lnplace import cli, doctor
from fairseq_lnplace.doctor import Finding

ROOT = Path(__file__).parents[2]
REMEDIES = {
    "python": "scripts/setup.sh",
    "compiler": "apt-get install g++",
    "torch": "pip install torch",
    "accelerator": "pip install torch",
    "hydra": "pip install hydra-core==1.3.2 omegaconf==2.3.0",
    "hook": "pip install --force-reinstall --no-deps fairseq_lnplace",
    "fairseq": "pip install --no-deps fairseq==0.12.2",
    "registration": "pip install --force-reinstall --no-deps fairseq_lnplace",
    "disk": "2 GB free",
}


def test_every_check_has_a_fault_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine where nothing is right."""
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    monkeypatch.setattr(sys, "executable", sys.executable)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(free=1e9))
    monkeypatch.setattr(doctor, "_version", lambda name: "")
    monkeypatch.setattr(doctor, "_try", lambda code: doctor._Broken("ModuleNotFoundError: No module named 'torch'"))
    findings = doctor.examine()
    assert [finding.check for finding in findings] == list(REMEDIES)
    for finding in findings:
        assert not finding.ok
        assert REMEDIES[finding.check] in finding.remedy


@pytest.mark.parametrize(
    ("answer", "ok", "found"),
    [("2.13.0+cpu", True, "2.13.0+cpu"), ("2.6.0", True, "2.6.0"), ("2.5.1", False, "2.5.1, older than 2.6")],
)
def test_torch_must_be_safe(answer: str, ok: bool, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_try", lambda code: answer)
    assert doctor.torch() == Finding("torch", ok, found, "" if ok else "pip install torch==2.13.0")


@pytest.mark.parametrize(
    ("answer", "driver", "ok", "found"),
    [
        (["H200", True], "nvidia-smi", True, "H200, with bfloat16 (--bf16)"),
        (["V100", False], "nvidia-smi", True, "V100, without bfloat16 (--bf16)"),
        (None, None, True, "none: train with --cpu, in float32 or --bf16"),
        (None, "nvidia-smi", False, "there is an NVIDIA driver, but torch cannot use its GPU"),
    ],
)
def test_accelerator(answer: Any, driver: str | None, ok: bool, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_try", lambda code: answer)
    monkeypatch.setattr(shutil, "which", lambda name: driver)
    finding = doctor.accelerator()
    assert (finding.ok, finding.found, bool(finding.remedy)) == (ok, found, not ok)


def test_a_fresh_python_answers_or_tells_why_not() -> None:
    assert doctor._try("print('noise'); answer([1, None])") == [1, None]
    assert doctor._try("raise ValueError('odd')") == doctor._Broken("ValueError: odd")
    assert doctor._try("import os; os._exit(3)") == doctor._Broken("Python ended with status 3")


def test_output_and_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    well, ill = Finding("python", True, "3.11"), Finding("torch", False, "missing", "pip install torch==2.13.0")
    monkeypatch.setattr(doctor, "CHECKS", (lambda: well,))
    assert cli.main(["doctor"]) == 0
    monkeypatch.setattr(doctor, "CHECKS", (lambda: well, lambda: ill))
    assert cli.main(["doctor"]) == 1
    out, err = capsys.readouterr()
    assert "fault  torch         missing\n" in out
    assert "mend it with: pip install torch==2.13.0\n" in out
    assert err == "lnplace: 1 of 2 checks found a fault: torch\n"
    assert cli.main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[1]["remedy"] == "pip install torch==2.13.0"


def test_the_doctor_is_well_where_torch_and_fairseq_are_not(tmp_path: Path) -> None:
    for name in ("torch", "fairseq"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is broken')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "fairseq_lnplace", "doctor", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 1, done.stderr
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert found["torch"]["found"] == "ImportError: torch is broken"
    assert "fairseq is broken" in found["fairseq"]["found"]
    assert done.stderr.count("\n") == 1
