"""What other code reads of stock fairseq's encoder and decoder is there on ours, too, and says the same."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from helpers import batch, fill_in, stock_model, tiny_model
from torch import nn

STOCK = {"postln": False, "preln_final": True}


def twins(placement: str) -> tuple[Any, Any]:
    """Return our model and stock's in float64, ours with the weights of stock's."""
    ours, stock = tiny_model(placement).double(), fill_in(stock_model(STOCK[placement]))
    ours.load_state_dict(deepcopy(stock.state_dict()))
    return ours, stock


def public(module: nn.Module) -> set[str]:
    return {name for name in dir(module) if not name.startswith("_")}


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("placement", STOCK)
def test_every_public_attribute(placement: str, side: str) -> None:
    ours, stock = (getattr(model, side) for model in twins(placement))
    assert public(stock) <= public(ours)
    for name in sorted(public(stock)):
        value = getattr(stock, name)
        if isinstance(value, int | float | bool | str | None):
            assert getattr(ours, name) == value, name


@pytest.mark.parametrize("placement", STOCK)
def test_the_same_keys(placement: str) -> None:
    given = batch()["net_input"]
    results = []
    for model in twins(placement):
        encoded = model.eval().encoder(given["src_tokens"], given["src_lengths"], return_all_hiddens=True)
        decoded = model.decoder(given["prev_output_tokens"], encoder_out=encoded)[1]
        results.append((encoded, decoded))
    (ours, our_extra), (stock, stock_extra) = results
    assert ours.keys() == stock.keys()
    assert our_extra.keys() == stock_extra.keys()
    assert [len(ours["encoder_states"]), len(our_extra["inner_states"])] == [
        len(stock["encoder_states"]),
        len(stock_extra["inner_states"]),
    ]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("placement", STOCK)
def test_return_fc(placement: str, training: bool) -> None:
    given = batch()["net_input"]
    results = []
    ours, stock = twins(placement)
    for layer in stock.encoder.layers:
        layer.return_fc = True
    for model in (ours, stock):
        model.train(training).encoder.return_fc = True
        results.append(model.encoder(given["src_tokens"], given["src_lengths"], return_all_hiddens=True)["fc_results"])
    real = given["src_tokens"].ne(1).t()
    for our, its in zip(*results, strict=True):
        assert our.shape == its.shape
        torch.testing.assert_close(our[real], its[real], rtol=0, atol=1e-12)
    assert ours.encoder(given["src_tokens"], given["src_lengths"])["fc_results"] == []
    assert not any(layer.fc2._forward_hooks for layer in ours.encoder.layers)
