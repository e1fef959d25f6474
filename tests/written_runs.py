"""Folders of trainings as fairseq-train, the runner and lnplace leave them, written by hand for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COMMAND = "fairseq-train data --user-dir x --arch transformer_preln_final_tiny --seed 7 --lr 1e-3 --cpu --max-update 20"
DONE = "2026 | INFO | fairseq_cli.train | done training in 9.5 seconds\n"


def inner(updates: int, **more: Any) -> str:
    """A line of the log: ten updates are an epoch and take 60 seconds."""
    record = {"epoch": 1, "update": updates / 10, "loss": "5", "lr": "0.001", "gnorm": "2", "train_wall": "60"}
    return f"2026 | INFO | train_inner | {json.dumps(record | {'num_updates': str(updates)} | more)}\n"


def valid(updates: int, loss: str = "6", **more: Any) -> str:
    """A line of the log after a validation."""
    record = {"epoch": 1, "valid_loss": loss, "valid_nll_loss": "5", "valid_ppl": "32"}
    return f"2026 | INFO | valid | {json.dumps(record | {'valid_num_updates': str(updates)} | more)}\n"


def write_cell(
    folder: Path, state: str = "finished", log: str = inner(10) + valid(10), title: str = "Pre-LN", **options: Any
) -> Path:
    """A cell of an experiment; ``options`` are fairseq-train's, besides those of COMMAND."""
    folder.mkdir(parents=True)
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = " ".join([COMMAND, *words])
    cell = {"cell": "pre", "title": title, "command": command, "state": state}
    (folder / "cell.json").write_text(json.dumps(cell))
    (folder / "train.log").write_text(log)
    return folder


def write_evaluation(folder: Path, checkpoint: str, subset: str, bleu: float, **more: Any) -> None:
    """The record of an evaluation."""
    scores = {"bleu": {"score": bleu, "signature": "nrefs:1"}, "chrf": {"score": 50.0, "signature": "nc:6"}}
    record = {**scores, "subset": subset, "checkpoint": f"elsewhere/{checkpoint}.pt", "decoding": {"beam": 5}, **more}
    (folder / f"{checkpoint}.{subset}.json").write_text(json.dumps(record))


def write_layer_stats(folder: Path, updates: Sequence[int], layers: int = 2, scale: float = 1.0) -> None:
    """Statistics of a decoder's feed-forwards: gradient and activation are scale · update · layer."""
    place = {"side": "decoder", "part": "FF", "weight": 4.0}
    rows = [
        {**place, "updates": update, "layer": layer, "gradient": size, "activation": size, "update": size}
        for update in updates
        for layer in range(1, layers + 1)
        for size in [scale * update * layer]
    ]
    (folder / "layer_stats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def write_depth(path: Path, *states: str) -> None:
    """What `lnplace diagnose depth` leaves of models of two decoder layers; the nth has effective depth 1 + n / 10."""
    tables: dict[str, list[dict[str, Any]]] = {"layers": [], "stacks": []}
    for number, state in enumerate(states, start=1):
        who = {"label": f"arch, {state}", "placement": "preln_final", "state": state, "side": "decoder"}
        tables["stacks"].append({**who, "depth": 2, "effective_depth": 1 + number / 10, "loss": float(number)})
        tables["layers"] += [
            {**who, "layer": layer, "step": 1 / layer, "merge_error": None, "loss_removed": float(number + layer)}
            for layer in (1, 2)
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {"data": "data/toy", "batches": 1, "batch_tokens": 500}
    path.write_text(json.dumps({"settings": settings, **tables}))
