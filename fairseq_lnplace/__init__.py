"""Where normalisation stands in a Transformer, and what that does to training.

The core is torch alone: :mod:`.placements` (the methods as data), :mod:`.layers` and :mod:`.nn` (modules for any
model), :mod:`.schedules` and :mod:`.measure`. :mod:`.plugin` is its adapter to fairseq, which registers itself in a
process that imports both packages, in whichever order; importing this package imports neither torch nor fairseq.
"""

from __future__ import annotations

from fairseq_lnplace import compat

__all__ = ["__version__", "register"]
__version__ = "0.2.0"


def register() -> None:
    """Register the architectures, schedules, optimizers and criterions with fairseq; once, however often it is called.

    Raises:
        LnplaceError: fairseq is not installed.
    """
    from importlib.util import find_spec

    if find_spec("fairseq") is None:
        from fairseq_lnplace.errors import must_be

        raise must_be("fairseq", "installed to register with it", "not here")
    from fairseq_lnplace import plugin

    plugin.register()


compat.activate()
compat.after_fairseq(register)
