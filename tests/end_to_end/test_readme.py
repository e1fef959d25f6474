"""The README cannot lie: its commands run, its options and files exist, its table is the run that is kept beside it.

The blocks run in their order, in a folder that stands for this one after the quick start; the data there is the toy
corpus, so that each takes seconds.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq import options

from fairseq_lnplace.cli import COMMANDS, build_parser
from fairseq_lnplace.corpus.prepare import Settings, prepare
from fairseq_lnplace.experiments.results import markdown
from fairseq_lnplace.report.crosstab import Crosstab
from fairseq_lnplace.report.crosstab import markdown as table_in_markdown

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
# What takes minutes runs smaller, and not the tests, of which this is one.
INSTEAD = {
    "bash scripts/quickstart.sh": f"bash '{ROOT}/scripts/quickstart.sh' --data data/prepared/quickstart "
    "--dest runs/quickstart -- --max-update 2",
    "bash scripts/test.sh": "",
    "bash scripts/reproduce.sh depth": f"bash '{ROOT}/scripts/reproduce.sh' depth --data data/prepared/quickstart "
    "--dest runs/depth",
    "bash scripts/reproduce.sh wmt": f"bash '{ROOT}/scripts/reproduce.sh' wmt",
    "--max-epoch 5": "--max-epoch 3",
    "max_epoch=5": "max_epoch=1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with this one's plugin, environment and toy corpus, and data where the quick start puts it."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "data").mkdir()
    (folder / "data" / "toy").symlink_to(ROOT / "data" / "toy")
    for name in ("fairseq_lnplace", "examples"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    splits = {split: str(ROOT / "data" / "toy" / split) for split in ("train", "valid", "test")}
    prepare(Settings(source_lang="de", target_lang="en", vocab_size=300, **splits), folder / "data/prepared/quickstart")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("language", "block"), BLOCKS, ids=[block.split("\n")[0] for _, block in BLOCKS])
def test_every_block_runs(folder: Path, language: str, block: str) -> None:
    if "quickstart.sh" in block and not (Path(sys.prefix) / "lnplace-setup").exists():
        pytest.skip("this environment is none of scripts/setup.sh's")
    for words, smaller in INSTEAD.items():
        block = block.replace(words, smaller)
    command = ["bash", "-euo", "pipefail", "-c", block] if language == "bash" else [sys.executable, "-c", block]
    path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "LNPLACE_VENV": sys.prefix, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Traceback" not in done.stdout + done.stderr
    if "quickstart.sh" in block:
        said = json.loads((folder / "runs/quickstart/results.json").read_text(encoding="utf-8"))["command"]
        assert said in block.replace(f"'{ROOT}/scripts/quickstart.sh'", "scripts/quickstart.sh")


def test_what_runs_smaller_is_in_the_readme() -> None:
    for words in INSTEAD:
        assert any(words in block for _, block in BLOCKS), words


def test_every_file_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    named = re.findall(r"`((?:fairseq_lnplace|scripts|tests|data/toy)[/\w.]*)`", README)
    assert {"data/README.md", "data/figures/quickstart.png"} <= set(links)
    assert len(named) > 5
    for path in links + named:
        module = ROOT / path.replace(".", "/")
        assert any(each.exists() for each in (ROOT / path, module, module.with_suffix(".py"))), path


def fairseq_help() -> str:
    """Return the help of fairseq's commands, with the options of what the README chooses."""
    train = [
        "data",
        "--arch",
        "transformer_lnplace",
        "--criterion",
        "label_smoothed_cross_entropy",
        "--optimizer",
        "adam",
    ]
    commands = [
        (options.get_training_parser(), [*train, "--lr-scheduler", "inverse_sqrt_nowarmup"]),
        (options.get_training_parser(), [*train, "--lr-scheduler", "epoch_drop"]),
        (options.get_interactive_generation_parser(), ["data", "--path", "model", "--bpe", "sentencepiece"]),
    ]
    for parser, words in commands:
        options.parse_args_and_arch(parser, words)  # adds the chosen parts' options to the parser
    parsers = [*(parser for parser, _ in commands), options.get_preprocessing_parser()]
    return "".join(parser.format_help() for parser in parsers)


def test_every_option_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            build_parser([name]).parse_args([name, "--help"])
    known = fairseq_help() + capsys.readouterr().out
    known += "".join(path.read_text(encoding="utf-8") for path in (ROOT / "scripts").glob("*.sh"))
    parsers_apart = ("commands/show*.py", "commands/diagnose*.py", "diagnostics/command.py", "commands/reproduce.py")
    for commands in parsers_apart:
        known += "".join(path.read_text(encoding="utf-8") for path in (ROOT / "fairseq_lnplace").glob(commands))
    existing = set(re.findall(r"--[a-z][\w-]*", known))
    used = set(re.findall(r"(?<![-\w<])--[a-z][\w-]*", README))
    assert len(used) > 40
    assert used <= existing, used - existing


def test_the_quick_starts_table_is_that_of_the_run_kept_in_data() -> None:
    run = json.loads((ROOT / "data/figures/quickstart.json").read_text(encoding="utf-8"))
    assert [record["state"] for record in run["runs"]] == ["finished"] * 3
    assert f"<!-- quick start -->\n{markdown(run['runs'])}<!-- /quick start -->" in README
    assert f"{run['minutes']} minutes" in README
    preln, postln, _ = ([row["loss"] for row in record["valid"]] for record in run["runs"])
    assert preln[-1] < postln[-1]


@pytest.mark.parametrize("name", ["warmup", "deep", "finetune"])
def test_an_experiments_table_is_that_of_the_run_kept_in_data(name: str) -> None:
    run = json.loads((ROOT / f"data/figures/{name}.json").read_text(encoding="utf-8"))
    assert (run["name"], run["scale"]) == (name, "demo")
    shown = README[README.index(f"<!-- {name} -->") : README.index(f"<!-- /{name} -->")]
    assert shown.endswith(table_in_markdown(Crosstab(**run["table"])))
    assert f"{run['table']['caption']}" in shown
    assert f"{run['core_minutes']:.0f} minutes of a core" in shown
