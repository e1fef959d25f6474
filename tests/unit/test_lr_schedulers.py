"""The schedules against formulas of their own, against fairseq's, and through resume."""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import build_lr_scheduler
from fairseq.optim.lr_scheduler.inverse_square_root_schedule import InverseSquareRootSchedule
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.plugin.lr_schedulers.epoch_drop import EpochDrop, EpochDropConfig
from fairseq_lnplace.plugin.lr_schedulers.inverse_sqrt_nowarmup import InverseSqrtNoWarmup, InverseSqrtNoWarmupConfig

LR = 7e-4


class OneWeight(FairseqOptimizer):
    def __init__(self) -> None:
        super().__init__(None)
        self._optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)


def inverse_sqrt(**options: Any) -> InverseSqrtNoWarmup:
    return InverseSqrtNoWarmup(InverseSqrtNoWarmupConfig(**{"lr": [LR], **options}), OneWeight())


def epoch_drop(**options: Any) -> EpochDrop:
    return EpochDrop(EpochDropConfig(**{"lr": [LR], **options}), OneWeight())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {0: LR, 1: LR, 3999: LR, 4000: LR, 16000: LR / 2, 400_000_000: LR / 316.22776601683796}),
        ({"hold_updates": 0}, {0: LR, 1: LR, 4: LR / 2, 100: LR / 10}),
        ({"hold_updates": 1}, {0: LR, 1: LR, 4: LR / 2, 100: LR / 10}),
        ({"hold_updates": 25}, {0: LR, 24: LR, 25: LR, 100: LR / 2}),
        ({"warmup_updates": 10}, {0: 0, 1: LR / 10, 9: 0.9 * LR, 10: LR, 4000: LR, 16000: LR / 2}),
        ({"warmup_updates": 100, "hold_updates": 25}, {50: LR / 2, 100: LR, 400: LR / 2}),
        ({"warmup_updates": 10, "warmup_init_lr": LR / 2}, {0: LR / 2, 5: 0.75 * LR, 10: LR}),
        ({"warmup_init_lr": 1e-7}, {0: LR, 1: LR}),
        ({"decay_form": "shifted"}, {0: LR, 12000: LR / 2}),
        ({"decay_form": "shifted", "timescale": 5, "warmup_updates": 10}, {5: LR / 2, 10: LR, 25: LR / 2}),
    ],
)
def test_inverse_sqrt_has_the_documented_values(options: dict[str, Any], expected: dict[int, float]) -> None:
    scheduler = inverse_sqrt(**options)
    for t, lr in expected.items():
        assert scheduler.step_update(t) == pytest.approx(lr, rel=1e-12), t
        assert scheduler.optimizer.get_lr() == scheduler.step_update(t)


@pytest.mark.parametrize("warmup_updates", [1, 2, 3, 7, 4000])
@pytest.mark.parametrize("warmup_init_lr", [-1, 1e-7])
def test_with_warmup_and_no_hold_it_is_fairseqs_bit_for_bit(warmup_updates: int, warmup_init_lr: float) -> None:
    options = {"warmup_updates": warmup_updates, "warmup_init_lr": warmup_init_lr}
    ours = inverse_sqrt(hold_updates=0, **options)
    stock = InverseSquareRootSchedule(Namespace(lr=[LR], **options), OneWeight())
    assert ours.optimizer.get_lr() == stock.optimizer.get_lr()  # before the first call, too
    for t in (*range(10_000), 10**6, 10**9):
        assert ours.step_update(t) == stock.step_update(t), t


@settings(max_examples=100, deadline=None)
@given(
    t=st.integers(0, 10**12),
    form=st.one_of(
        st.builds(lambda h: {"hold_updates": h}, st.integers(0, 10**6)),
        st.builds(lambda d: {"decay_form": "shifted", "timescale": d}, st.integers(1, 10**6)),
        st.builds(lambda e: {"hold_epochs": e}, st.integers(0, 5)),
    ),
)
def test_without_warmup_it_is_positive_and_never_rises(t: int, form: dict[str, Any]) -> None:
    scheduler = inverse_sqrt(**form)
    lr, following = scheduler.step_update(t), scheduler.step_update(t + 1)
    assert 0 < following <= lr * (1 + 1e-12) <= LR * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(warmup=st.integers(0, 5000), hold=st.integers(0, 5000), offset=st.sampled_from([-1, 0, 1]), shift=st.booleans())
def test_it_is_continuous_at_both_ends_of_the_hold(warmup: int, hold: int, offset: int, shift: bool) -> None:
    form = {"decay_form": "shifted", "timescale": hold + 1} if shift else {"hold_updates": hold}
    scheduler = inverse_sqrt(warmup_updates=warmup, **form)
    for knee in {warmup, max(warmup, hold)}:
        t = max(knee + offset, 0)
        steepest = LR / max(1, min(warmup or math.inf, max(warmup, hold), hold + 1 if shift else math.inf))
        assert abs(scheduler.step_update(t + 1) - scheduler.step_update(t)) <= steepest * (1 + 1e-9)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"warmup_updates": -1}, "--warmup-updates"),
        ({"warmup_updates": 0.5}, "--warmup-updates"),
        ({"hold_updates": -1}, "--hold-updates"),
        ({"hold_updates": 2.5}, "--hold-updates"),
        ({"hold_epochs": -3}, "--hold-epochs"),
        ({"hold_epochs": True}, "--hold-epochs"),
        ({"decay_form": "shifted", "timescale": 0}, "--timescale"),
        ({"decay_form": "cubic"}, "--decay-form"),
        ({"hold_updates": 4000, "hold_epochs": 1}, "--hold-epochs"),
        ({"hold_updates": 0, "hold_epochs": 0}, "--hold-epochs"),
        ({"timescale": 4000}, "--timescale"),
        ({"decay_form": "shifted", "hold_updates": 4000}, "--hold-updates"),
        ({"decay_form": "shifted", "hold_epochs": 2}, "--hold-epochs"),
        ({"lr": [1e-3, 5e-4]}, "--lr"),
    ],
)
def test_impossible_options_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(LnplaceError, match=named) as caught:
        inverse_sqrt(**options)
    assert "\n" not in str(caught.value)


def train(scheduler: InverseSqrtNoWarmup | EpochDrop, first: int, last: int, per_epoch: int) -> list[float]:
    """Call the scheduler as fairseq's trainer does for updates ``first`` to ``last``, and return their learning rates.

    At an epoch's end the trainer has already stored a checkpoint when it calls ``step``.
    """
    rates = []
    scheduler.step_update(first)  # from set_num_updates, after a checkpoint is loaded
    scheduler.step(first // per_epoch + 1)  # from load_checkpoint, also in the middle of an epoch
    scheduler.step_begin_epoch(first // per_epoch + 1)
    for t in range(first, last):
        scheduler.step_update(t)
        rates.append(scheduler.optimizer.get_lr())
        scheduler.step_update(t + 1)
        if (t + 1) % per_epoch == 0 and t + 1 < last:
            scheduler.step((t + 1) // per_epoch, 2.0)
            scheduler.step_begin_epoch((t + 1) // per_epoch + 1)
    return rates


@pytest.mark.parametrize("stop", range(1, 40))
def test_hold_epochs_ends_with_the_epoch_and_survives_resume_anywhere(stop: int) -> None:
    expected = [LR if t < 16 else LR * math.sqrt(16 / t) for t in range(40)]  # epochs of 8 updates, hold two
    first = inverse_sqrt(hold_epochs=2)
    rates = train(first, 0, stop, 8)
    second = inverse_sqrt(hold_epochs=2)
    second.load_state_dict(first.state_dict())
    assert rates + train(second, stop, 40, 8) == pytest.approx(expected, rel=1e-12)


def test_hold_epochs_never_ends_before_the_warmup() -> None:
    rates = train(inverse_sqrt(hold_epochs=1, warmup_updates=20), 0, 40, 8)
    assert rates[10] == pytest.approx(LR / 2)
    assert rates[20] == pytest.approx(LR)
    assert rates[39] == pytest.approx(LR * math.sqrt(20 / 39))


def test_a_changed_hold_epochs_forgets_when_the_old_one_ended() -> None:
    first = inverse_sqrt(hold_epochs=1)
    train(first, 0, 12, 8)
    second = inverse_sqrt(hold_epochs=3)
    second.load_state_dict(first.state_dict())
    assert train(second, 12, 24, 8) == [LR] * 12


def test_state_of_fairseqs_own_schedule_is_accepted() -> None:
    scheduler = inverse_sqrt(hold_epochs=1)
    scheduler.load_state_dict({"best": 3.5})
    assert scheduler.best == 3.5


@pytest.mark.parametrize(
    ("options", "by_epoch"),
    [
        ({}, [LR] * 8 + [LR / 10] * 4),
        ({"drop_epochs": [2, 4, 2], "drop_factor": 0.5}, [LR, LR, LR / 2, LR / 2, LR / 4, LR / 4]),
    ],
)
def test_epoch_drop_drops_once_after_each_epoch(options: dict[str, Any], by_epoch: list[float]) -> None:
    expected = [lr for lr in by_epoch for _ in range(3)]
    for stop in range(1, len(expected)):
        rates = train(epoch_drop(**options), 0, stop, 3) + train(epoch_drop(**options), stop, len(expected), 3)
        assert rates == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"drop_epochs": [0]}, "--drop-epochs"),
        ({"drop_epochs": [8, -1]}, "--drop-epochs"),
        ({"drop_factor": 0.0}, "--drop-factor"),
        ({"drop_factor": math.nan}, "--drop-factor"),
        ({"lr": [1e-3, 5e-4]}, "--lr"),
    ],
)
def test_epoch_drop_refuses_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(LnplaceError, match=named):
        epoch_drop(**options)


def parse(*words: str) -> Any:
    from fairseq import options

    parser = options.get_training_parser()
    words = ("data", "--arch", "transformer_tiny", "--optimizer", "adam", *words)
    return options.parse_args_and_arch(parser, input_args=list(words))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--lr-scheduler", "inverse_sqrt_nowarmup"], {0: 1e-3, 16000: 5e-4}),
        (["--lr-scheduler", "inverse_sqrt_nowarmup", "--hold-updates", "100"], {100: 1e-3, 400: 5e-4}),
        (["--lr-scheduler", "inverse_sqrt_nowarmup", "--decay-form", "shifted", "--timescale", "10"], {30: 5e-4}),
        (["--lr-scheduler", "epoch_drop", "--drop-epochs", "1,2"], {0: 1e-3}),
    ],
)
def test_fairseqs_command_line_reaches_the_schedule(words: list[str], expected: dict[int, float]) -> None:
    cfg = convert_namespace_to_omegaconf(parse("--lr", "1e-3", *words))
    scheduler = build_lr_scheduler(cfg.lr_scheduler, OneWeight())
    for t, lr in expected.items():
        scheduler.step_update(t)
        assert scheduler.optimizer.get_lr() == pytest.approx(lr)
