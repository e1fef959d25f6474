"""The torch-only core in processes of its own: without fairseq, beside it, and at no cost before it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = Path(sysconfig.get_paths()["purelib"])
ADAPTERS_NEEDS = ("fairseq", "hydra", "omegaconf", "antlr4")

# What a person without fairseq does: all modules of the core, each kind of model, a step, a schedule, a measurement.
USE = """
import importlib, pkgutil, sys
import torch
import fairseq_lnplace
from fairseq_lnplace import nn, placements, schedules
for name in ("placements", "layers", "nn", "schedules", "measure"):
    package = importlib.import_module(f"fairseq_lnplace.{name}")
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
words = torch.randint(2, 9, (2, 5))
for placement in ("postln", "admin", "branchnorm", "resi_dual", "gpas", "dlcl"):
    small = {"d_model": 8, "nhead": 2, "dim_feedforward": 8, "placement": placement}
    models = [
        (nn.LanguageModel(9, num_layers=2, **small), (words,)),
        (nn.Transformer(9, num_encoder_layers=1, num_decoder_layers=1, padding_idx=1, **small), (words, words)),
    ]
    for model, inputs in models:
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        nn.count_updates(model, optimizer)
        schedule = schedules.InverseSqrtNoWarmup(optimizer)
        before = model.decoder.layers[0].fc2.bias.clone()
        torch.nn.functional.cross_entropy(model(*inputs).flatten(0, 1), words.flatten()).backward()
        optimizer.step()
        schedule.step()
        assert not torch.equal(model.decoder.layers[0].fc2.bias, before)
print('trained')
"""

# No module of these is so much as looked for; what is installed cannot hide that.
WATCHED = """
import sys
class Watcher:
    tried = []
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("fairseq", "fairseq_cli", "hydra", "omegaconf"):
            self.tried.append(name)
sys.meta_path.insert(0, Watcher())
"""

REGISTERED = """
import sys
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY
assert {"transformer_deepnorm", "transformer_lm_postln", "bert_preln_final"} <= ARCH_MODEL_REGISTRY.keys()
assert "inverse_sqrt_nowarmup" in LR_SCHEDULER_REGISTRY
"""


def run(code: str, path: list[Path], *options: str) -> str:
    """Return what Python code says in a process of its own, which sees these folders."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, *options, "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def without_fairseq(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return what to import from where fairseq was never installed: links to all other packages, and this one."""
    folder = tmp_path_factory.mktemp("site-packages")
    for each in SITE.iterdir():
        if not each.name.startswith((*ADAPTERS_NEEDS, "__editable__")) and each.suffix != ".pth":
            (folder / each.name).symlink_to(each)
    return [folder, ROOT]


def test_all_of_the_core_where_fairseq_is_not_installed(without_fairseq: list[Path]) -> None:
    absent = f"import importlib.util as u\nassert not any(map(u.find_spec, {ADAPTERS_NEEDS}))\n"
    assert run(absent + USE, without_fairseq, "-S").endswith("trained\n")


def test_registering_there_is_refused_in_a_sentence(without_fairseq: list[Path]) -> None:
    code = """
import fairseq_lnplace
from fairseq_lnplace.errors import LnplaceError
try:
    fairseq_lnplace.register()
except LnplaceError as error:
    print(error)
"""
    said = run(code, without_fairseq, "-S")
    assert said == "`fairseq` must be installed to register with it, but is not here\n"


def test_where_it_is_installed_nobody_looks_for_it() -> None:
    tail = "print(Watcher.tried, [name for name in sys.modules if name.startswith(('fairseq.', 'omegaconf', 'hydra'))])"
    assert run(WATCHED + USE + tail, [ROOT]).endswith("trained\n[] []\n")


def test_importing_the_package_imports_nothing_heavy() -> None:
    """So it costs milliseconds beside torch; placements need no torch either."""
    code = """
import sys
before = set(sys.modules)
import fairseq_lnplace
import fairseq_lnplace.errors
def heavy():
    names = {name.split(".")[0] for name in set(sys.modules) - before}
    return sorted(names & {"torch", "numpy", "fairseq", "hydra", "omegaconf", "pandas", "matplotlib", "scipy"})
print(heavy())
import fairseq_lnplace.placements.methods, fairseq_lnplace.placements.equation
print(heavy())
"""
    assert run(code, [ROOT]) == "[]\n[]\n"


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("import fairseq_lnplace, fairseq", marks=pytest.mark.slow),
        pytest.param("import fairseq, fairseq_lnplace", marks=pytest.mark.slow),
        pytest.param("import fairseq_lnplace.nn, fairseq.models", marks=pytest.mark.slow),
        "import fairseq_lnplace\nfairseq_lnplace.register()\nfairseq_lnplace.register()",
        pytest.param(
            "import fairseq_lnplace.plugin\nfrom fairseq_lnplace.plugin.models import bert", marks=pytest.mark.slow
        ),
    ],
    ids=["before fairseq", "behind fairseq", "core before a part of fairseq", "by the function", "by the adapter"],
)
def test_registered_whichever_comes_first(first: str) -> None:
    again = "fairseq_lnplace.register()\nimport fairseq_lnplace.plugin\nprint('registered')"
    assert run(first + REGISTERED + again, [ROOT]).endswith("registered\n")
