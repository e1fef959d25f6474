"""The fused criterion against the definition of label smoothing and against fairseq's criterion on whole models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import Dictionary
from fairseq.distributed import LegacyDistributedDataParallel, ModuleProxyWrapper
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from helpers import batch, tiny_model
from torch import Tensor, distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_lnplace.plugin.criterions import label_smoothed_cross_entropy_fused, projected_loss
from fairseq_lnplace.plugin.criterions import smoothed_loss as module
from fairseq_lnplace.plugin.criterions.label_smoothed_cross_entropy_fused import LabelSmoothedCrossEntropyFused
from fairseq_lnplace.plugin.criterions.smoothed_loss import smoothed_loss

VOCABULARY = Dictionary()
for index in range(40):
    VOCABULARY.add_symbol(str(index))
TASK = SimpleNamespace(source_dictionary=VOCABULARY, target_dictionary=VOCABULARY)


def by_definition(logits: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy with the smoothed distribution and with the target itself, summed."""
    log_p = logits - torch.log(torch.exp(logits).sum(1, keepdim=True))
    q = torch.full_like(logits, smoothing / (logits.size(1) - 1))
    q[torch.arange(len(target)), target] = 1 - smoothing
    return -(q * log_p).sum(), -log_p[torch.arange(len(target)), target].sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("block", [1, 30, 2**18], ids=lambda size: f"blocks of {size}")
def test_loss_and_gradient_are_those_of_the_definition(
    smoothing: float, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module._BLOCK, "cpu", block)
    torch.manual_seed(0)
    logits = (3 * torch.randn(7, 11, dtype=torch.float64)).requires_grad_()
    target = torch.tensor([0, 3, 3, 10, 5, 1, 0])
    loss, nll = by_definition(logits, target, smoothing)
    (expected,) = torch.autograd.grad(2.5 * loss, logits)

    actual_loss, actual_nll = smoothed_loss(logits * 1, target, smoothing)
    (actual,) = torch.autograd.grad(2.5 * actual_loss, logits)
    torch.testing.assert_close((actual_loss, actual_nll, actual), (loss, nll, expected), rtol=1e-12, atol=1e-12)
    assert not actual_nll.requires_grad


def test_a_second_backward_pass_is_an_error_and_not_a_wrong_gradient() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    loss, _ = smoothed_loss(logits * 1, torch.tensor([0, 1, 2]), 0.1)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_summed_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (4 * torch.randn(300, 500)).to(dtype).requires_grad_()
    target = torch.randint(0, 500, (300,))
    exact = logits.detach().double().requires_grad_()
    expected = by_definition(exact, target, 0.1)
    actual = smoothed_loss(logits * 1, target, 0.1)
    assert actual[0].dtype == torch.float32
    torch.testing.assert_close(torch.stack(actual).double(), torch.stack(expected), rtol=1e-6, atol=0.0)

    scale = 2.0**15  # what keeps the small gradients of fp16 above its smallest number
    (expected_grad,) = torch.autograd.grad(scale * expected[0], exact)
    (actual_grad,) = torch.autograd.grad(scale * actual[0], logits)
    torch.testing.assert_close(actual_grad.double(), expected_grad, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("rows", [1, 3, 512])
def test_loss_and_gradients_of_features_are_those_of_the_definition(
    smoothing: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projected_loss, "_ROWS", rows)
    torch.manual_seed(0)
    features = torch.randn(7, 4, dtype=torch.float64).requires_grad_()
    weight = (3 * torch.randn(11, 4, dtype=torch.float64)).requires_grad_()
    target = torch.tensor([0, 3, 3, 10, 5, 1, 0])
    loss, nll = by_definition(features @ weight.T, target, smoothing)
    expected = torch.autograd.grad(2.5 * loss, (features, weight))

    actual_loss, actual_nll = projected_loss.projected_loss(features, weight, target, smoothing)
    torch.testing.assert_close((actual_loss, actual_nll), (loss, nll), rtol=1e-12, atol=1e-12)
    for _ in range(2):
        actual = torch.autograd.grad(2.5 * actual_loss, (features, weight), retain_graph=True)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    assert not actual_nll.requires_grad

    frozen, _ = projected_loss.projected_loss(features, weight.detach(), target, smoothing)
    torch.testing.assert_close(torch.autograd.grad(frozen, features)[0] * 2.5, expected[0], rtol=1e-12, atol=1e-12)


def test_large_logits_of_features_do_not_overflow() -> None:
    features = torch.tensor([[100.0], [-100.0]], requires_grad=True)
    weight, target = torch.tensor([[10.0], [0.0], [-10.0]]), torch.tensor([0, 0])
    loss, nll = projected_loss.projected_loss(features, weight, target, 0.0)
    (grad,) = torch.autograd.grad(loss, features)
    assert (loss.item(), nll.item()) == (2000.0, 2000.0)
    torch.testing.assert_close(grad, torch.tensor([[0.0], [-20.0]]))


def translation_model(**options: Any) -> BaseFairseqModel:
    cfg = TransformerConfig(max_source_positions=32, max_target_positions=32, dropout=0.0, **options)
    for side in (cfg.encoder, cfg.decoder):
        side.embed_dim, side.ffn_embed_dim, side.layers, side.attention_heads = 8, 16, 1, 2
    cfg.decoder.output_dim = cfg.decoder.input_dim = 8
    torch.manual_seed(0)
    return TransformerModelBase.build_model(cfg, TASK)


def language_model(**options: Any) -> BaseFairseqModel:
    cfg = TransformerLanguageModelConfig(
        decoder_embed_dim=8, decoder_ffn_embed_dim=16, decoder_layers=1, decoder_attention_heads=2, dropout=0.0
    )
    for name, value in {"max_target_positions": 32, "tokens_per_sample": 32, **options}.items():
        setattr(cfg, name, value)
    torch.manual_seed(0)
    return TransformerLanguageModel.build_model(cfg, TASK)


def sample(language: bool = False) -> dict[str, Any]:
    torch.manual_seed(3)
    pad, eos = VOCABULARY.pad(), VOCABULARY.eos()
    target = torch.randint(4, len(VOCABULARY), (4, 6))
    for row, length in enumerate([6, 4, 2, 1]):
        target[row, length - 1] = eos
        target[row, length:] = pad
    previous = target.roll(1, dims=1)
    previous[:, 0] = eos
    net_input = {"src_tokens": previous, "src_lengths": target.ne(pad).sum(1)}
    if not language:
        net_input = {"src_tokens": target, "src_lengths": target.ne(pad).sum(1), "prev_output_tokens": previous}
    return {"net_input": net_input, "target": target, "ntokens": int(target.ne(pad).sum())}


def outcome(
    criterion: type, model: BaseFairseqModel, batch: dict[str, Any], reduce: bool = True, **options: Any
) -> tuple[Tensor, Any, dict[str, Any], dict[str, Tensor | None]]:
    options = {"sentence_avg": False, "label_smoothing": 0.1, **options}
    model.zero_grad()
    loss, sample_size, log = criterion(TASK, **options)(model, batch, reduce=reduce)
    loss.sum().backward()
    return loss.detach(), sample_size, log, {n: p.grad for n, p in model.named_parameters()}


CASES = {
    "plain": (translation_model, {}, {}),
    "no smoothing": (translation_model, {}, {"label_smoothing": 0.0}),
    "tied": (translation_model, {"share_all_embeddings": True}, {}),
    "sentence average": (translation_model, {}, {"sentence_avg": True}),
    "prefix": (translation_model, {}, {"ignore_prefix_size": 1, "report_accuracy": True}),
    "prefix longer than some": (translation_model, {}, {"ignore_prefix_size": 3, "report_accuracy": True}),
    "accuracy": (translation_model, {}, {"report_accuracy": True}),
    "language model": (language_model, {}, {"report_accuracy": True}),
    "position by position": (translation_model, {}, {"reduce": False}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_whole_model_sees_no_difference(case: str) -> None:
    build, model_options, options = CASES[case]
    model, batch = build(**model_options), sample(language=build is language_model)
    actual = outcome(LabelSmoothedCrossEntropyFused, model, batch, **options)
    expected = outcome(LabelSmoothedCrossEntropyCriterion, model, batch, **options)
    assert expected[0].sum() > 0
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    assert {k: type(v) for k, v in actual[2].items()} == {k: type(v) for k, v in expected[2].items()}


@pytest.mark.parametrize("placement", ["postln", "preln_final"])
def test_our_own_models_see_no_difference_either(placement: str) -> None:
    model, rows = tiny_model(placement), []
    model.decoder.output_projection.register_forward_hook(lambda _, __, logits: rows.append(logits.shape[:-1]))
    actual = outcome(LabelSmoothedCrossEntropyFused, model, batch())
    expected = outcome(LabelSmoothedCrossEntropyCriterion, model, batch())
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    assert rows == [(15,), (3, 7)]


def test_adaptive_softmax_takes_fairseqs_path() -> None:
    model = language_model(adaptive_softmax_cutoff="20", criterion="adaptive_loss")
    with torch.no_grad():  # fairseq's criterion itself cannot differentiate it
        actual = LabelSmoothedCrossEntropyFused(TASK, False, 0.1)(model, sample(language=True))
        expected = LabelSmoothedCrossEntropyCriterion(TASK, False, 0.1)(model, sample(language=True))
    torch.testing.assert_close(actual, expected)


def test_a_decoder_with_its_own_output_layer_takes_fairseqs_path() -> None:
    model, seen = translation_model(), []

    class Halved(type(model.decoder)):  # type: ignore[misc]
        def output_layer(self, features: Tensor) -> Tensor:
            seen.append(features.shape)
            return self.output_projection(features) / 2

    model.decoder.__class__ = Halved
    actual = outcome(LabelSmoothedCrossEntropyFused, model, sample())
    torch.testing.assert_close(actual, outcome(LabelSmoothedCrossEntropyCriterion, model, sample()))
    assert seen == [(4, 6, 8)] * 2


def test_padding_is_never_projected_and_the_model_is_left_as_it_was() -> None:
    model, rows = translation_model(), []
    model.decoder.output_projection.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape))
    batch = sample()
    outcome(LabelSmoothedCrossEntropyFused, model, batch)
    assert rows == [(13, 8)]
    assert model(**batch["net_input"])[0].shape == (4, 6, len(VOCABULARY))

    with pytest.raises(TypeError):
        outcome(LabelSmoothedCrossEntropyFused, model, {**batch, "net_input": {}})
    assert model(**batch["net_input"])[0].shape == (4, 6, len(VOCABULARY))


@pytest.fixture
def projected(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Note the shapes of the features that the criterion turns into a loss without logits."""
    shapes: list[torch.Size] = []

    def noted(features: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        shapes.append(features.shape)
        return projected_loss.projected_loss(features, *rest)

    monkeypatch.setattr(label_smoothed_cross_entropy_fused, "projected_loss", noted)
    return shapes


def test_a_plain_projection_makes_no_logits(projected: list[torch.Size]) -> None:
    model, batch = translation_model(), sample()
    outcome(LabelSmoothedCrossEntropyFused, model, batch)
    assert projected == [(13, 8)]
    assert model(**batch["net_input"])[0].shape == (4, 6, len(VOCABULARY))

    with pytest.raises(TypeError):
        outcome(LabelSmoothedCrossEntropyFused, model, {**batch, "net_input": {}})
    assert model(**batch["net_input"])[0].shape == (4, 6, len(VOCABULARY))


def with_a_bias(model: BaseFairseqModel) -> BaseFairseqModel:
    projection = model.decoder.output_projection
    projection.bias = torch.nn.Parameter(torch.linspace(-1, 1, projection.out_features))
    return model


def watched(model: BaseFairseqModel) -> BaseFairseqModel:
    model.decoder.output_projection.register_forward_hook(lambda _, __, logits: 2 * logits)
    return model


@pytest.mark.parametrize("change", [with_a_bias, watched, BaseFairseqModel.double, BaseFairseqModel.bfloat16])
def test_every_projection_gives_stocks_loss(change: Any, projected: list[torch.Size]) -> None:
    model, batch = change(translation_model()), sample()
    actual = outcome(LabelSmoothedCrossEntropyFused, model, batch)
    expected = outcome(LabelSmoothedCrossEntropyCriterion, model, batch)
    half = change is BaseFairseqModel.bfloat16
    torch.testing.assert_close(float(actual[0]), float(expected[0]), rtol=2e-3 if half else 1e-6, atol=0.0)
    assert len(projected) == (change is BaseFairseqModel.double)


class Operations(TorchDispatchMode):
    """Notes the names of torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(operation))
        return operation(*args, **kwargs or {})


def test_validation_computes_no_gradient(projected: list[torch.Size]) -> None:
    model, criterion = translation_model().eval(), LabelSmoothedCrossEntropyFused(TASK, False, 0.1)
    with Operations() as in_training:
        expected = criterion(model, sample())[0].detach()
    with torch.no_grad(), Operations() as in_validation:
        loss, _, _ = criterion(model, sample())
    assert not loss.requires_grad
    assert loss == expected
    assert len(projected) == 2
    of_gradients = "aten.scatter_add_.default"
    assert (of_gradients in in_training.names, of_gradients in in_validation.names) == (True, False)


def test_a_batch_of_padding_costs_nothing() -> None:
    model, batch = translation_model(), sample()
    batch["target"] = torch.full_like(batch["target"], VOCABULARY.pad())
    loss, _, _, grads = outcome(LabelSmoothedCrossEntropyFused, model, batch)
    assert loss == 0
    assert not any(grad.any() for grad in grads.values() if grad is not None)


def test_runs_may_change_between_the_criteria() -> None:
    assert LabelSmoothedCrossEntropyFused.__name__ == LabelSmoothedCrossEntropyCriterion.__name__


WRAPPERS = {
    "pytorch_ddp": (language_model, lambda model: DistributedDataParallel(model)),
    "pytorch_ddp, unused parameters": (
        translation_model,
        lambda model: DistributedDataParallel(model, find_unused_parameters=True),
    ),
    "legacy_ddp": (
        translation_model,
        lambda model: LegacyDistributedDataParallel(model, process_group=distributed.group.WORLD),
    ),
}


def half(rank: int, language: bool) -> dict[str, Any]:
    """Return the sentences of one of two processes: the long ones or the short ones."""
    batch = sample(language)
    rows = slice(0, 2) if rank == 0 else slice(2, 4)
    net_input = {name: tensor[rows] for name, tensor in batch["net_input"].items()}
    return {**batch, "net_input": net_input, "target": batch["target"][rows]}


def train_two_steps(rank: int, folder: Path, name: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    build, wrap = WRAPPERS[name]
    model = ModuleProxyWrapper(wrap(build()))
    for _ in range(2):  # DistributedDataParallel tells of a missed gradient in the second step
        loss, *_ = outcome(LabelSmoothedCrossEntropyFused, model, half(rank, build is language_model))
        if hasattr(model, "all_reduce_grads"):
            model.all_reduce_grads()
    grads = {n.removeprefix("module.").removeprefix("module."): p.grad for n, p in model.named_parameters()}
    torch.save((loss, grads), folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPPERS)
def test_two_processes_get_the_mean_of_their_gradients(name: str, tmp_path: Path) -> None:
    multiprocessing.spawn(train_two_steps, args=(tmp_path, name), nprocs=2)
    build, _ = WRAPPERS[name]
    halves = [half(rank, build is language_model) for rank in range(2)]
    expected = [outcome(LabelSmoothedCrossEntropyCriterion, build(), batch) for batch in halves]
    for rank in range(2):
        loss, grads = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(loss, expected[rank][0])
        for key, grad in grads.items():
            each = [stock[3][key] for stock in expected]
            if each[0] is not None:
                torch.testing.assert_close(grad, (each[0] + each[1]) / 2, rtol=1e-5, atol=1e-6)
