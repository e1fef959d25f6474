"""The adapter to fairseq: its stacks, models, options, criterions, schedules, optimizers and search around our core.

Imports point inwards: everything here may use the core, nothing of the core uses this package.
"""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """Register everything with fairseq, once: importing a module registers what it defines."""
    from fairseq_lnplace.plugin import criterions, lr_schedulers, optimizers, search, trainer  # noqa: F401
    from fairseq_lnplace.plugin.models import bert, decoder_lm, translation  # noqa: F401

    search.install()
    trainer.watch_layers()


# Below what it calls: as soon as fairseq is imported, for the first time here perhaps, it asks for `register`.
import fairseq  # noqa: E402, F401
