"""fairseq's Python interface to trained models (`from_pretrained`), whose users expect attention with a translation."""

from __future__ import annotations

from functools import wraps
from typing import Any

from fairseq.hub_utils import GeneratorHubInterface

from fairseq_lnplace.plugin.decoder import TransformerDecoder

__all__ = ["give_attention"]


def give_attention() -> None:
    """Let our models compute their attention weights there, which the commands do only where a command asks for them.

    The interface prepares models as a command would, long before it is told what is wanted of them.
    """
    init = GeneratorHubInterface.__init__

    @wraps(init)
    def init_with_attention(self: Any, cfg: Any, task: Any, models: Any) -> None:
        init(self, cfg, task, models)
        for module in self.models.modules():
            if isinstance(module, TransformerDecoder):
                module.need_attn = True

    GeneratorHubInterface.__init__ = init_with_attention
