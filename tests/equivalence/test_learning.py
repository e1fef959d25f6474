"""Every placement learns; very deep models of tiny width start to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from every_placement import built
from helpers import dictionary
from torch import Tensor, nn

from fairseq_lnplace import placements

WORDS = 12
SIZE = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
        {"embed_dim": 32, "ffn_embed_dim": 64, "attention_heads": 4, "layers": 2}.items()}  # fmt: skip
DIMS = {"decoder_input_dim": 32, "decoder_output_dim": 32}


def reversals(number: int, length: int, sentences: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield batches of random sentences, their reversals, and what the decoder reads of these."""
    symbols, draw = dictionary(WORDS), torch.Generator().manual_seed(3)
    end = torch.full((sentences, 1), symbols.eos())
    for _ in range(number):
        words = torch.randint(symbols.nspecial, len(symbols), (sentences, length), generator=draw)
        yield torch.cat([words, end], 1), torch.cat([words.flip(1), end], 1), torch.cat([end, words.flip(1)], 1)


def losses(model: Any, updates: int, lr: float, warmup: int, length: int = 4, sentences: int = 24) -> list[float]:
    """Train with Adam and the inverse square root schedule; return each update's loss a token."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98))
    found = []
    for update, (source, target, previous) in enumerate(reversals(updates, length, sentences)):
        step = update + 1
        optimizer.param_groups[0]["lr"] = lr * min(step / warmup, (warmup / step) ** 0.5)
        model.set_num_updates(update)
        logits = model(source, torch.full((sentences,), length + 1), previous)[0]
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("placement", placements.names())
def test_a_reversal_is_learnt(placement: str) -> None:
    """From log 16 = 2.8 down to far below what the words without their order give, log 12 = 2.5."""
    options = {"branchnorm_updates": 100} if placement == "branchnorm" else {}
    found = losses(built(placement, **SIZE, **DIMS, **options), updates=300, lr=5e-3, warmup=60)
    assert sum(found[-10:]) / 10 < 0.25, f"{found[::30]}"


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["deepnorm", "admin", "resi_dual", "preln_final"])
def test_100_and_100_layers_start_to_learn(placement: str) -> None:
    model = built(placement, encoder_layers=100, decoder_layers=100)
    found = losses(model, updates=20, lr=2e-3, warmup=10, length=3, sentences=8)
    assert all(math.isfinite(loss) for loss in found)
    assert sum(found[-5:]) / 5 < sum(found[:5]) / 5 - 0.1, f"{found}"
