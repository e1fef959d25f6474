"""The adapter to fairseq: its stacks, models, options, criterions, schedules, optimizers and search around our core.

Imports point inwards: everything here may use the core, nothing of the core uses this package.
"""

from __future__ import annotations

import fairseq  # noqa: F401 (first, since what registers below is asked for when fairseq has been imported)

__all__ = ["register"]


def register() -> None:
    """Register everything with fairseq, once: importing a module registers what it defines."""
    from fairseq_lnplace.plugin import criterions, lr_schedulers, optimizers, search, trainer  # noqa: F401
    from fairseq_lnplace.plugin.models import bert, decoder_lm, translation  # noqa: F401

    search.install()
    trainer.watch_layers()
