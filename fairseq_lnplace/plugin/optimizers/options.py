"""The options that both optimizers share with fairseq's ``adam``, under the same names."""

# fairseq reads a dataclass's types at run time and knows only typing's spelling of them.
# ruff: noqa: UP006, UP035
from dataclasses import dataclass, field
from typing import Any, List

from fairseq.dataclass import FairseqDataclass
from omegaconf import II


@dataclass
class AdamOptions(FairseqDataclass):  # type: ignore[misc]
    """Those of fairseq's ``adam`` that say what is computed, with its defaults."""

    adam_betas: Any = field(default=(0.9, 0.999), metadata={"help": "decay of the running averages of g and of g²"})
    adam_eps: float = field(default=1e-8, metadata={"help": "added to the denominator"})
    weight_decay: float = field(
        default=0.0, metadata={"help": "decoupled: each update also shrinks the weights by lr times this"}
    )
    lr: List[float] = field(default=II("optimization.lr"))
