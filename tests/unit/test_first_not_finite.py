"""Where a training ends for NaN, its one line names the part of the model that the first one came from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.trainer import Trainer
from helpers import sample_of, stock_model, tiny_task, tiny_trainer
from torch import Tensor, multiprocessing, nn

from fairseq_lnplace.compat import one_sentence

INFINITY = float("inf")


def message_of(trainer: Trainer, kind: str = "translation") -> str:
    """Return the message with which the next update fails."""
    with pytest.raises(FloatingPointError) as raised:
        trainer.train_step([sample_of(kind), sample_of(kind, seed=2)])
    return str(raised.value)


def forward_fault(module: nn.Module) -> None:
    """Let a module return an infinity in one place."""

    def spoil(_: Any, __: Any, result: Tensor) -> Tensor:
        return result.masked_fill(torch.arange(result.numel()).view_as(result) == 0, INFINITY)

    module.register_forward_hook(spoil)


def backward_fault(module: nn.Module) -> None:
    """Let the gradient of what a module returns be infinite in one place."""

    def watch(_: Any, __: Any, result: Tensor) -> None:
        if result.requires_grad:
            result.register_hook(lambda grad: grad.masked_fill(torch.arange(grad.numel()).view_as(grad) == 0, INFINITY))

    module.register_forward_hook(watch)


def weight_fault(module: nn.Module) -> None:
    with torch.no_grad():
        module.weight.view(-1)[-1] = float("nan")


PLACES = [
    (forward_fault, "decoder.layers.1.fc2", "decoder layer 2's feed-forward (forward)"),
    (forward_fault, "decoder.layers.0.encoder_attn.out_proj", "decoder layer 1's cross-attention (forward)"),
    (forward_fault, "encoder.layers.2.self_attn.v_proj", "encoder layer 3's self-attention (forward)"),
    (forward_fault, "encoder.embed_tokens", "the encoder's embedding (forward)"),
    (forward_fault, "decoder.output_projection", "the decoder's output (forward)"),
    (backward_fault, "decoder.layers.1.fc1", "decoder layer 2's feed-forward (backward)"),
    (backward_fault, "decoder.layers.0.encoder_attn.k_proj", "decoder layer 1's cross-attention (backward)"),
    (backward_fault, "encoder.layers.0.self_attn.q_proj", "encoder layer 1's self-attention (backward)"),
    (backward_fault, "encoder.embed_tokens", "the encoder's embedding (backward)"),
    (backward_fault, "decoder.layer_norm", "the decoder's output (backward)"),
    (backward_fault, "decoder.output_projection", "the loss (backward)"),
    (weight_fault, "decoder.layers.1.fc1", "decoder layer 2's feed-forward (weights)"),
    (weight_fault, "encoder.layer_norm", "the encoder's final norm (weights)"),
]


@pytest.mark.parametrize(
    ("criterion", "fault", "path", "place"),
    [
        *(("label_smoothed_cross_entropy", *each) for each in PLACES),
        # the fused criterion's logits have their place in test_logits_that_never_are_there_together
        *(("label_smoothed_cross_entropy_fused", *each) for each in PLACES if "projection" not in each[1]),
    ],
)
def test_the_place_is_named(
    criterion: str, fault: Callable[[nn.Module], None], path: str, place: str, tmp_path: Path
) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final", criterion=criterion)
    fault(trainer.get_model().get_submodule(path))
    expected = f"gradients are Nan/Inf: in update 1 the first value that is not finite came from {place}"
    assert message_of(trainer) == expected


def test_logits_that_never_are_there_together(tmp_path: Path) -> None:
    """The fused criterion takes them in blocks, so that the first that can be seen is the loss."""
    trainer = tiny_trainer(tmp_path, "preln_final", criterion="label_smoothed_cross_entropy_fused")
    with torch.no_grad():
        trainer.get_model().decoder.output_projection.weight.mul_(1e38)
    assert message_of(trainer).endswith("came from the loss (forward)")


def test_compiled_layers(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final")
    layer, calls = trainer.get_model().encoder.layers[1], []
    layer.compiles, layer._compiled_call_impl = True, lambda *args: calls.append(1) or layer._call_impl(*args)
    forward_fault(layer.fc2)
    assert message_of(trainer).endswith("came from encoder layer 2's feed-forward (forward)")
    assert len(calls) == 2, "the update's own two batches"


def test_a_gradient_of_the_stream_alone(tmp_path: Path) -> None:
    """As of a norm whose input has no variance: no parameter of the sub-layer has such a gradient."""
    trainer = tiny_trainer(tmp_path, "preln_final")
    norm = trainer.get_model().decoder.layers[1].self_attn_layer_norm
    first, usual = nn.Identity(), norm.enter
    backward_fault(first)
    norm.enter = lambda x, padding: usual(first(x * 1), padding)
    assert message_of(trainer).endswith("came from decoder layer 2's self-attention (backward)")


@pytest.mark.parametrize("fault", [forward_fault, backward_fault])
def test_layers_that_are_recomputed(fault: Callable[[nn.Module], None], tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final", checkpoint_activations=True)
    fault(trainer.get_model().decoder.layers[0].encoder_attn.k_proj)
    assert f"came from decoder layer 1's cross-attention ({fault.__name__.split('_')[0]})" in message_of(trainer)


@pytest.mark.parametrize(
    ("kind", "placement", "path", "place"),
    [
        ("lm", "postln", "decoder.layers.2.fc2", "decoder layer 3's feed-forward"),
        ("bert", "dlcl", "encoder.sentence_encoder.layers.1.fc1", "encoder layer 2's feed-forward"),
        ("bert", "dlcl", "encoder.sentence_encoder.history", "the encoder's history"),
        ("bert", "postln", "encoder.lm_head.dense", "the encoder's output"),
    ],
)
def test_every_kind_of_model(kind: str, placement: str, path: str, place: str, tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, placement, kind)
    forward_fault(trainer.get_model().get_submodule(path))
    assert message_of(trainer, kind).endswith(f"came from {place} (forward)")


def test_the_loss(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final")
    criterion, compute = trainer.get_criterion(), trainer.get_criterion().compute_loss
    criterion.compute_loss = lambda *args, **kwargs: (compute(*args, **kwargs)[0] * INFINITY, torch.zeros(()))
    assert message_of(trainer).endswith("came from the loss (forward)")


def test_the_update_is_repeated_with_the_same_dropout(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final", dropout=0.5)
    dropped: list[Tensor] = []

    def spoil(_: Any, __: Any, result: Tensor) -> Tensor:
        dropped.append(result == 0)
        same = len(dropped) <= 2 or torch.equal(dropped[-1], dropped[-3])  # two batches an update
        return result * INFINITY if same else result

    trainer.get_model().encoder.dropout_module.register_forward_hook(spoil)
    assert "came from the encoder's embedding (forward)" in message_of(trainer)
    assert len(dropped) == 4
    assert not torch.equal(dropped[0], dropped[1])


def test_nothing_stays_behind_and_nothing_else_is_printed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final", log_layer_stats=1)
    forward_fault(trainer.get_model().decoder.layers[1].fc2)
    message_of(trainer)
    model = trainer.get_model()
    assert not any({"leave", "begin", "end"} & vars(module).keys() for module in model.modules())
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    assert "clip_grad_norm" not in vars(trainer)
    assert not (tmp_path / "layer_stats.jsonl").exists()
    assert not [record for record in caplog.records if "norms" in record.message or "detected in" in record.message]


@pytest.mark.usefixtures("no_gpu_needed")
def test_the_end_of_the_loss_scale_is_told_with_the_place(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final", fp16=True, fp16_init_scale=1e-3)
    forward_fault(trainer.get_model().decoder.layers[1].fc2)
    trainer.train_step([sample_of("translation")])  # an overflow, for which the scale is halved
    while trainer.optimizer.scaler.loss_scale > 2e-4:
        trainer.train_step([sample_of("translation")])
    message = message_of(trainer)
    assert message.startswith("Minimum loss scale reached (0.0001)")
    assert message.endswith("came from decoder layer 2's feed-forward (forward)")


def test_gradients_that_differ_between_ranks_for_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fairseq says on several GPUs, in several lines, where it is NaN that makes them differ."""
    trainer = tiny_trainer(tmp_path, "preln_final")

    def differ(_: Tensor) -> None:
        raise FloatingPointError("Fatal error: gradients are inconsistent between workers.\n----\n")

    monkeypatch.setattr(trainer, "_check_grad_norms", differ)
    assert message_of(trainer).startswith("Fatal error"), "all is finite"
    forward_fault(trainer.get_model().decoder.layers[1].fc2)
    assert message_of(trainer).startswith("gradients are Nan/Inf: in update 1 the first value")


def test_a_stock_model_ends_with_fairseqs_own_error(tmp_path: Path) -> None:
    """Today's torch ended it with StopIteration."""
    ours = tiny_trainer(tmp_path, "preln_final")
    trainer = Trainer(ours.cfg, tiny_task(), stock_model(normalize_before=True), ours.get_criterion())
    forward_fault(trainer.get_model().decoder.layers[1].fc2)
    assert message_of(trainer) == "gradients are Nan/Inf"


def test_the_line_that_a_command_ends_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final")
    forward_fault(trainer.get_model().decoder.layers[1].fc2)
    with pytest.raises(FloatingPointError) as raised:
        trainer.train_step([sample_of("translation")])
    expected = (
        "FloatingPointError: gradients are Nan/Inf: in update 1 the first value that is not finite came from "
        "decoder layer 2's feed-forward (forward)"
    )
    assert one_sentence.sentence_of(raised.value) == expected
    spawned = multiprocessing.ProcessRaisedException(f"\n\n-- Process 1 terminated:\n{expected}\n", 1, 1)
    assert one_sentence.sentence_of(spawned) == expected
    one_sentence.print_sentence(expected)
    assert capsys.readouterr().err == expected + "\n"
    assert one_sentence.sentence_of(FloatingPointError("gradients are Nan/Inf")) is None
