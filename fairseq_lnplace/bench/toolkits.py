"""Training beside other toolkits: the same text, sizes and options in each, in turn, in CPU seconds of one thread.

    python -m fairseq_lnplace.bench.toolkits --data DIR --environments DIR [--dest DIR]

``scripts/bench_toolkits.sh`` makes the others' environments and calls this.

The same is a Pre-LN Transformer of 3+3 layers, width 128 and shared embeddings, dropout 0.1 at every place, smoothed
labels, Adam, and 2048 pieces in a batch: sentences times their longest side. Each toolkit's own are the batches
(OpenNMT-py and fairseq put sentences of like length together, JoeyNMT takes them as they come), their making, and what
else an update does (fairseq measures the gradient's norm). Speed is that of the target's pieces that are no padding, as
each toolkit counts them.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from string import Template
from typing import Any

import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import setup_task
from rich.console import Console

from fairseq_lnplace.bench import clocked
from fairseq_lnplace.bench.report import table
from fairseq_lnplace.bench.setting import Setting
from fairseq_lnplace.bench.sides import Side
from fairseq_lnplace.bench.timing import compared, progress
from fairseq_lnplace.corpus.lines import write_lines
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.files import write_json
from fairseq_lnplace.versions import versions

__all__ = ["main"]

ARCH = "transformer_preln_final_tiny"
SIZES = ("--attention-dropout", "0.1", "--activation-dropout", "0.1", "--max-tokens", "2048")
WARM_UP = 10  # updates that are not timed


@dataclass(frozen=True)
class Toolkit:
    """A toolkit that trains.

    Attributes:
        name: what the table calls it.
        python: its environment's interpreter.
        command: the module that trains, and its arguments.
        pieces: the target pieces of an update, out of its log and the folder that it ran in.
    """

    name: str
    python: Path
    command: tuple[str, ...]
    pieces: Callable[[str, Path], float]


def toolkits(sides: Sequence[Side], environments: Path, updates: int) -> list[Toolkit]:
    """Return all that are compared, the baseline first, as commands for the folder of :func:`write_inputs`."""
    end = (
        *("--cpu", "--num-workers", "0", "--max-update", str(updates), "--disable-validation", "--no-save"),
        *("--log-format", "json", "--log-interval", str(updates), "--user-dir", str(Path(__file__).parents[1])),
    )
    ours = [
        Toolkit(
            side.name, Path(sys.executable), ("fairseq_cli.train", str(side.data), *side.argv, *end), fairseq_pieces
        )
        for side in sides
    ]
    opennmt = ("onmt.bin.train", "-config", "opennmt.yaml")
    joeynmt = ("joeynmt", "train", "joeynmt.yaml", "--skip-test")
    return [
        *ours,
        Toolkit("OpenNMT-py", environments / "opennmt/bin/python", opennmt, opennmt_pieces),
        Toolkit("JoeyNMT", environments / "joeynmt/bin/python", joeynmt, joeynmt_pieces),
    ]


def fairseq_pieces(log: str, _: Path) -> float:
    """Return the mean over all updates, which is what it logs after the last."""
    return float(re.findall(r'"wpb": "([\d.]+)"', log)[-1])


def opennmt_pieces(log: str, _: Path) -> float:
    """Return the mean of what it logs for each update."""
    return fmean(map(int, re.findall(r"bsz:\s*\d+/\s*(\d+)/", log)))


def joeynmt_pieces(_: str, folder: Path) -> float:
    """Return the mean over all updates, which its checkpoint holds."""
    checkpoint = torch.load(folder / "joeynmt" / "latest.ckpt", map_location="cpu", weights_only=True)
    return float(checkpoint["stats_state"]["total_tokens"] / checkpoint["stats_state"]["steps"])


def write_inputs(side: Side, folder: Path, updates: int) -> None:
    """Write what the other toolkits read: a prepared folder's pieces as text, its vocabulary, the configurations."""
    task = setup_task(convert_namespace_to_omegaconf(side.args()).task)
    for split in ("train", "valid"):
        task.load_dataset(split)
        pairs = task.dataset(split)
        for name, sentences, symbols in (("src", pairs.src, pairs.src_dict), ("tgt", pairs.tgt, pairs.tgt_dict)):
            pieces = (" ".join(symbols[index] for index in sentence[:-1].tolist()) for sentence in sentences)
            write_lines(folder / f"{split}.{name}", pieces)
    write_lines(folder / "vocabulary", task.source_dictionary.symbols[task.source_dictionary.nspecial :])
    for name in ("opennmt.yaml", "joeynmt.yaml"):
        template = Template(Path(__file__).with_name(name).read_text("utf-8"))
        (folder / name).write_text(template.substitute(updates=updates), encoding="utf-8")


def train(toolkit: Toolkit, folder: Path, updates: int) -> tuple[float, float]:
    """Train, and return the CPU seconds of an update and its target pieces.

    Raises:
        LnplaceError: it could not train.
    """
    record, log = folder / "seconds", folder / f"{toolkit.name}.log"
    record.unlink(missing_ok=True)
    command = [toolkit.python, clocked.__file__, record, WARM_UP, updates, *toolkit.command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with log.open("w", encoding="utf-8") as output:
        done = subprocess.run(
            list(map(str, command)), cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode or not record.exists():
        raise LnplaceError(f"{toolkit.name} could not train; the end of {log} tells why")
    return float(record.read_text()) / (updates - WARM_UP), toolkit.pieces(log.read_text("utf-8"), folder)


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each toolkit, stock fairseq first: see :func:`.compared`.

    Raises:
        LnplaceError: an option is out of range, or a toolkit could not train.
    """
    for name, least in (("rounds", 1), ("updates", WARM_UP + 1)):
        if getattr(args, name) < least:
            raise must_be(f"--{name}", f"at least {least}", getattr(args, name))
    with Setting((ARCH,), data=args.data.resolve(), extra=SIZES).sides() as sides:
        args.dest.mkdir(parents=True, exist_ok=True)
        write_inputs(sides[0], args.dest, args.updates)
        compared_ones = toolkits(sides, args.environments.resolve(), args.updates)
        rounds = [
            {each.name: train(each, args.dest, args.updates) for each in compared_ones}
            for _ in progress(range(args.rounds), "measuring")
        ]
    seconds = {each.name: [one[each.name][0] / one[each.name][1] for one in rounds] for each in compared_ones}
    rows = []
    for name, figures in compared(seconds, compared_ones[0].name).items():
        speed, tokens = 1 / figures.pop("seconds"), fmean(one[name][1] for one in rounds)
        rows.append({"side": name, **figures, "tokens_per_second": speed, "tokens_per_update": tokens})
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, write the record, print the table; return the exit status."""
    logging.disable(logging.INFO)
    parser = argparse.ArgumentParser(prog="bench_toolkits", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder that `lnplace prepare` made")
    parser.add_argument("--environments", type=Path, required=True, metavar="DIR", help="holds opennmt and joeynmt")
    parser.add_argument("--dest", type=Path, default=Path("runs/toolkits"), metavar="DIR", help="for logs and results")
    parser.add_argument(
        "--updates", type=int, default=110, metavar="N", help=f"of a training, {WARM_UP} of them untimed"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds, the toolkits in turn in each")
    args = parser.parse_args(argv)
    try:
        rows = compare(args)
    except LnplaceError as error:
        print(f"bench_toolkits: {error}", file=sys.stderr)
        return 1
    write_json(
        args.dest / "results.json", {"rows": rows, "data": str(args.data), "versions": versions("fairseq", "torch")}
    )
    caption = f"training; CPU time of one thread; {args.data}; {args.rounds} rounds of {args.updates - WARM_UP} updates"
    Console(highlight=False).print(table(rows, caption))
    return 0


if __name__ == "__main__":
    sys.exit(main())
