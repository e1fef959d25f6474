"""The torch schedules against equations of their own, against the fairseq ones bit for bit, and through resume."""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler.inverse_square_root_schedule import (
    InverseSquareRootLRScheduleConfig,
    InverseSquareRootSchedule,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, SequentialLR

from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.plugin.lr_schedulers import epoch_drop as fairseq_epoch_drop
from fairseq_lnplace.plugin.lr_schedulers import inverse_sqrt_nowarmup as fairseq_inverse_sqrt
from fairseq_lnplace.schedules import EpochDrop, InverseSqrtNoWarmup
from fairseq_lnplace.schedules.options import whole_number

ROOT = Path(__file__).parents[2]
LR = 7e-4
PEAKS = (LR, 1e-3, 0.1)  # of the parameter groups

INVERSE_SQRT: list[dict[str, Any]] = [
    {},
    {"hold_updates": 0},
    {"hold_updates": 1},
    {"hold_updates": 25},
    {"warmup_updates": 1, "hold_updates": 0},
    {"warmup_updates": 10},
    {"warmup_updates": 100, "hold_updates": 25},
    {"warmup_updates": 7, "warmup_init_lr": 1e-7, "hold_updates": 40},
    {"warmup_init_lr": 1e-7},
    {"decay_form": "shifted"},
    {"decay_form": "shifted", "timescale": 5, "warmup_updates": 10},
]
EPOCH_DROP: list[dict[str, Any]] = [
    {},
    {"drop_epochs": (2, 4, 2), "drop_factor": 0.5},
    {"drop_epochs": [1, 2, 3], "drop_factor": 0.3},
    {"drop_epochs": ()},
]
EVERY: list[tuple[type[LRScheduler], dict[str, Any]]] = [
    *((InverseSqrtNoWarmup, options) for options in INVERSE_SQRT),
    *((EpochDrop, options) for options in EPOCH_DROP),
]


def groups(*peaks: float, kind: type[torch.optim.Optimizer] = torch.optim.SGD) -> torch.optim.Optimizer:
    """An optimizer of one weight for each peak."""
    return kind([{"params": [torch.nn.Parameter(torch.ones(2))], "lr": peak} for peak in peaks], lr=1.0)


def update(optimizer: torch.optim.Optimizer, scheduler: LRScheduler) -> list[float]:
    """Make one update and return the learning rates that it was made with."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = torch.sin(weight.detach() + 1)
    optimizer.step()
    scheduler.step()
    return rates


def rates(scheduler: LRScheduler, number: int) -> list[list[float]]:
    return [update(scheduler.optimizer, scheduler) for _ in range(number)]


class OneWeight(FairseqOptimizer):
    def __init__(self) -> None:
        super().__init__(None)
        self._optimizer = groups(0.0)


def in_fairseq(kind: type[LRScheduler], options: dict[str, Any], lr: float) -> Callable[[int], float]:
    """The learning rate after t updates or epochs, of the class that fairseq trains with."""
    optimizer = OneWeight()
    if kind is EpochDrop:
        options = {name: list(value) if name == "drop_epochs" else value for name, value in options.items()}
        drop = fairseq_epoch_drop.EpochDrop(fairseq_epoch_drop.EpochDropConfig(**options, lr=[lr]), optimizer)

        def in_epoch(t: int) -> float:
            drop.step_begin_epoch(t + 1)
            return float(optimizer.get_lr())

        return in_epoch
    config = fairseq_inverse_sqrt.InverseSqrtNoWarmupConfig(**options, lr=[lr])
    return fairseq_inverse_sqrt.InverseSqrtNoWarmup(config, optimizer).step_update


def equation(
    t: int,
    lr: float,
    warmup_updates: int = 0,
    warmup_init_lr: float = -1,
    hold_updates: int | None = None,
    decay_form: str = "held",
    timescale: int | None = None,
) -> float:
    """The oracle: the curve as the documentation draws it, in Python's float64."""
    rise = 1.0 if warmup_updates == 0 else min(t / warmup_updates, 1.0)
    start = 0.0 if warmup_init_lr < 0 else warmup_init_lr
    if rise < 1:
        return (1 - rise) * start + rise * lr
    if decay_form == "shifted":
        scale = 4000 if timescale is None else timescale
        return lr / math.sqrt(1 + (t - warmup_updates) / scale)
    knee = max(warmup_updates, 4000 if hold_updates is None else hold_updates, 1)
    return lr / math.sqrt(max(t, knee) / knee)


@pytest.mark.parametrize("options", INVERSE_SQRT)
def test_inverse_sqrt_is_its_equation(options: dict[str, Any]) -> None:
    for t, found in enumerate(rates(InverseSqrtNoWarmup(groups(*PEAKS), **options), 300)):
        assert found == pytest.approx([equation(t, lr, **options) for lr in PEAKS], rel=1e-14, abs=0), t


@settings(max_examples=100, deadline=None)
@given(
    t=st.integers(0, 10**9),
    lr=st.floats(1e-7, 10),
    warmup=st.integers(0, 5000),
    form=st.one_of(
        st.builds(lambda h: {"hold_updates": h}, st.none() | st.integers(0, 10**5)),
        st.builds(lambda d: {"decay_form": "shifted", "timescale": d}, st.none() | st.integers(1, 10**5)),
    ),
)
def test_inverse_sqrt_is_its_equation_far_away(t: int, lr: float, warmup: int, form: dict[str, Any]) -> None:
    optimizer = groups(lr)
    optimizer.param_groups[0]["initial_lr"] = lr
    options = {"warmup_updates": warmup, "warmup_init_lr": lr / 8, **form}
    found = InverseSqrtNoWarmup(optimizer, **options, last_epoch=t).get_last_lr()
    assert found == [pytest.approx(equation(t + 1, lr, **options), rel=1e-13, abs=0)]
    assert found == [in_fairseq(InverseSqrtNoWarmup, options, lr)(t + 1)]


@pytest.mark.parametrize(
    ("options", "by_epoch"),
    [
        ({}, [1] * 8 + [0.1] * 4),
        ({"drop_epochs": (2, 4, 2), "drop_factor": 0.5}, [1, 1, 0.5, 0.5, 0.25, 0.25]),
        ({"drop_epochs": ()}, [1] * 12),
    ],
)
def test_epoch_drop_drops_once_after_each_epoch(options: dict[str, Any], by_epoch: list[float]) -> None:
    found = rates(EpochDrop(groups(*PEAKS), **options), len(by_epoch))
    assert found == [pytest.approx([lr * part for lr in PEAKS], rel=1e-14) for part in by_epoch]


@pytest.mark.parametrize(("kind", "options"), EVERY)
def test_it_is_the_fairseq_schedule_bit_for_bit(kind: type[LRScheduler], options: dict[str, Any]) -> None:
    expected = [in_fairseq(kind, options, lr) for lr in PEAKS]
    scheduler = kind(groups(*PEAKS), **options)
    for t in range(5000):
        assert scheduler.get_last_lr() == [rate(t) for rate in expected], t
        assert update(scheduler.optimizer, scheduler) == [rate(t) for rate in expected], t


@pytest.mark.parametrize("warmup_updates", [1, 3, 4000])
@pytest.mark.parametrize("warmup_init_lr", [-1, 1e-7])
def test_with_warmup_and_no_hold_it_is_fairseqs_own_bit_for_bit(warmup_updates: int, warmup_init_lr: float) -> None:
    options = {"warmup_updates": warmup_updates, "warmup_init_lr": warmup_init_lr}
    stock = InverseSquareRootSchedule(InverseSquareRootLRScheduleConfig(**options, lr=[LR]), OneWeight())
    found = rates(InverseSqrtNoWarmup(groups(LR), hold_updates=0, **options), 6000)
    assert found == [[stock.step_update(t)] for t in range(6000)]


@pytest.mark.parametrize(("kind", "options"), EVERY)
@pytest.mark.parametrize("stop", [1, 7, 10, 11, 30])
def test_a_resumed_run_goes_on_as_if_never_stopped(kind: type[LRScheduler], options: dict[str, Any], stop: int) -> None:
    whole = kind(groups(*PEAKS, kind=torch.optim.Adam), **options)
    expected = rates(whole, 60)
    first = kind(groups(*PEAKS, kind=torch.optim.Adam), **options)
    found = rates(first, stop)
    checkpoint = io.BytesIO()
    weights = [[weight.detach().clone() for weight in group["params"]] for group in first.optimizer.param_groups]
    torch.save((weights, first.optimizer.state_dict(), first.state_dict()), checkpoint)
    checkpoint.seek(0)
    weights, of_optimizer, of_scheduler = torch.load(checkpoint, weights_only=True)

    optimizer = torch.optim.Adam(
        [{"params": [torch.nn.Parameter(weight) for weight in group], "lr": 1.0} for group in weights]
    )
    second = kind(optimizer)  # what is loaded brings the options, too
    optimizer.load_state_dict(of_optimizer)
    second.load_state_dict(of_scheduler)
    assert second.get_last_lr() == first.get_last_lr()
    assert found + rates(second, 60 - stop) == expected
    for one, other in zip(whole.optimizer.param_groups, optimizer.param_groups, strict=True):
        assert torch.equal(one["params"][0], other["params"][0])


@pytest.mark.parametrize(("kind", "options"), EVERY)
def test_last_epoch_goes_on_with_an_optimizer_alone(kind: type[LRScheduler], options: dict[str, Any]) -> None:
    expected = rates(kind(groups(*PEAKS), **options), 40)
    first = kind(groups(*PEAKS), **options)
    rates(first, 12)
    optimizer = groups(1.0, 1.0, 1.0)
    optimizer.load_state_dict(first.optimizer.state_dict())
    assert rates(kind(optimizer, **options, last_epoch=11), 28) == expected[12:]


@pytest.mark.parametrize(("kind", "options"), EVERY)
@pytest.mark.parametrize("stop", [0, 3, 5, 6, 11])
def test_in_a_sequence_it_starts_at_its_milestone(kind: type[LRScheduler], options: dict[str, Any], stop: int) -> None:
    def chain() -> SequentialLR:
        optimizer = groups(*PEAKS)
        before, after = ConstantLR(optimizer, 0.5, 100), ConstantLR(optimizer, 0.25, 100)
        return SequentialLR(optimizer, [before, kind(optimizer, **options), after], [5, 35])

    own = rates(kind(groups(*PEAKS), **options), 30)
    scaled = [[[lr * part for lr in PEAKS]] for part in (0.5, 0.25)]
    first, second = chain(), chain()
    found = rates(first, stop)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(first.state_dict())
    assert found + rates(second, 40 - stop) == scaled[0] * 5 + own + scaled[1] * 5


@pytest.mark.parametrize(("kind", "options"), EVERY)
def test_first_of_a_sequence(kind: type[LRScheduler], options: dict[str, Any]) -> None:
    optimizer = groups(*PEAKS)
    chain = SequentialLR(optimizer, [kind(optimizer, **options), ConstantLR(optimizer, 0.5, 100)], [20])
    assert rates(chain, 20) == rates(kind(groups(*PEAKS), **options), 20)
    assert rates(chain, 1) == [[lr / 2 for lr in PEAKS]]


def test_a_learning_rate_may_be_a_tensor() -> None:
    place = torch.tensor(0.5, dtype=torch.float64)
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))], lr=place, foreach=False)
    scheduler = InverseSqrtNoWarmup(optimizer, hold_updates=1)
    rates(scheduler, 4)
    assert optimizer.param_groups[0]["lr"] is place  # a captured graph reads it there
    assert place.item() == 0.25


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"warmup_updates": -1}, "`warmup_updates` must be a whole number of at least 0, but is -1"),
        ({"warmup_updates": 0.5}, "`warmup_updates` must be"),
        ({"hold_updates": -1}, "`hold_updates` must be"),
        ({"hold_updates": True}, "`hold_updates` must be"),
        ({"decay_form": "shifted", "timescale": 0}, "`timescale` must be a whole number of at least 1, but is 0"),
        ({"decay_form": "cubic"}, "`decay_form` must be held or shifted, but is cubic"),
        ({"timescale": 9}, "`timescale` belongs to `decay_form` shifted, but that is held"),
        ({"decay_form": "shifted", "hold_updates": 9}, "`hold_updates` belongs to `decay_form` held"),
    ],
)
def test_inverse_sqrt_refuses_by_name(options: dict[str, Any], named: str) -> None:
    optimizer = groups(LR)
    with pytest.raises(LnplaceError, match=named) as caught:
        InverseSqrtNoWarmup(optimizer, **options)
    assert "\n" not in str(caught.value)
    assert optimizer.param_groups[0].keys() == groups(LR).param_groups[0].keys()  # nothing was begun


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"drop_epochs": (0,)}, "`drop_epochs` must be a whole number of at least 1, but is 0"),
        ({"drop_epochs": (8, 2.5)}, "`drop_epochs` must be"),
        ({"drop_factor": 0.0}, "`drop_factor` must be positive, but is 0.0"),
        ({"drop_factor": math.nan}, "`drop_factor` must be"),
    ],
)
def test_epoch_drop_refuses_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(LnplaceError, match=named):
        EpochDrop(groups(LR), **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"timescale": 9}, "`--timescale` belongs to `--decay-form` shifted, but that is held"),
        ({"hold_updates": 1, "hold_epochs": 1}, "`--hold-updates` and `--hold-epochs` exclude each other"),
    ],
)
def test_the_same_checks_name_the_flags_of_the_command_line(options: dict[str, Any], told: str) -> None:
    with pytest.raises(LnplaceError, match=told):
        in_fairseq(InverseSqrtNoWarmup, options, LR)


def test_a_whole_number_is_handed_back() -> None:
    assert whole_number("any", 3, at_least=3) == 3


def test_the_schedules_need_no_fairseq() -> None:
    code = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        assert name.partition(".")[0] not in ("fairseq", "fairseq_cli", "hydra", "omegaconf"), name

sys.meta_path.insert(0, Absent())
import torch
from fairseq_lnplace.schedules import EpochDrop, InverseSqrtNoWarmup
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
InverseSqrtNoWarmup(optimizer), EpochDrop(optimizer)
print([name for name in sys.modules if name.startswith(("fairseq.", "fairseq_lnplace.plugin")) or name == "fairseq"])
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("[]\n", "")
