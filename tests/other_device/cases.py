"""What takes a GPU if there is one, on the device of ``device.cpp``, where it gives the numbers that the CPU gives.

``tests/equivalence/test_other_device.py`` runs this file in a process of its own: torch cannot forget a device.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from every_placement import ALL, built
from fairseq import utils
from helpers import KINDS, fill_in, sample_of, tiny_model, tiny_task, tiny_trainer, varied
from other_device.device import moved, register
from torch import Tensor, nn

from fairseq_lnplace.bench.setting import Setting
from fairseq_lnplace.bench.timing import Clock, in_turn
from fairseq_lnplace.bench.train import rows, training
from fairseq_lnplace.cli import main
from fairseq_lnplace.plugin.search import WORTH_BLOCKS, BeamSearchGenerator, best_continuations

CPU = torch.device("cpu")
OTHER = register(Path(os.environ["OTHER_DEVICE"]))
NORMS = ["rmsnorm", "scalenorm", "dyt", "derf", "batchnorm", "instancenorm"]


class Device(type(torch.device)):  # type: ignore[misc]
    """``torch.device``, but that the GPU is the device of this file."""

    real = torch.device

    def __call__(cls, *args: Any, **named: Any) -> torch.device:
        return OTHER if args[:1] == ("cuda",) else cls.real(*args, **named)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.real)


@pytest.fixture
def as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch and fairseq take the device for the machine's GPU."""
    properties = SimpleNamespace(name="other", total_memory=2**33, major=9, minor=0)
    says = {"is_available": True, "device_count": 1, "current_device": 0, "max_memory_allocated": 2**30}
    says |= {"get_device_properties": properties, "get_device_name": "other", "get_rng_state": None}
    says |= dict.fromkeys(["set_rng_state", "synchronize", "empty_cache", "reset_peak_memory_stats"])
    for name, answer in says.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(torch, "device", Device("device", (), {}))
    monkeypatch.setattr(nn.Module, "cuda", lambda module: module.to(OTHER))
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor, *_: tensor)
    monkeypatch.setattr(Tensor, "cuda", lambda tensor, *_, **__: tensor.to(OTHER))
    monkeypatch.setattr(utils, "move_to_cuda", lambda sample, device=None: moved(sample, OTHER))


def test_tensors_of_two_devices_do_not_go_together() -> None:
    """Else these tests could not fail."""
    here, there = torch.ones(3, 3, device=OTHER), torch.ones(3, 3)
    for mix in (lambda: here @ there, lambda: torch.cat([here, there]), lambda: here.masked_fill(there > 0, 0)):
        with pytest.raises(RuntimeError, match="device"):
            mix()


def numbers(model: nn.Module, kind: str, device: torch.device) -> dict[str, Tensor]:
    """Return the output, every gradient and every buffer after a training step's forward and backward, on the CPU."""
    model.to(device)
    sample = moved(sample_of(kind), device)
    torch.manual_seed(5)
    out = model(**sample["net_input"])[0]
    out[sample["target"].ne(1)].log_softmax(-1)[:, 5].sum().backward()
    found = {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    found |= dict(model.named_buffers())
    assert all(tensor.device == device for tensor in found.values())
    return {name: tensor.detach().cpu() for name, tensor in found.items()} | {"output": out.detach().cpu()}


def assert_same(ours: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-9) -> None:
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(ours[name], tensor, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize(("kind", "placement"), ALL)
def test_placements(kind: str, placement: str) -> None:
    here, there = (numbers(fill_in(built(placement, kind)), kind, device) for device in (OTHER, CPU))
    assert_same(here, there)


@pytest.mark.parametrize("placement", ["admin", "dsinit"])
def test_what_is_measured_or_drawn_at_the_start(placement: str) -> None:
    here, there = (numbers(built(placement).double(), "translation", device) for device in (OTHER, CPU))
    assert_same(here, there)


@pytest.mark.parametrize("norm_type", NORMS)
def test_norms(norm_type: str) -> None:
    norms = {"norm_type": norm_type, "decoder_norm_type": "layernorm"}
    here, there = (numbers(fill_in(built("sandwich", **norms)), "translation", device) for device in (OTHER, CPU))
    assert_same(here, there)


@pytest.mark.parametrize(
    "options",
    [
        {"checkpoint_activations": True},
        {"cross_self_attention": True},
        {"share_all_embeddings": True, "encoder_learned_pos": True, "decoder_learned_pos": True},
        {"quant_noise_pq": 0.5, "quant_noise_pq_block_size": 2},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options(options: dict[str, Any]) -> None:
    here, there = (
        numbers(fill_in(tiny_model("preln_final", **options)), "translation", device) for device in (OTHER, CPU)
    )
    assert_same(here, there)


def test_padding_before_the_target() -> None:
    found = []
    for device in (OTHER, CPU):
        model, inputs = fill_in(built("preln_final")).to(device), sample_of("translation")["net_input"]
        inputs["prev_output_tokens"] = inputs["prev_output_tokens"].flip(1)
        found.append({"output": model(**moved(inputs, device))[0].cpu()})
    assert_same(*found)


@pytest.mark.parametrize(
    ("kind", "optimizer", "criterion"),
    [
        ("translation", "adam_fused", "label_smoothed_cross_entropy_fused"),
        ("translation", "radam", "label_smoothed_cross_entropy"),
        ("lm", "adam_fused", "cross_entropy"),
        ("bert", "adam_fused", "masked_lm"),
    ],
)
@pytest.mark.usefixtures("as_gpu")
def test_training(kind: str, optimizer: str, criterion: str, tmp_path: Path) -> None:
    """Three updates without dropout, whose masks are others on the CPU, and what is logged of the layers."""
    found = []
    for cpu in (False, True):
        folder = tmp_path / str(cpu)
        given = {"cpu": cpu, "lr": [0.01], "log_layer_stats": 1}
        given["adam_eps"] = 1e-3  # so that Adam makes no step of a gradient that is 0 but for rounding
        trainer = tiny_trainer(folder, "preln_final", kind, optimizer, criterion, **given)
        assert trainer.cuda == (not cpu)
        for seed in range(3):
            trainer.train_step([sample_of(kind, seed=seed), sample_of(kind, seed=seed + 9)])
        found.append({name: tensor.cpu() for name, tensor in trainer.model.state_dict().items()})
        lines = [json.loads(line) for line in (folder / "layer_stats.jsonl").read_text().splitlines()]
        found[-1]["logged"] = torch.tensor([sum(flat(line)) for line in lines])
    assert_same(*found, tolerance=1e-5)


def flat(record: Any) -> list[float]:
    """Return the numbers of a record, and of those in it."""
    if isinstance(record, dict | list):
        return [x for part in (record.values() if isinstance(record, dict) else record) for x in flat(part)]
    return [float(record)] if type(record) in (int, float) else []


@pytest.mark.parametrize("precision", ["fp16", "bf16", "memory_efficient_fp16"])
@pytest.mark.parametrize("placement", ["preln_final", "admin", "resi_dual"])
@pytest.mark.usefixtures("as_gpu")
def test_training_in_half_precision(placement: str, precision: str, tmp_path: Path) -> None:
    losses = []
    for given in ({precision: True}, {}):
        options = {"cpu": False, "dropout": 0.1, "lr": [0.01], **given}
        trainer = tiny_trainer(
            tmp_path, placement, optimizer="adam_fused", criterion="label_smoothed_cross_entropy_fused", **options
        )
        steps = [trainer.train_step([sample_of("translation")]) for _ in range(5)]
        losses.append([step["loss"] for step in steps if step])
    assert len(losses[1]) == 5
    assert losses[0][-1] == pytest.approx(losses[1][-1], rel=0.1)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.usefixtures("as_gpu")
def test_the_first_value_that_is_not_finite(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final", criterion="label_smoothed_cross_entropy_fused", cpu=False)
    with torch.no_grad():
        trainer.model.decoder.layers[1].fc2.weight.view(-1)[-1] = float("nan")
    with pytest.raises(FloatingPointError, match="decoder layer 2's feed-forward"):
        trainer.train_step([sample_of("translation")])


@pytest.mark.parametrize(
    "options",
    [{"beam": 1}, {"beam": 5}, {"beam": 5, "prefix": 2}, {"beam": 15, "min_len": 0}, {"beam": 3, "models": 2}],
    ids=str,
)
@pytest.mark.parametrize(
    ("placement", "model_options"),
    [
        ("preln_final", {}),
        ("realformer", {}),
        ("resi_dual", {}),
        ("dlcl", {}),
        ("postln", {"cross_self_attention": True}),
    ],
)
def test_search(placement: str, model_options: dict[str, Any], options: dict[str, Any]) -> None:
    options = {"max_len_a": 1.2, "max_len_b": 4, **options}
    prefix, count = options.pop("prefix", 0), options.pop("models", 1)
    found: list[dict[str, Tensor]] = []
    for device in (OTHER, CPU):
        models = [varied(built(placement, **model_options), seed).to(device) for seed in range(count)]
        generator = tiny_task().build_generator(models, Namespace(**options))
        assert type(generator) is BeamSearchGenerator
        found.append({})
        for lengths in ((5, 1, 17, 3, 9, 2, 12), (6, 6)):  # with padding, where sentences leave one by one, and without
            sample = moved(sample_of("translation", source=lengths, target=(4,) * len(lengths)), device)
            words = sample["target"][:, :prefix] if prefix else None
            hypotheses = tiny_task().inference_step(generator, models, sample, prefix_tokens=words)
            found[-1] |= {
                f"{part}, {len(lengths)} {sentence} {rank}": hypothesis[part].cpu().double()
                for sentence, beam in enumerate(hypotheses)
                for rank, hypothesis in enumerate(beam)
                for part in ("tokens", "score", "positional_scores", "attention")
            }
    assert_same(*found, tolerance=1e-5)


def test_continuations_of_many_words() -> None:
    log_probs, scores = torch.randn(10, 20_000, dtype=torch.float64), torch.randn(10, dtype=torch.float64)
    assert log_probs.numel() > WORTH_BLOCKS
    here = best_continuations(log_probs.to(OTHER), scores.to(OTHER), 2, 10)
    for ours, expected in zip(here, best_continuations(log_probs, scores, 2, 10), strict=True):
        torch.testing.assert_close(ours.cpu(), expected)


@pytest.mark.parametrize("what", ["gradients", "activations", "depth"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("as_gpu")
def test_diagnose(kind: str, what: str, tmp_path: Path) -> None:
    arch = f"{KINDS[kind][1]}preln_final_tiny"
    small = [f"--{side}-{name}=16" for side in KINDS[kind][2] for name in ("embed-dim", "ffn-embed-dim")]
    found = []
    for cpu in ([], ["--cpu"]):
        command = ["diagnose", what, "--arch", arch, "--batches", "2", "--batch-tokens", "60", "--dropout", "0"]
        assert main([*command, *small, *cpu, "--dest", str(tmp_path / f"dest{len(cpu)}")]) == 0
        record = json.loads((tmp_path / f"dest{len(cpu)}" / f"{what}.json").read_text())
        found.append({"figures": torch.tensor(flat(record), dtype=torch.float64)})
    assert len(found[0]["figures"]) > 10
    assert_same(*found, tolerance=1e-3)


@pytest.mark.usefixtures("as_gpu")
def test_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairseq_lnplace.bench.train.matmul_peak", lambda clock: 1.0)  # of a GPU's size
    narrow = ("--encoder-embed-dim", "16", "--decoder-embed-dim", "16", "--encoder-layers", "1")
    setting = Setting(("transformer_preln_final_tiny",), max_tokens=100, batches=1, rounds=1, extra=narrow)
    assert setting.clock == Clock(OTHER, 1)
    with setting.sides() as sides:
        works = {side.name: partial(setting.clock.seconds, training(side, setting)) for side in sides}
        _, ours = rows(setting, sides, in_turn(works, 1))
    assert ours["loss_difference"] < 1e-5
    assert ours["gradient_difference"] < 1e-4
