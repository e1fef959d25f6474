"""Decoder-only and encoder-only models of every placement: alone = in a batch, more padding, step by step = at once.

(Translation models: `test_padding_and_batch.py` and `test_incremental.py`.)
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from every_placement import PAD, built
from helpers import batch, fill_in
from torch import Tensor

from fairseq_lnplace import placements

EVERY = pytest.mark.parametrize("placement", placements.names())
TOKENS = batch((5, 3, 7, 1), (4, 6, 2, 3))["net_input"]["prev_output_tokens"]  # padded at the end


def model_of(placement: str, kind: str, **options: Any) -> Any:
    return fill_in(built(placement, kind, **options)).double().eval()


@pytest.mark.parametrize("kind", ["lm", "bert"])
@EVERY
def test_a_sentence_alone_is_the_sentence_in_a_batch_and_padding_changes_nothing(placement: str, kind: str) -> None:
    model = model_of(placement, kind, activation_fn="relu")  # fairseq computes gelu in float32
    together = model(TOKENS)[0]
    longer = model(F.pad(TOKENS, (0, 3), value=PAD))[0][:, : TOKENS.size(1)]
    assert not torch.equal(together[0, 0], together[0, 1])
    for tokens, row, padded in zip(TOKENS, together, longer, strict=True):
        real = tokens.ne(PAD)
        torch.testing.assert_close(model(tokens[real][None])[0][0], row[real], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(padded[real], row[real], rtol=1e-9, atol=1e-9)


def steps(model: Any, tokens: Tensor, orders: list[Tensor]) -> Tensor:
    """Return the outputs of a language model, position by position, the rows moved by ``orders`` on the way."""
    state: dict[str, dict[str, Tensor | None]] = {}
    seen: list[Tensor] = []
    for step, order in enumerate(orders):
        seen.append(model.decoder(tokens[:, : step + 1], incremental_state=state)[0][:, -1])
        model.decoder.reorder_incremental_state_scripting(state, order)
        tokens, seen = tokens[order], [each[order] for each in seen]
    return torch.stack(seen, 1)


@EVERY
def test_a_language_model_step_by_step_is_the_whole_at_once(placement: str) -> None:
    """Also where the search moves rows, repeats some, and drops others."""
    model = model_of(placement, "lm")
    tokens = TOKENS[:, 1:3].repeat(1, 2)  # real everywhere
    orders = [torch.tensor(order) for order in ([3, 0, 0, 1], [1, 1, 2, 3], [2, 0, 3], [0, 1, 2])]
    stepwise = steps(model, tokens, orders)
    for order in orders:
        tokens = tokens[order]
    torch.testing.assert_close(stepwise, model(tokens)[0], rtol=1e-9, atol=1e-9)
