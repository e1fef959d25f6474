"""`from_pretrained`, fairseq's Python interface: translations come with their attention, as stock's do."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.hub_utils import GeneratorHubInterface
from helpers import arguments, stock_model, tiny_model, tiny_task, varied
from torch import nn

STOCK = {"postln": False, "preln_final": True}
SOURCE = torch.tensor([5, 9, 6, 11, 2])


def interface(model: nn.Module) -> Any:
    cfg = convert_namespace_to_omegaconf(arguments("transformer_postln"))
    return GeneratorHubInterface(cfg, tiny_task(args=cfg.task), [model]).eval()


@pytest.mark.parametrize("placement", STOCK)
def test_attention_is_stocks(placement: str) -> None:
    ours, stock = varied(tiny_model(placement)), stock_model(STOCK[placement]).double().eval()
    stock.load_state_dict(deepcopy(ours.state_dict()), strict=False)
    found = [interface(model).generate([SOURCE], beam=2, max_len_b=8) for model in (ours, stock)]
    for our, its in zip(*(hypotheses[0] for hypotheses in found), strict=True):
        assert our["tokens"].tolist() == its["tokens"].tolist()
        assert our["attention"].shape == (len(SOURCE), len(our["tokens"]))
        torch.testing.assert_close(our["attention"], its["attention"], rtol=0, atol=1e-6, check_dtype=False)


def test_alignments() -> None:
    hub = interface(varied(tiny_model("postln")))
    made = hub.generate([SOURCE], beam=2, max_len_b=8, print_alignment="hard")[0][0]
    assert isinstance(hub.translate("word1 word2", print_alignment="hard"), str)
    assert {column for _, column in made["alignment"]} <= set(range(len(made["tokens"])))
    assert len(made["alignment"]) > 0


def test_the_commands_still_compute_none() -> None:
    cfg = convert_namespace_to_omegaconf(arguments("transformer_postln"))
    model = tiny_model("postln")
    model.prepare_for_inference_(cfg)
    assert not model.decoder.need_attn
    interface(model)
    assert model.decoder.need_attn
