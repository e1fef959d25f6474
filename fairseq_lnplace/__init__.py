"""Where normalisation stands in a Transformer, and what that does to training: a fairseq plugin."""

from __future__ import annotations

from fairseq_lnplace import compat

__version__ = "0.1.0"

compat.activate()

if not compat.is_doctor():  # which has to run where torch or fairseq does not import
    from fairseq_lnplace import criterions, lr_schedulers, optimizers, search  # noqa: F401 (importing registers)
    from fairseq_lnplace.models import bert, decoder_lm, translation  # noqa: F401

    search.install()
