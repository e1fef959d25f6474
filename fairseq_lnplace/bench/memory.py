"""``lnplace bench memory`` and ``depth``: the peak memory of training, each side in a process of its own."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fairseq_lnplace.bench.data import batches
from fairseq_lnplace.bench.processes import in_fresh_process
from fairseq_lnplace.bench.setting import Setting
from fairseq_lnplace.bench.sides import Side
from fairseq_lnplace.bench.timing import progress

__all__ = ["bench_depth", "bench_memory"]

MIB = 2**20


def bench_memory(setting: Setting) -> list[dict[str, Any]]:
    """Return a row for each side, the baseline first: :func:`probe`'s figures and the peak over the baseline's."""
    with setting.sides() as sides:
        rows: list[dict[str, Any]] = [
            {"side": side.name, **in_fresh_process(setting.threads, probe, side, setting)}
            for side in progress(sides, "measuring")
        ]
    return [{**row, "memory": row["peak_mib"] / rows[0]["peak_mib"]} for row in rows]


def bench_depth(setting: Setting, layers: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each side and number of layers (of the encoder and of the decoder): :func:`probe`'s figures."""
    rows = []
    for number in layers:
        depth = ("--encoder-layers", str(number), "--decoder-layers", str(number))
        with replace(setting, extra=(*setting.extra, *depth)).sides() as sides:
            for side in progress(sides, f"{number} layers"):
                rows.append(
                    {"side": side.name, "layers": number, **in_fresh_process(setting.threads, probe, side, setting)}
                )
    return rows


def probe(side: Side, setting: Setting) -> dict[str, float]:
    """Train for a few rounds and return the seconds of one and the peak memory in MiB.

    ``peak_mib`` is what building and training add to a process that has imported everything: resident memory on the
    CPU, the allocator's on CUDA. ``peak_total_mib`` is the whole of it.
    """
    clock = setting.clock
    before = peak_bytes(clock.device)
    trainer = side.trainer()
    samples = batches(trainer.task, "train", setting.max_tokens, setting.batches)
    rounds = [
        clock.seconds(lambda: [trainer.train_step([sample]) for sample in samples])
        for _ in range(setting.rounds + 1)  # the first one makes the optimizer's state, and warms up
    ]
    peak = peak_bytes(clock.device)
    return {
        "seconds": median(rounds[1:]),
        "peak_mib": (peak - before) / MIB,
        "peak_total_mib": peak / MIB,
    }


def peak_bytes(device: torch.device) -> int:
    """Return the most memory that this process has held so far.

    On Linux not ``ru_maxrss``, which a process inherits from the one that started it.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
