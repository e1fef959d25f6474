"""``lnplace bench``: time and memory of our models beside stock fairseq's, in turn, on the same work."""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

HELP = "measure time and memory against stock fairseq on the same weights, batches and options"
EXAMPLE = "lnplace bench train --arch transformer_preln_final_tiny --data data/prepared/demo"

WORKS = {
    "train": "updates of fairseq's trainer (forward, loss, backward, optimizer)",
    "generate": "beam search",
    "ctranslate2": "beam search with a checkpoint's weights, CTranslate2's beside it",
    "memory": "peak memory of training, in a process for each side",
    "depth": "time and peak memory of training against the number of layers",
    "profile": "where the time of training goes (with --checkpoint of beam search), by kind of operation",
    "placements": "training with every placement, against Pre-LN",
}

# options that not every work takes; a profile takes what the work does that it is of
TAKEN_BY = {
    "arch": WORKS.keys() - {"ctranslate2"},
    "against": WORKS.keys() - {"ctranslate2", "placements"},
    "compile": WORKS.keys() - {"generate", "ctranslate2", "profile"},
    "options": WORKS.keys() - {"ctranslate2"},
    "checkpoint": {"generate", "ctranslate2", "profile"},
    "beam": {"generate", "ctranslate2"},
    "float64": {"generate"},
    "layers": {"depth"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to measure, what to compare, and how long."""
    works = "; ".join(f"{name}: {what}" for name, what in WORKS.items())
    parser.add_argument("work", choices=WORKS, metavar="WORK", help=works)
    parser.add_argument(
        "--arch", action="append", metavar="ARCH", help="ours; may be repeated (transformer_preln_final_tiny)"
    )
    parser.add_argument("--against", default="stock", metavar="ARCH", help="stock, or another architecture of ours")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder that `lnplace prepare` made; else random words"
    )
    parser.add_argument("--max-tokens", type=int, default=4096, metavar="N", help="pieces in a batch, with padding")
    parser.add_argument("--batches", type=int, default=3, metavar="N", help="batches of a round")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of every side, as a rule in turn")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads of torch")
    parser.add_argument("--cpu", action="store_true", help="use no GPU")
    parser.add_argument("--compile", action="store_true", help="compare our models under --compile, too")
    parser.add_argument("--options", default="", metavar="'--NAME …'", help="options of fairseq-train for every side")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="of ours, in place of --arch")
    parser.add_argument("--beam", type=int, default=5, metavar="N", help="hypotheses that are kept")
    parser.add_argument("--float64", action="store_true", help="of the search: in double precision")
    parser.add_argument("--layers", default="2,4,8,16", metavar="N,…", help="depth: layers of encoder and of decoder")
    parser.add_argument(
        "--dest", "--output", type=Path, default=Path("runs/bench"), metavar="DIR", help="for WORK.json and .png"
    )
    parser.add_argument("--json", action="store_true", help="print the record instead of a table")


def run(args: argparse.Namespace) -> None:
    """Measure, write the record and the picture, print the table."""
    import logging

    import torch
    from rich.console import Console

    from fairseq_lnplace.bench.report import draw, table
    from fairseq_lnplace.bench.setting import Setting
    from fairseq_lnplace.files import write_json
    from fairseq_lnplace.versions import versions

    check_taken(args)
    logging.disable(logging.INFO)
    setting = Setting(
        tuple(args.arch or ["transformer_preln_final_tiny"]),
        args.against,
        args.data,
        args.max_tokens,
        args.batches,
        args.rounds,
        args.threads,
        args.cpu,
        args.compile,
        tuple(shlex.split(args.options)),
    )
    rows = measured(args, setting)
    clock = setting.clock
    timed_by = "wall time" if args.work == "profile" else clock.name
    device = torch.cuda.get_device_name() if clock.device.type == "cuda" else f"{platform.machine()} CPU"
    words = "random words" if args.data is None else str(args.data)
    what = WORKS[args.work]
    if args.work == "profile":
        what = f"where the time of {'beam search' if args.checkpoint else 'training'} goes, by kind of operation"
    caption = f"{what}; {device}, {args.threads} thread(s), {timed_by}; {words}"
    record = {
        "work": args.work,
        "device": device,
        "threads": args.threads,
        "clock": timed_by,
        "data": words,
        "rows": rows,
        "versions": versions("fairseq", "torch"),
        "command": shlex.join(["lnplace", *sys.argv[1:]]),
    }
    write_json(args.dest / f"{args.work}.json", record)
    draw(rows, caption, args.dest / f"{args.work}.png")
    if args.json:
        print(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        Console(highlight=False).print(table(rows, caption))


def check_taken(args: argparse.Namespace) -> None:
    """Check that the work takes the options that were given.

    Raises:
        LnplaceError: it does not take one of them.
    """
    from fairseq_lnplace.errors import must_be

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    profiled = {"profile": "train" if args.checkpoint is None else "generate"}
    for name, works in TAKEN_BY.items():
        taken = not works.isdisjoint({args.work, profiled.get(args.work)})
        if not taken and (value := getattr(args, name)) != parser.get_default(name):
            raise must_be(f"--{name}", f"left out with {args.work}", value)


def measured(args: argparse.Namespace, setting: Any) -> list[dict[str, Any]]:
    """Return the rows of what was asked for.

    Raises:
        LnplaceError: an option is out of range.
    """
    from fairseq_lnplace.bench.ctranslate2 import bench_ctranslate2
    from fairseq_lnplace.bench.generate import bench_generate
    from fairseq_lnplace.bench.memory import bench_depth, bench_memory
    from fairseq_lnplace.bench.profile import bench_profile, bench_profile_search
    from fairseq_lnplace.bench.train import bench_placements, bench_train
    from fairseq_lnplace.errors import must_be

    if args.beam < 1:
        raise must_be("--beam", "at least 1", args.beam)
    if args.work in ("generate", "ctranslate2"):
        if args.work == "ctranslate2":
            return bench_ctranslate2(setting, args.checkpoint, args.beam)
        return bench_generate(setting, args.beam, args.checkpoint, args.float64)
    if args.work == "profile" and args.checkpoint is not None:
        return bench_profile_search(setting, args.beam, args.checkpoint, args.float64)
    if args.work == "depth":
        layers = args.layers.split(",")
        if not all(each.isdecimal() and int(each) > 0 for each in layers):
            raise must_be("--layers", "positive numbers with commas between", args.layers)
        return bench_depth(setting, [int(each) for each in layers])
    works = {"train": bench_train, "memory": bench_memory, "placements": bench_placements, "profile": bench_profile}
    return works[args.work](setting)
