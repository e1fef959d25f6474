"""Tiny models of every placement and kind, built from one parsed command line for each kind (parsing takes longest)."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from fairseq.models import build_model
from helpers import KINDS, arguments, batch, tiny_task
from torch import Tensor, nn

from fairseq_lnplace import placements

PAD = 1
ALL = [(kind, placement) for kind in KINDS for placement in placements.names()]


def built(placement: str, kind: str = "translation", *, seed: int = 1, **options: Any) -> Any:
    """Return a freshly initialised tiny model in training mode; ``options`` as a parsed command line has them."""
    arch = KINDS[kind][1] + placement
    parsed = vars(arguments(KINDS[kind][1] + "postln", kind))
    args = Namespace(**{**parsed, "arch": arch, "placement": placement, **options})
    torch.manual_seed(seed)
    return build_model(args, tiny_task(kind)).train()


def outputs(model: nn.Module, kind: str = "translation", sample: dict[str, Any] | None = None) -> Tensor:
    """Return the model's outputs at the real positions of a batch, one row a position."""
    sample = sample or batch()
    inputs = sample["net_input"] if kind == "translation" else {"src_tokens": sample["net_input"]["prev_output_tokens"]}
    return model(**inputs)[0][sample["target"].ne(PAD)]  # type: ignore[no-any-return]


def stacks(model: Any, kind: str) -> list[Any]:
    """Return the stacks of a model, encoder first."""
    if kind == "bert":
        return [model.encoder.sentence_encoder]
    return [model.encoder, model.decoder] if kind == "translation" else [model.decoder]
