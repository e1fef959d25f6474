"""``lnplace bench profile``: where the time of a training or a search goes, by kind of torch's operations."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from fairseq_lnplace.bench.generate import for_checkpoint, searching
from fairseq_lnplace.bench.processes import Work, in_fresh_process
from fairseq_lnplace.bench.setting import Setting
from fairseq_lnplace.bench.timing import progress
from fairseq_lnplace.bench.train import training

__all__ = ["bench_profile", "bench_profile_search"]

OPTIMIZER = "optimizer"
# by a word of an operation's name; the first kind that has one
KINDS = {
    "attention": {"attention"},
    "matrix products": {"mm", "addmm", "bmm", "baddbmm", "linear", "gemm", "sgemm"},
    "dropout": {"bernoulli", "random", "dropout", "keep"},
    "norms": {"norm", "rsqrt"},
    OPTIMIZER: {"adam", "adamw", "Adam", "Optimizer"},
    "softmax and loss": {"softmax", "logsumexp", "exp", "nll", "gather", "scatter"},
    "activation": {"relu", "gelu", "threshold", "clamp", "silu"},
    "copies": {"copy", "cat", "index", "fill", "zeros", "embedding", "repeat", "Memcpy", "Memset"},
    "sums and scales": {"add", "mul", "div", "sub", "sum"},
    "compiled": {"Compiled", "CompiledFunction", "CompiledFunctionBackward", "CompiledFxGraph", "triton"},
}
OTHER = "other"
BETWEEN = "between operations"


def bench_profile(setting: Setting) -> list[dict[str, Any]]:
    """Return :func:`profiled`'s rows of training."""
    with setting.sides() as sides:
        return [
            row
            for side in sides
            for row in in_fresh_process(setting.threads, profiled, side.name, setting, training, side, setting)
        ]


def bench_profile_search(setting: Setting, beam: int, checkpoint: Path, double: bool = False) -> list[dict[str, Any]]:
    """Return :func:`profiled`'s rows of beam search; the arguments and errors are those of :func:`.bench_generate`."""
    setting = for_checkpoint(setting, checkpoint)
    how = (setting, beam, checkpoint, True, double)
    with setting.sides() as sides:
        return [
            row
            for side in sides
            for row in in_fresh_process(setting.threads, profiled, side.name, setting, searching, side, *how)
        ]


def profiled(name: str, setting: Setting, build: Callable[..., Work], *args: Any) -> list[dict[str, Any]]:
    """Return a row for each kind of a side's operations, the largest first.

    A row holds the seconds of a round in operations of this kind, their share of the round, how many ran, and torch's
    name of the one that took most. Time is the wall's, and an operation's own, without what it calls; on the GPU where
    there is one. The profiler adds a little to it. What an optimizer's step calls is the optimizer's.
    """
    cuda, work, rounds = setting.clock.device.type == "cuda", build(*args), []
    work()
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * cuda]) as measured:
        for _ in progress(range(setting.rounds), name):
            start = time.perf_counter()  # as the profiler, which knows no processor time
            work()
            setting.clock.synchronise()
            rounds.append(time.perf_counter() - start)
    return [{"side": name, **row} for row in by_kind(operations(measured, cuda), rounds)]


def operations(measured: profile, cuda: bool) -> Iterator[tuple[str, str, float]]:
    """Yield each call of an operation: its kind, its name, and its own seconds, on the GPU if ``cuda``."""
    for event in measured.events():  # type: ignore[no-untyped-call]
        if event.device_type.name != "CPU" or event.is_user_annotation:
            continue  # a GPU's kernels are counted with what started them
        kind = OPTIMIZER if is_the_optimizers(event) else kind_of(event.name)
        taken = event.self_device_time_total if cuda else event.self_cpu_time_total
        yield kind, event.name.removeprefix("aten::"), taken / 1e6


def is_the_optimizers(event: Any) -> bool:
    """Return whether a step of the optimizer calls the operation."""
    while (event := event.cpu_parent) is not None:
        if kind_of(event.name) == OPTIMIZER:
            return True
    return False


def by_kind(calls: Iterable[tuple[str, str, float]], rounds: Sequence[float]) -> list[dict[str, Any]]:
    """Return a row for each kind of the calls (kind, name, seconds) in rounds of so many seconds, the largest first."""
    seconds: dict[str, Counter[str]] = defaultdict(Counter)
    count = Counter[str]()
    for kind, name, taken in calls:
        seconds[kind][name] += taken  # type: ignore[assignment]
        count[kind] += 1
    rows = [
        {
            "operations": kind,
            "seconds": sum(each.values()) / len(rounds),
            "share": sum(each.values()) / sum(rounds),
            "calls": count[kind] // len(rounds),
            "most": each.most_common(1)[0][0],
        }
        for kind, each in sorted(seconds.items(), key=lambda item: -sum(item[1].values()))
    ]
    left = sum(rounds) - sum(sum(each.values()) for each in seconds.values())
    return [*rows, {"operations": BETWEEN, "seconds": left / len(rounds), "share": left / sum(rounds)}]


@cache
def kind_of(operation: str) -> str:
    """Return the kind of an operation by torch's name for it."""
    words = set(re.split(r"[\W_]+", operation))
    return next((kind for kind, known in KINDS.items() if words & known), OTHER)
