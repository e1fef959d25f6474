"""What the schedules check about their options before anything runs.

A check of several options names them by the function it is given: `str` for a parameter of Python, as it is, or one
that writes the command line's ``--hold-updates`` for ``hold_updates``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fairseq_lnplace.errors import LnplaceError, must_be

__all__ = ["check_epoch_drop", "check_inverse_sqrt", "whole_number"]


def whole_number(name: str, value: object, at_least: int = 0) -> int:
    """Return ``value`` if it is an integer of ``at_least`` or more.

    Raises:
        LnplaceError: it is not; the sentence names it as ``name``.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise must_be(name, f"a whole number of at least {at_least}", value)
    return value


def check_inverse_sqrt(
    spelled: Callable[[str], str],
    *,
    warmup_updates: int,
    decay_form: str,
    timescale: int | None,
    **holds: int | None,
) -> None:
    """Check the options of the inverse square root schedule; ``holds`` are the ones that say how long it is held.

    Raises:
        LnplaceError: one is out of range or two contradict each other.
    """
    whole_number(spelled("warmup_updates"), warmup_updates)
    if decay_form not in ("held", "shifted"):
        raise must_be(spelled("decay_form"), "held or shifted", decay_form)
    forms = [(name, value, 0, "held") for name, value in holds.items()]
    for name, value, smallest, form in (*forms, ("timescale", timescale, 1, "shifted")):
        if value is None:
            continue
        whole_number(spelled(name), value, smallest)
        if decay_form != form:
            raise LnplaceError(
                f"`{spelled(name)}` belongs to `{spelled('decay_form')}` {form}, but that is {decay_form}"
            )
    given = [f"`{spelled(name)}`" for name, value in holds.items() if value is not None]
    if len(given) > 1:
        raise LnplaceError(f"{' and '.join(given)} exclude each other, but both are given")


def check_epoch_drop(spelled: Callable[[str], str], *, drop_epochs: Iterable[int], drop_factor: float) -> None:
    """Check the options of the schedule that drops after epochs.

    Raises:
        LnplaceError: an epoch is no whole number of at least 1, or the factor is not positive.
    """
    for epoch in drop_epochs:
        whole_number(spelled("drop_epochs"), epoch, at_least=1)
    if not drop_factor > 0:
        raise must_be(spelled("drop_factor"), "positive", drop_factor)
