"""``--compile``: layers that run compiled by torch in training."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as functorch_config
from torch import nn

from fairseq_lnplace.doctor import compiler
from fairseq_lnplace.errors import must_be


def set_compiled(layer: nn.Module, compiled: bool) -> None:
    """Let calls of the layer run compiled from now on, or as they are; neither its weights nor their names change.

    Compilation comes with the first call of a kind, for all shapes at once; layers with the same constants share it.

    Raises:
        LnplaceError: there is no C++ compiler, which torch needs for it, or torch would not find its own files.
    """
    if not compiled:
        layer._compiled_call_impl = None  # what Module.compile sets; torch has no public way back
    elif layer._compiled_call_impl is None:
        found = compiler()
        if not found.ok:
            raise must_be("--compile", f"left out without a C++ compiler ({found.remedy})", "given")
        folder = Path(torch.__file__).parent
        if any(map(str.isspace, str(folder))):
            raise must_be("--compile", "left out where torch's path has a space, which torch does not quote", folder)
        # Else ReLU's gradient reads stored booleans, which g++ writes a hundred times slower than the ReLU itself.
        functorch_config.recompute_views = True
        # The next two bring the compiler along: seconds, and threads.
        import torch._dynamo.config as dynamo_config
        import torch._inductor.config as inductor_config
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        # Said in so many words, the vectors' width is a part of the key under which torch keeps compiled code for later
        # processes. Else another machine's would be found, and built anew for vectors that do not fit its loops.
        inductor_config.cpp.simdlen = pick_vec_isa().bit_width()
        # A layer's constants and kinds of batches (padded, or one sentence) are compiled apart; what exceeds torch's
        # limit of 8 would run as it is.
        dynamo_config.recompile_limit = max(dynamo_config.recompile_limit, 256)
        layer.compile(dynamic=True)


@contextmanager
def eager(layers: Iterable[Any]) -> Iterator[None]:
    """Run layers as they are written for a while, compiled ones too, so that methods that are watched are called."""
    compiled = [(layer, layer._compiled_call_impl) for layer in layers if layer.compiles]
    try:
        for layer, _ in compiled:
            layer.compiles, layer._compiled_call_impl = False, None
        yield
    finally:
        for layer, call in compiled:
            layer.compiles, layer._compiled_call_impl = True, call
