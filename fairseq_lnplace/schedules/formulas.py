"""The learning rates as functions of the update or epoch; the schedules for torch and for fairseq both call these."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["DEFAULT_HOLD", "DEFAULT_TIMESCALE", "dropped", "held", "inverse_sqrt", "shifted", "warmup"]

DEFAULT_HOLD = 4000  # updates, as the warm-up of "Attention is all you need"
DEFAULT_TIMESCALE = 4000


def warmup(t: int, lr: float, updates: int, init_lr: float = 0.0) -> float:
    """Return the learning rate at update ``t`` < ``updates`` of a straight line from ``init_lr`` to ``lr``."""
    return init_lr + t * ((lr - init_lr) / updates)


def held(t: int, lr: float, hold: float) -> float:
    """Return ``lr`` while ``t`` < ``hold``, then lr·√(hold/t): positive and continuous for every ``t`` ≥ 0.

    ``hold`` = 0 is read as 1 (lr/√t); infinity holds for ever.
    """
    hold = hold or 1
    return lr if t < hold else (lr * hold**0.5) * t**-0.5  # in fairseq's order, so that the bits agree


def shifted(t: int, lr: float, timescale: int) -> float:
    """Return lr·√(D/(D+t)), where D is ``timescale`` and ``t`` ≥ 0 counts from the end of the warm-up."""
    return float(lr * (timescale / (timescale + t)) ** 0.5)


def inverse_sqrt(
    t: int,
    lr: float,
    *,
    warmup_updates: int,
    warmup_init_lr: float,
    hold: float,
    decay_form: str,
    timescale: int | None,
) -> float:
    """Return the learning rate with which update ``t`` + 1 is made, that is after ``t`` updates.

    Args:
        t: updates made.
        lr: the peak.
        warmup_updates: W, updates of a straight line from ``warmup_init_lr`` (0 if that is negative) to ``lr``.
        warmup_init_lr: where that line starts.
        hold: H; of the decay form ``held``, which starts at update max(W, H).
        decay_form: ``held`` or ``shifted``.
        timescale: D; of the decay form ``shifted``, which starts at update W. None is DEFAULT_TIMESCALE.
    """
    if t < warmup_updates:
        return warmup(t, lr, warmup_updates, max(warmup_init_lr, 0))
    if decay_form == "shifted":
        return shifted(t - warmup_updates, lr, DEFAULT_TIMESCALE if timescale is None else timescale)
    return held(t, lr, max(warmup_updates, hold))


def dropped(epoch: int, lr: float, factor: float, drop_epochs: Iterable[int]) -> float:
    """Return the learning rate of ``epoch`` (from 1): ``lr`` times ``factor`` for each of ``drop_epochs`` now over."""
    return float(lr * factor ** sum(over < epoch for over in set(drop_epochs)))
