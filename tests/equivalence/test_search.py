"""Our beam search finds what fairseq's ``SequenceGenerator`` finds with the same model, to the last symbol."""

from __future__ import annotations

import copy
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from every_placement import built
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.token_generation_constraints import pack_constraints
from helpers import batch, stock_model, tiny_model, tiny_task, varied
from omegaconf import OmegaConf
from torch import Tensor, nn

from fairseq_lnplace import placements
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.layers import linear
from fairseq_lnplace.plugin import search

LENGTHS = {"max_len_a": 1.2, "max_len_b": 4}
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "five": {"beam": 5},
    "seven": {"beam": 7, "nbest": 7},
    "as wide as the vocabulary": {"beam": 15},  # 16 words, so there are fewer continuations than twice the beam
    "and to end at once is allowed": {"beam": 15, "min_len": 0},
    "greedy, to end at once is allowed": {"beam": 1, "min_len": 0},
    "short preferred": {"beam": 5, "lenpen": 0.6},
    "long preferred": {"beam": 5, "lenpen": 1.2},
    "sum of log-probabilities": {"beam": 5, "unnormalized": True},
    "unknown words dear": {"beam": 5, "unkpen": 3.0},
    "unknown words cheap": {"beam": 5, "unkpen": -3.0},
    "shortest": {"beam": 5, "min_len": 6},
    "one length": {"beam": 4, "min_len": 5, "max_len_a": 0, "max_len_b": 5},
    "no word at all": {"beam": 4, "min_len": 0, "max_len_a": 0, "max_len_b": 0},
    "longest": {"beam": 5, "max_len_a": 0, "max_len_b": 3},
    "as the source": {"beam": 5, "max_len_a": 2, "max_len_b": 0},
    "warm": {"beam": 5, "temperature": 1.7},
    "cold": {"beam": 5, "temperature": 0.6},
}
OTHER_SEARCHES: dict[str, dict[str, Any]] = {
    "sampling": {"beam": 3, "sampling": True, "sampling_topk": 5},
    "diverse": {"beam": 4, "diverse_beam_groups": 2},
    "siblings": {"beam": 4, "diversity_rate": 0.5},
    "constraints": {"beam": 6, "constraints": "ordered"},
    "length of the source": {"beam": 4, "match_source_len": True},
    "no repeats": {"beam": 4, "no_repeat_ngram_size": 2},
}
MODELS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in placements.names()),
    ("realformer", {"realformer_mean": True}),
    ("preln_final", {"cross_self_attention": True}),
    ("preln_final", {"cross_self_attention": True, "no_cross_attention": True}),
    ("postln", {"no_cross_attention": True}),
    ("preln_final", {"adaptive_softmax_cutoff": "6,10", "adaptive_softmax_factor": 2}),
    ("resi_dual", {"share_all_embeddings": True, "decoder_learned_pos": True, "max_target_positions": 30}),
]
UNEVEN = batch((5, 1, 17, 3, 9, 2, 12), (4, 6, 2, 2, 1, 3, 5))


@pytest.fixture(autouse=True)
def _double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fairseq keep log-probabilities in the model's precision: it rounds them to float32."""
    monkeypatch.setattr("fairseq.utils.log_softmax", lambda x, dim, onnx_trace=False: x.log_softmax(dim))


def both(
    models: list[Any], sample: dict[str, Any], kind: str = "translation", **options: Any
) -> tuple[list[list[dict[str, Tensor]]], list[list[dict[str, Tensor]]]]:
    """Return the hypotheses of each sentence, by our generator and by fairseq's."""
    task, settings = tiny_task(kind), Namespace(**{**LENGTHS, **options})
    arguments: dict[str, Any] = {}
    if "constraints" in options:
        words = [[torch.tensor([5]), torch.tensor([7, 9])], [], [torch.tensor([4, 4])]]
        arguments["constraints"] = pack_constraints((words * 3)[: len(sample["id"])])
    found = []
    for generator_class in (None, SequenceGenerator):
        generator = task.build_generator(models, settings, seq_gen_cls=generator_class)
        assert (type(generator) is SequenceGenerator) == (generator_class is SequenceGenerator)
        torch.manual_seed(3)
        found.append(task.inference_step(generator, models, sample, **arguments))
    return found[0], found[1]


def assert_same(
    ours: list[list[dict[str, Tensor]]], theirs: list[list[dict[str, Tensor]]], tolerance: float = 1e-9
) -> None:
    for mine, stocks in zip(ours, theirs, strict=True):
        assert [hypothesis["tokens"].tolist() for hypothesis in mine] == [each["tokens"].tolist() for each in stocks]
        for a, b in zip(mine, stocks, strict=True):
            assert a.keys() == b.keys()
            for part in ("score", "positional_scores", "attention", "alignment"):
                torch.testing.assert_close(a[part], b[part], rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def model() -> Any:
    return varied(tiny_model("preln_final"))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_option(model: Any, options: dict[str, Any]) -> None:
    ours, theirs = both([model], UNEVEN, **options)
    assert_same(ours, theirs)
    assert len(ours[0]) == min(options["beam"], 15) or options.get("max_len_b") == 0


def test_these_searches_are_not_all_alike(model: Any) -> None:
    found = {
        name: str([[each["tokens"].tolist() for each in sentence] for sentence in both([model], UNEVEN, **options)[0]])
        for name, options in OPTIONS.items()
        if name != "greedy, to end at once is allowed"  # but not best
    }
    assert len(set(found.values())) == len(found)


def test_sentences_leave_the_batch_at_different_steps(model: Any) -> None:
    assert len({len(sentence[0]["tokens"]) for sentence in both([model], UNEVEN, beam=5)[0]}) > 4


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_weights_and_lengths(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    sentences, beam = (int(torch.randint(1, 9, (), generator=draw)) for _ in range(2))
    source, target = torch.randint(1, 14, (2, sentences), generator=draw).tolist()
    sample = batch(tuple(source), tuple(target), seed=seed)
    options = {"beam": beam, "min_len": seed % 2, "temperature": 1 + seed % 3}
    assert_same(*both([varied(built("postln"), seed)], sample, **options))


@pytest.mark.parametrize("seed", [3, 5, 8])
def test_a_beam_that_too_few_words_can_fill(seed: int) -> None:
    """A place stays idle, and what stands at it in the next step does not end there: seen with these weights."""
    assert_same(*both([varied(built("preln_final"), seed)], UNEVEN, beam=15, min_len=0))


@pytest.mark.parametrize(
    ("placement", "options"), MODELS, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_every_model(placement: str, options: dict[str, Any]) -> None:
    assert_same(*both([varied(tiny_model(placement, **options))], UNEVEN, beam=4))


def test_without_attention_weights_as_the_commands_prepare_a_model(model: Any) -> None:
    model.decoder.need_attn = False
    ours, theirs = both([model], UNEVEN, beam=5)
    model.decoder.need_attn = True
    assert ours[0][0]["attention"].numel() == 0
    assert_same(ours, theirs)


def test_an_end_that_is_never_likely() -> None:
    """Every hypothesis ends at the largest length, all at once."""
    model, eos = varied(tiny_model("preln_final")), tiny_task().target_dictionary.eos()
    with torch.no_grad():
        model.decoder.layer_norm.bias[0] = 20
        model.decoder.output_projection.weight[eos] = -5 * torch.eye(8)[0]
    ours, theirs = both([model], UNEVEN, beam=5)
    assert {len(each["tokens"]) for sentence in ours for each in sentence} == {int(1.2 * 18 + 4) + 1}
    assert_same(ours, theirs)


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("placement", ["postln", "preln_final", "realformer", "resi_dual"])
def test_language_models_continue_what_they_are_given(placement: str, beam: int) -> None:
    model = varied(built(placement, "lm"))
    for sources in ((4, 4, 4), (2, 6, 3, 1)):  # the others' prefixes are padded
        tokens = batch(sources, sources)["net_input"]["prev_output_tokens"]
        sample = {"id": torch.arange(len(sources)), "net_input": {"src_tokens": tokens}}
        ours, theirs = both([model], sample, "lm", beam=beam)
        assert ours[0][0]["tokens"][: sources[0]].tolist() == tokens[0, 1 : 1 + sources[0]].tolist()
        assert_same(ours, theirs)


def test_a_prefix_that_ends(model: Any) -> None:
    task, sample = tiny_task(), batch((5, 3, 7), (4, 1, 2))
    prefix = sample["target"][:, :4]
    ending = sample["target"][2, :2]
    assert int(ending[1]) == task.target_dictionary.eos()  # the third sentence is over at once
    found = []
    for generator_class in (None, SequenceGenerator):
        generator = task.build_generator([model], Namespace(beam=4, **LENGTHS), seq_gen_cls=generator_class)
        found.append(task.inference_step(generator, [model], sample, prefix_tokens=prefix))
    assert torch.equal(found[0][2][0]["tokens"], ending)
    assert_same(*found)


def test_several_models_at_once(model: Any) -> None:
    assert_same(*both([model, varied(tiny_model("realformer"))], UNEVEN, beam=5))


@pytest.mark.parametrize("options", OTHER_SEARCHES.values(), ids=OTHER_SEARCHES)
def test_searches_of_other_kinds_are_fairseqs(model: Any, options: dict[str, Any]) -> None:
    sample = batch((5, 3, 7), (4, 6, 2))
    assert_same(*both([model], sample, **options))


@pytest.mark.parametrize("placements_at_once", [("preln_final",), ("preln_final", "realformer")])
@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_single_precision(placements_at_once: tuple[str, ...], temperature: float) -> None:
    """Of a sentence's hypotheses all but ties are the same."""
    models = [varied(tiny_model(name)).float() for name in placements_at_once]
    ours, theirs = both(models, UNEVEN, beam=5, temperature=temperature)
    assert_same(ours, theirs, tolerance=1e-5)


@pytest.mark.parametrize("kind", ["translation", "lm"])
def test_log_probabilities_stand_where_the_logits_stood(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = varied(tiny_model("preln_final", kind)).float()
    logits: list[Tensor] = []
    model.decoder.output_projection.register_forward_hook(lambda _, __, out: logits.append(out))
    taken: list[Tensor] = []
    allowed = search.BeamSearchGenerator.allowed

    def spied(self: Any, log_probs: Tensor, *others: Any) -> Tensor:
        taken.append(log_probs)
        return allowed(self, log_probs, *others)

    monkeypatch.setattr(search.BeamSearchGenerator, "allowed", spied)
    tiny_task(kind).build_generator([model], Namespace(beam=3, **LENGTHS)).generate([model], UNEVEN)
    assert len(taken) > 1
    assert [each.data_ptr() for each in taken] == [each.data_ptr() for each in logits]


@pytest.mark.parametrize("part", ["model", "decoder"])
@pytest.mark.parametrize("method", ["get_normalized_probs", "get_normalized_probs_scriptable"])
def test_probabilities_of_a_models_own_are_taken(part: str, method: str) -> None:
    """Here half of what the softmax gives goes to all words alike."""
    model = varied(tiny_model("preln_final")).float()
    plain, _ = both([model], UNEVEN, beam=5)
    owner = model if part == "model" else model.decoder
    softmax = getattr(type(owner), method)

    def flattened(*args: Any, **options: Any) -> Tensor:
        probs = softmax(*args, **options).exp()
        return (0.5 * probs + 0.5 / probs.size(-1)).log()

    owner.__class__ = type("Flattened", (type(owner),), {method: flattened})
    ours, theirs = both([model], UNEVEN, beam=5)
    assert_same(ours, theirs, tolerance=1e-5)
    assert ours[0][0]["score"] != plain[0][0]["score"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_runs(dtype: torch.dtype) -> None:
    ours, _ = both([varied(tiny_model("preln_final")).to(dtype)], UNEVEN, beam=5)
    for hypotheses in ours:
        scores = [float(each["score"]) for each in hypotheses]
        assert len(scores) == 5
        assert scores == sorted(scores, reverse=True)
        assert all(map(math.isfinite, scores))


def test_who_gets_which_generator(model: Any) -> None:
    task = tiny_task()
    stock = stock_model(True)

    def built_for(*models: nn.Module, **options: Any) -> type:
        return type(task.build_generator(list(models), Namespace(**options)))

    assert built_for(model) is search.BeamSearchGenerator
    assert built_for(model, model, sampling=True) is search.BeamSearchGenerator
    assert built_for(stock) is SequenceGenerator
    assert built_for(model, stock) is SequenceGenerator
    assert built_for(model, print_alignment="hard") is SequenceGeneratorWithAlignment
    chosen = task.build_generator([model], Namespace(), seq_gen_cls=SequenceGenerator)
    assert type(chosen) is SequenceGenerator


def test_mistakes_end_in_one_sentence(model: Any) -> None:
    with pytest.raises(LnplaceError, match="`--min-len` must be at most 3, the largest length, but is 9"):
        both([model], UNEVEN, beam=2, min_len=9, max_len_a=0, max_len_b=3)
    broken = varied(tiny_model("preln_final")).float()
    with torch.no_grad():
        broken.encoder.embed_tokens.weight.fill_(math.nan)
    with pytest.raises(LnplaceError, match="Every sentence must be able to end"):
        both([broken], UNEVEN, beam=2)


@pytest.mark.parametrize("vocabulary", [1000, 1024, 1100, 4001])
@pytest.mark.parametrize(("sentences", "width", "count"), [(3, 5, 10), (4, 1, 2), (1, 7, 14), (2, 1, 64)])
def test_the_best_continuations_are_the_largest_sums(
    monkeypatch: pytest.MonkeyPatch, vocabulary: int, sentences: int, width: int, count: int
) -> None:
    monkeypatch.setattr(search, "WORTH_BLOCKS", 4000)  # less than most of these
    draw = torch.Generator().manual_seed(vocabulary + width)
    log_probs = torch.randn(sentences * width, vocabulary, generator=draw, dtype=torch.double)
    log_probs[:, -3:] += 4  # some of the best at the end, beside what fills up the last block
    log_probs[0] = -math.inf
    scores = torch.randn(sentences * width, generator=draw, dtype=torch.double)
    best = search.best_continuations(log_probs, scores, sentences, count)
    for number in range(sentences):
        sums = {
            (parent, word): float(log_probs[number * width + parent, word] + scores[number * width + parent])
            for parent in range(width)
            for word in range(vocabulary)
        }
        expected = sorted(sums, key=lambda key: -sums[key])[:count]
        assert best.totals[number].tolist() == [sums[key] for key in expected]
        if best.totals[number, -1] > -math.inf:
            found = zip(best.parents[number].tolist(), best.words[number].tolist(), strict=True)
            assert list(found) == expected


def test_products_by_onednn_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "WORTH_IT", 0)
    monkeypatch.setattr(linear, "FEWEST_ROWS", 0)
    monkeypatch.setattr(linear, "ONEDNN_IS_FASTER", True)
    taken: list[int] = []
    by_onednn = linear.onednn
    monkeypatch.setattr(linear, "onednn", lambda *args: taken.append(1) or by_onednn(*args))
    ours, theirs = both([varied(tiny_model("preln_final")).float()], UNEVEN, beam=5)
    assert_same(ours, theirs, tolerance=1e-5)
    assert taken


@pytest.mark.parametrize("onednns", [False, True])
def test_a_model_that_is_to_translate_has_its_matrices_as_products_read_them(
    onednns: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(linear, "ONEDNN_IS_FASTER", onednns)
    model, cfg = varied(tiny_model("preln_final")).float(), OmegaConf.create({"generation": {"beam": 5}})
    before = copy.deepcopy(model.state_dict())
    model.prepare_for_inference_(cfg)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])
        in_a_layer = ".layers." in name and weight.dim() == 2
        assert (weight.t() if in_a_layer and not onednns else weight).is_contiguous()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    again = tiny_model("preln_final")
    again.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert all(torch.equal(weight, before[name]) for name, weight in again.named_parameters())
