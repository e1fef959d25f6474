"""The optimizers against fairseq's Adam and against the published update, alone and inside fairseq's fp16 wrappers."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.optim import (
    FairseqOptimizer,
    FP16Optimizer,
    MemoryEfficientFP16Optimizer,
    build_optimizer,
)
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

import fairseq_lnplace.plugin.optimizers  # noqa: F401 (registers them)

SHAPES = [(5, 3), (7,), (2, 2, 2)]
OPTIONS = {"lr": [2e-3], "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8, "weight_decay": 0.1}


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def gradients(step: int) -> list[Tensor]:
    """Return gradients over many magnitudes, so that eps matters for some."""
    generator = torch.Generator().manual_seed(100 + step)
    return [
        torch.randn(shape, generator=generator) * 10.0 ** -torch.randint(0, 10, shape, generator=generator)
        for shape in SHAPES
    ]


def config(name: str, **options: Any) -> DictConfig:
    return OmegaConf.create({"_name": name, **({"tpu": False} if name == "adam" else {}), **OPTIONS, **options})


def build(name: str, params: list[nn.Parameter], **options: Any) -> FairseqOptimizer:
    return build_optimizer(config(name, **options), params)


def run(optimizer: FairseqOptimizer, params: list[nn.Parameter], steps: range, skip: bool = False) -> None:
    for step in steps:
        optimizer.zero_grad()
        pairs = [(p * g.to(p)).sum() for p, g in zip(params, gradients(step), strict=True)]
        optimizer.backward(sum(pair for i, pair in enumerate(pairs) if not (skip and i == step % len(params))))
        optimizer.step()


def assert_close(actual: list[nn.Parameter], expected: list[nn.Parameter], tolerance: float = 1e-6) -> None:
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.0}, {"adam_betas": "(0.9, 0.999)", "adam_eps": 1e-4}])
@pytest.mark.parametrize("skip", [False, True], ids=["all", "with gradients missing"])
def test_adam_fused_is_fairseqs_adam(options: dict[str, Any], skip: bool) -> None:
    ours, stock = parameters(), parameters()
    run(build("adam_fused", ours, **options), ours, range(30), skip)
    run(build("adam", stock, **options), stock, range(30), skip)
    assert_close(ours, stock)


def test_adam_fused_keeps_fairseqs_state() -> None:
    ours, stock = parameters(), parameters()
    states = []
    for name, params in (("adam_fused", ours), ("adam", stock)):
        optimizer = build(name, params)
        run(optimizer, params, range(5), skip=True)
        states.append(optimizer.state_dict())
    actual, expected = states
    assert actual["param_groups"] == expected["param_groups"]
    assert actual["state"].keys() == expected["state"].keys()
    for key, state in actual["state"].items():
        assert {k: type(v) for k, v in state.items()} == {k: type(v) for k, v in expected["state"][key].items()}
        assert state["step"] == expected["state"][key]["step"]
        torch.testing.assert_close(state["exp_avg_sq"], expected["state"][key]["exp_avg_sq"], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("first", "second"), [("adam", "adam_fused"), ("adam_fused", "adam"), ("radam", "radam")])
def test_a_run_continues_from_a_checkpoint(first: str, second: str) -> None:
    straight, resumed = parameters(), parameters()
    run(build(second, straight), straight, range(20))

    begun = build(first, resumed)
    run(begun, resumed, range(8))
    continued = build(second, resumed)
    continued.load_state_dict(copy.deepcopy(begun.state_dict()))
    run(continued, resumed, range(8, 20))

    assert_close(resumed, straight)
    names = {type(begun).__name__, type(continued).__name__}
    assert len(names) == 1, "fairseq refuses to resume when the class names differ"


def radam_by_the_paper(w: Tensor, grads: list[Tensor], lr: float, beta1: float, beta2: float, decay: float) -> Tensor:
    """Algorithm 2 of Liu et al. (2020) in float64, with decoupled weight decay and no eps."""
    w, m, v = w.double(), torch.zeros_like(w).double(), torch.zeros_like(w).double()
    rho_inf = 2 / (1 - beta2) - 1
    for t, g in enumerate(grads, start=1):
        m, v = beta1 * m + (1 - beta1) * g.double(), beta2 * v + (1 - beta2) * g.double() ** 2
        rho = rho_inf - 2 * t * beta2**t / (1 - beta2**t)
        w = w - lr * decay * w
        step = m / (1 - beta1**t)
        if rho > 5:  # as the authors' code and torch have it; the paper prints 4
            r = ((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)) ** 0.5
            step = r * step / (v / (1 - beta2**t)).sqrt()
        w = w - lr * step
    return w


def test_radam_is_the_papers() -> None:
    params = parameters()
    grads = [gradients(step)[0].sign() + gradients(step)[0] for step in range(30)]  # none so small that eps matters
    expected = radam_by_the_paper(params[0].detach(), grads, 2e-3, 0.9, 0.98, decay=0.1)
    optimizer = build("radam", params[:1])
    for grad in grads:
        params[0].grad = grad
        optimizer.step()
    torch.testing.assert_close(params[0].detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_the_learning_rate_is_fairseqs_to_set() -> None:
    for name in ("radam", "adam_fused"):
        params = parameters()
        before = copy.deepcopy(params)
        optimizer = build(name, params)
        optimizer.set_lr(0.0)
        run(optimizer, params, range(3))
        assert optimizer.get_lr() == 0.0
        assert_close(params, before, tolerance=0.0)


def fp16_config(name: str) -> Any:
    common = {"bf16": True, "fp16_scale_window": 1, "fp16_no_flatten_grads": True}
    cfg: DictConfig = OmegaConf.create({"optimizer": config(name), "common": common})
    cfg.optimization = {"update_freq": [1]}
    return cfg


@pytest.mark.parametrize("wrapper", [FP16Optimizer, MemoryEfficientFP16Optimizer])
def test_adam_fused_inside_fairseqs_half_precision_wrappers(wrapper: Any) -> None:
    results = []
    for name in ("adam_fused", "adam"):
        params = parameters(torch.bfloat16)
        optimizer = wrapper.build_optimizer(fp16_config(name), params)
        run(optimizer, params, range(6))
        resumed = wrapper.build_optimizer(fp16_config(name), params)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        run(resumed, params, range(6, 12))
        results.append(params)
    assert_close(*results, tolerance=2**-8)  # one step of bfloat16
    assert any(not torch.equal(p, q) for p, q in zip(results[0], parameters(torch.bfloat16), strict=True))


def test_radam_trains_in_half_precision_with_a_float32_copy() -> None:
    params = parameters(torch.bfloat16)
    optimizer = FP16Optimizer.build_optimizer(fp16_config("radam"), params)
    run(optimizer, params, range(3))
    assert all(p.isfinite().all() for p in params)
    assert optimizer.supports_flat_params


def test_a_closure_is_called_once() -> None:
    params = parameters()
    optimizer = build("adam_fused", params)
    calls = SimpleNamespace(count=0)

    def closure() -> float:
        calls.count += 1
        sum((p**2).sum() for p in params).backward()
        return 1.5

    optimizer.step(closure)
    assert calls.count == 1
    assert optimizer.optimizer.state[params[0]]["step"] == 1
