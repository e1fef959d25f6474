"""The adapter to fairseq: its stacks, models, options, criterions, schedules, optimizers and search around our core.

Imports point inwards: everything here may use the core, nothing of the core uses this package.
"""

from __future__ import annotations

from functools import cache

__all__ = ["register"]


@cache
def register() -> None:
    """Register everything with fairseq, once: importing a module registers what it defines."""
    from fairseq_lnplace.plugin import criterions, hub, lr_schedulers, optimizers, search, trainer  # noqa: F401
    from fairseq_lnplace.plugin.models import bert, decoder_lm, translation  # noqa: F401

    search.install()
    hub.give_attention()
    trainer.watch_layers()


# Below what it calls: as soon as fairseq is imported, for the first time here perhaps, it asks for `register`.
import fairseq  # noqa: E402, F401
