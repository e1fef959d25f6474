"""``lnplace bench profile``: where the time of a training goes, by kind of torch's operations."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from torch.profiler import ProfilerActivity, profile

from fairseq_lnplace.bench.data import batches
from fairseq_lnplace.bench.setting import Setting
from fairseq_lnplace.bench.sides import share_weights
from fairseq_lnplace.bench.timing import progress

__all__ = ["bench_profile", "kind_of"]

# by a word of an operation's name; the first kind that has one
KINDS = {
    "attention": {"attention"},
    "matrix products": {"mm", "addmm", "bmm", "baddbmm", "linear", "gemm", "sgemm"},
    "dropout": {"bernoulli", "random", "dropout", "keep"},
    "norms": {"norm", "rsqrt"},
    "optimizer": {"adam", "adamw", "Adam", "Optimizer"},
    "loss": {"softmax", "logsumexp", "exp", "nll", "gather", "scatter"},
    "activation": {"relu", "gelu", "threshold", "clamp", "silu"},
    "copies": {"copy", "cat", "index", "fill", "zeros", "embedding", "repeat", "Memcpy", "Memset"},
    "sums and scales": {"add", "mul", "div", "sub", "sum"},
    "compiled": {"Compiled", "CompiledFunction", "CompiledFunctionBackward", "CompiledFxGraph", "triton"},
}
OTHER = "other, Python included"


def bench_profile(setting: Setting) -> list[dict[str, Any]]:
    """Return a row for each side and kind, the largest first within a side.

    A row holds the seconds of a round in operations of this kind, their share of the side's time, how many ran, and
    torch's name of the one that took most. Time is an operation's own, without what it calls; the profiler's is in it.
    """
    with setting.sides() as sides:
        trainers = {side.name: side.trainer() for side in sides}
        samples = batches(next(iter(trainers.values())).task, "train", setting.max_tokens, setting.batches)
        share_weights([trainer.model for trainer in trainers.values()])
        cuda = setting.clock.device.type == "cuda"
        activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * cuda]
        rows = []
        for name, trainer in trainers.items():
            for sample in samples:
                trainer.train_step([sample])
            with profile(activities=activities) as measured:
                for _ in progress(range(setting.rounds), name):
                    for sample in samples:
                        trainer.train_step([sample])
            events = [
                (event.key, (event.self_device_time_total if cuda else event.self_cpu_time_total) / 1e6, event.count)
                for event in measured.key_averages()
            ]
            rows += [{"side": name, **row} for row in by_kind(events, setting.rounds)]
    return rows


def by_kind(events: Iterable[tuple[str, float, int]], rounds: int) -> list[dict[str, Any]]:
    """Return a row for each kind of the events (name, seconds, calls) of some rounds, the largest first."""
    seconds: dict[str, Counter[str]] = defaultdict(Counter)
    calls: Counter[str] = Counter()
    for name, taken, count in events:
        seconds[kind_of(name)][name.removeprefix("aten::")] += taken  # type: ignore[assignment]
        calls[kind_of(name)] += count
    total = sum(sum(each.values()) for each in seconds.values())
    return [
        {
            "operations": kind,
            "seconds": sum(each.values()) / rounds,
            "share": sum(each.values()) / total,
            "calls": calls[kind] // rounds,
            "most": each.most_common(1)[0][0].strip("_"),
        }
        for kind, each in sorted(seconds.items(), key=lambda item: -sum(item[1].values()))
    ]


def kind_of(operation: str) -> str:
    """Return the kind of an operation by torch's name for it."""
    words = set(re.split(r"[\W_]+", operation))
    return next((kind for kind, known in KINDS.items() if words & known), OTHER)
