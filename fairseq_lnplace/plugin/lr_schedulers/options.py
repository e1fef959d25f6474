"""What fairseq's command line adds to the schedules' options: a list for the one learning rate."""

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
