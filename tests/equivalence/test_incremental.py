"""Step-by-step decoding gives what a full pass gives; fairseq's searches find what they find with stock's model."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, Dict, Optional  # noqa: UP035 (TorchScript reads typing's names)

import pytest
import torch
from fairseq.token_generation_constraints import pack_constraints
from helpers import batch, dictionary, fill_in, stock_model, tiny_model, tiny_task
from torch import Tensor, nn

from fairseq_lnplace import placements

STOCK = {"postln": False, "preln_final": True}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 5},
    "wide beam": {"beam": 9, "nbest": 9},
    "length penalty": {"beam": 3, "lenpen": 0.3},
    "no early stop": {"beam": 4, "no_early_stop": True, "unnormalized": True},
    "no repeats": {"beam": 4, "no_repeat_ngram_size": 2},
    "diverse": {"beam": 4, "diverse_beam_groups": 2, "diverse_beam_strength": 0.5},
    "siblings": {"beam": 4, "diversity_rate": 0.5},
    "prefix": {"beam": 4, "prefix_size": 2},
    "ordered constraints": {"beam": 6, "constraints": "ordered"},
    "unordered constraints": {"beam": 6, "constraints": "unordered"},
    "hard alignment": {"beam": 3, "print_alignment": "hard"},
    "soft alignment": {"beam": 3, "print_alignment": "soft"},
}
MODELS: list[dict[str, Any]] = [
    {},
    {"share_all_embeddings": True},
    {"cross_self_attention": True},
    {"cross_self_attention": True, "no_cross_attention": True},
    {"no_cross_attention": True},
    {"no_token_positional_embeddings": True},
    {"decoder_learned_pos": True, "encoder_learned_pos": True, "max_target_positions": 30},
    {"encoder_embed_dim": 12, "decoder_output_dim": 6},
    {"encoder_layers": 1, "decoder_layers": 4},
    {"adaptive_softmax_cutoff": "6,10", "adaptive_softmax_factor": 2},
    {"layernorm_embedding": True},
]


def lively(model: Any) -> nn.Module:
    """Return the model with weights that set its sentences apart, in evaluation and float32."""
    fill_in(model)
    norm = model.decoder.layer_norm or model.decoder.layers[-1].final_layer_norm
    if model.decoder.output_projection is not None and getattr(norm, "bias", None) is not None:
        with torch.no_grad():  # a liking for the end symbol, so that hypotheses finish at different steps
            norm.bias[0] += 4
            model.decoder.output_projection.weight[dictionary().eos(), 0] = 1
    return model.float().eval()


def twin(stock: nn.Module, placement: str, **options: Any) -> nn.Module:
    ours = tiny_model(placement, **options)
    ours.load_state_dict({name: tensor.clone() for name, tensor in stock.state_dict().items()}, strict=True)
    return ours.eval()


def search(models: list[nn.Module], sample: dict[str, Any], **options: Any) -> list[list[dict[str, Any]]]:
    """Return the hypotheses of each sentence, by the generator that fairseq's task builds."""
    task = tiny_task()
    settings = Namespace(**{"max_len_a": 0, "max_len_b": 9, **options})
    arguments: dict[str, Any] = {}
    if "prefix_size" in options:
        arguments["prefix_tokens"] = sample["target"][:, : options["prefix_size"]]
    if "constraints" in options:
        words = [[torch.tensor([5]), torch.tensor([7, 9])], [], [torch.tensor([4, 4])]]
        arguments["constraints"] = pack_constraints(words)
    generator = task.build_generator(models, settings)
    with torch.no_grad():
        return generator.generate(models, sample, **arguments)  # type: ignore[no-any-return]


def assert_same(mine: list[list[dict[str, Any]]], theirs: list[list[dict[str, Any]]]) -> None:
    for ours, stocks in zip(mine, theirs, strict=True):
        assert [hypothesis["tokens"].tolist() for hypothesis in ours] == [h["tokens"].tolist() for h in stocks]
        for a, b in zip(ours, stocks, strict=True):
            torch.testing.assert_close(a["positional_scores"], b["positional_scores"], rtol=0, atol=1e-4)
            assert (a["attention"] is None) == (b["attention"] is None)
            if a["attention"] is not None and a["attention"].numel():
                torch.testing.assert_close(a["attention"], b["attention"], rtol=0, atol=1e-4)
            assert [tuple(map(int, pair)) if len(pair) == 2 else None for pair in a["alignment"]] == [
                tuple(map(int, pair)) if len(pair) == 2 else None for pair in b["alignment"]
            ]


@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("placement", STOCK)
def test_every_search_finds_what_it_finds_with_stock(placement: str, options: dict[str, Any]) -> None:
    stock = lively(stock_model(STOCK[placement]))
    sample = batch()
    assert_same(search([twin(stock, placement)], sample, **options), search([stock], sample, **options))


@pytest.mark.parametrize("options", MODELS, ids=lambda options: " ".join(options) or "plain")
@pytest.mark.parametrize("placement", STOCK)
def test_every_model_is_searched_as_stocks(placement: str, options: dict[str, Any]) -> None:
    stock = lively(stock_model(STOCK[placement], **options))
    sample = batch((5, 1, 7, 3), (4, 6, 2, 2))
    ours = search([twin(stock, placement, **options)], sample, beam=4, nbest=4)
    assert_same(ours, search([stock], sample, beam=4, nbest=4))


def test_sentences_of_these_searches_end_at_different_steps() -> None:
    sample = batch((5, 1, 7, 3), (4, 6, 2, 2))
    found = search([lively(stock_model(True))], sample, beam=4, nbest=4)
    assert len({len(hypotheses[0]["tokens"]) for hypotheses in found}) > 2


def test_ensemble_of_both() -> None:
    pair = [lively(stock_model(before)) for before in STOCK.values()]
    for number, parameter in enumerate(pair[1].parameters()):
        parameter.data.mul_(1 + 0.1 * (number % 3))
    ours = [twin(stock, placement) for stock, placement in zip(pair, STOCK, strict=True)]
    assert_same(search(ours, batch(), beam=4), search(pair, batch(), beam=4))
    # a stock model and ours side by side
    assert_same(search([pair[0], ours[1]], batch(), beam=4), search(pair, batch(), beam=4))


def test_sampling_draws_the_same() -> None:
    stock = lively(stock_model(False))
    found = []
    for model in (twin(stock, "postln"), stock):
        torch.manual_seed(3)
        found.append(search([model], batch(), beam=3, sampling=True, sampling_topk=5))
    assert_same(*found)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("placement", placements.names())
def test_scores_of_a_search_are_those_of_a_full_pass(placement: str, beam: int) -> None:
    """Over many steps of reordering and finished sentences, each hypothesis keeps its own past."""
    model = lively(tiny_model(placement)).double()
    sample = batch((5, 1, 7, 3), (4, 6, 2, 2))
    task, sources = tiny_task(), sample["net_input"]["src_tokens"]
    for source, hypotheses in zip(sources, search([model], sample, beam=beam, nbest=beam), strict=True):
        assert len({tuple(hypothesis["tokens"].tolist()) for hypothesis in hypotheses}) == beam
        real = source[source.ne(task.target_dictionary.pad())]
        for hypothesis in hypotheses:
            tokens = hypothesis["tokens"]
            previous = torch.cat([tokens.new_tensor([task.target_dictionary.eos()]), tokens[:-1]])
            output = model(real[None], torch.tensor([len(real)]), previous[None])
            expected = output[0].log_softmax(-1)[0].gather(1, tokens[:, None])[:, 0].float()
            torch.testing.assert_close(hypothesis["positional_scores"], expected.detach(), rtol=1e-6, atol=1e-4)


class Stepper(nn.Module):
    """Decodes one position after the other, with fairseq's cache."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder, self.decoder = model.encoder, model.decoder

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor) -> Tensor:
        """Return the logits of all positions."""
        encoded = self.encoder(src_tokens, src_lengths)
        state: Dict[str, Dict[str, Optional[Tensor]]] = {}  # noqa: UP006, UP045
        steps = []
        for step in range(prev_output_tokens.size(1)):
            logits, _ = self.decoder(prev_output_tokens[:, : step + 1], encoded, state)
            steps.append(logits)
        return torch.cat(steps, 1)


KINDS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in placements.names()),
    *(
        ("preln_final", {"norm_type": kind})
        for kind in ("rmsnorm", "scalenorm", "dyt", "derf", "batchnorm", "instancenorm")
    ),
    ("realformer", {"realformer_mean": True}),
    ("dlcl", {"dlcl_form": "post"}),
    ("denseformer", {"denseformer_dilation": 2, "denseformer_period": 2}),
    *(("resi_dual", options) for options in MODELS[1:]),
]
# Compiling takes a second each; these have every module, slot and branch between them.
QUICK = {"postln", "admin", "resi_dual", "b2t", "normformer", "rezero", "hybridnorm", "branchnorm", "gpas"}
QUICK |= {"dlcl", "denseformer"}


def of_kind(value: Any) -> str:
    return value if isinstance(value, str) else " ".join(map(str, value.items()))


@pytest.mark.parametrize(("placement", "options"), KINDS, ids=of_kind)
def test_steps_are_the_full_pass(placement: str, options: dict[str, Any]) -> None:
    model = lively(tiny_model(placement, **options))
    sample = batch()
    real = sample["target"].ne(1)
    with torch.no_grad():
        expected = model(**sample["net_input"])[0]
        torch.testing.assert_close(Stepper(model)(**sample["net_input"])[real], expected[real], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("norm_type", ["dyt", "derf"])
@pytest.mark.parametrize("placement", placements.names())
def test_steps_without_normalisation_are_the_full_pass(placement: str, norm_type: str) -> None:
    test_steps_are_the_full_pass(placement, {"norm_type": norm_type})


@pytest.mark.parametrize(
    ("placement", "options"),
    [
        pytest.param(name, options, marks=() if name in QUICK and not options else pytest.mark.slow)
        for name, options in KINDS
        if "adaptive_softmax_cutoff" not in options  # fairseq's own adaptive softmax cannot be compiled
    ],
    ids=of_kind,
)
def test_torchscript_gives_the_same(placement: str, options: dict[str, Any]) -> None:
    """All positions at once, and one after the other with the cache."""
    model = lively(tiny_model(placement, **options))
    sample = batch()
    inputs, real = sample["net_input"], sample["target"].ne(1)
    with torch.no_grad(), torch.jit.optimized_execution(False):
        expected = model(**inputs)[0][real]
        scripted = torch.jit.script(Stepper(model))
        encoded = scripted.encoder(inputs["src_tokens"], inputs["src_lengths"])
        at_once = scripted.decoder(inputs["prev_output_tokens"], encoded)[0]
        torch.testing.assert_close(at_once[real], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(scripted(**inputs)[real], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("placement", STOCK)
def test_scripted_model_can_be_saved_and_reordered(placement: str, tmp_path: Path) -> None:
    model = lively(tiny_model(placement))
    path = tmp_path / "model.pt"
    torch.jit.save(torch.jit.script(model), path)
    loaded = torch.jit.load(path)
    sample = batch()["net_input"]
    torch.testing.assert_close(loaded(**sample)[0], model(**sample)[0], rtol=1e-5, atol=1e-5)
    encoded = loaded.encoder(sample["src_tokens"], sample["src_lengths"])
    order = torch.tensor([2, 0, 2])
    moved = loaded.encoder.reorder_encoder_out(encoded, order)
    tokens = sample["prev_output_tokens"][:, :3]
    expected = model(sample["src_tokens"][order], sample["src_lengths"][order], tokens)[0]
    torch.testing.assert_close(loaded.decoder(tokens, moved)[0], expected.detach(), rtol=0, atol=1e-5)
