"""What the schedules check about their options before anything runs."""

from __future__ import annotations

from collections.abc import Collection

from fairseq_lnplace.errors import must_be


def single_lr(lr: float | Collection[float]) -> float:
    """Return the one ``--lr``, which fairseq hands over as a list.

    Raises:
        LnplaceError: there are several, as only fairseq's ``fixed`` schedule takes them.
    """
    values = list(lr) if isinstance(lr, Collection) else [lr]
    if len(values) != 1:
        raise must_be("--lr", "one value with this --lr-scheduler", values)
    return float(values[0])


def whole_number(option: str, value: object, at_least: int = 0) -> int:
    """Return ``value`` if it is an integer of ``at_least`` or more.

    Raises:
        LnplaceError: it is not; the sentence names the option.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise must_be(option, f"a whole number of at least {at_least}", value)
    return value
