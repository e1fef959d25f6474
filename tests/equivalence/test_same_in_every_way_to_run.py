"""How a model is run changes no number: recomputed activations, dropped layers, a fresh process, half precision."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from every_placement import ALL, built, outputs, stacks
from fairseq.trainer import _catalog_shared_params
from helpers import fill_in
from torch import Tensor, nn

from fairseq_lnplace import placements
from fairseq_lnplace.layers.streams import Streams

EVERY = pytest.mark.parametrize(("kind", "placement"), ALL)
ROOT = Path(__file__).parents[2]


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@EVERY
def test_recomputed_activations(kind: str, placement: str) -> None:
    """`--checkpoint-activations` with dropout: same output, same gradient of every parameter, same buffers."""
    results = []
    for checkpointed in (False, True):
        # Admin measures here, in its first forward: recomputation must not measure again
        model = built(placement, kind, checkpoint_activations=checkpointed, dropout=0.3).double()
        torch.manual_seed(5)
        out = outputs(model, kind)
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        out.square().mean().backward()
        after = dict(model.named_buffers())
        assert all(torch.equal(after[name], buffer) for name, buffer in before.items())
        numbers = {"output": out.detach(), **before} | {name: p.grad for name, p in model.named_parameters()}
        results.append({name.replace("_fsdp_wrapped_module.", ""): value for name, value in numbers.items()})
    plain, recomputed = results
    assert plain.keys() == recomputed.keys()
    for name, expected in plain.items():
        torch.testing.assert_close(recomputed[name], expected, rtol=1e-10, atol=1e-12, msg=name)


@EVERY
def test_dropped_layers(kind: str, placement: str) -> None:
    """`--encoder-layerdrop`: what is left is the model without the dropped layers, its constants untouched."""
    drop = {"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5}
    model = fill_in(built(placement, kind, **(drop if kind != "lm" else {"decoder_layerdrop": 0.5})))
    for seed in range(100):  # until a forward drops some layers of each stack and keeps some
        torch.manual_seed(seed)
        kept = [list(stack.layers) for stack in stacks(model, kind)]
        if all(0 < len(part) < stack.num_layers for part, stack in zip(kept, stacks(model, kind), strict=True)):
            break
    torch.manual_seed(seed)
    dropped = outputs(model, kind)
    dropped.square().mean().backward()
    reached = sum(parameter.grad is not None for name, parameter in model.named_parameters() if ".layers." in name)
    for stack, layers in zip(stacks(model, kind), kept, strict=True):
        stack.layers = nn.ModuleList(layers)
    torch.testing.assert_close(dropped, outputs(model, kind), rtol=0, atol=0)
    assert reached == sum(".layers." in name for name, _ in model.named_parameters())
    full = fill_in(built(placement, kind)).eval()
    assert not torch.allclose(dropped, outputs(full, kind))


FRESH = """
import sys, torch
from every_placement import built, outputs
for (kind, placement), (weights, expected) in torch.load(sys.argv[1]).items():
    model = built(placement, kind, seed=2).double().eval()
    model.load_state_dict(weights, strict=True)
    assert torch.equal(outputs(model, kind).detach(), expected), (kind, placement)
    print(kind, placement)
"""


@pytest.mark.slow
def test_training_is_evaluation_is_evaluation_in_a_fresh_process(tmp_path: Path) -> None:
    """All of them in one process; a fresh one has neither trained nor built anything before it loads."""
    results = {}
    for kind, placement in ALL:
        model = fill_in(built(placement, kind))
        training = outputs(model, kind).detach()
        expected = outputs(model.eval(), kind).detach()
        torch.testing.assert_close(training, expected, rtol=1e-9, atol=1e-9)
        results[kind, placement] = (copied(model), expected)
    torch.save(results, tmp_path / "results.pt")
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    threads = str(torch.get_num_threads())  # sums round as they are divided; CTranslate2's tests leave one thread
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": threads}
    command = [sys.executable, "-W", "ignore", "-c", FRESH, str(tmp_path / "results.pt")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == len(ALL)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16 autocast", "bfloat16", "float16"])
@pytest.mark.parametrize("placement", placements.names())
def test_finite_at_100_layers(placement: str, precision: str) -> None:
    """bf16: output and gradients; `.half()`: the output, as its gradients need fairseq's loss scale."""
    model = built(placement, encoder_layers=100, decoder_layers=100)
    if precision == "bfloat16 autocast":
        with torch.autocast("cpu", torch.bfloat16):
            out = outputs(model)
    else:
        dtype = getattr(torch, precision)
        out = outputs(model.to(dtype))
        assert out.dtype == dtype
    assert out.isfinite().all()
    if precision != "float16":
        out.float().log_softmax(-1)[:, 5].mean().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def test_branchnorms_progress_is_in_the_checkpoint() -> None:
    model = built("branchnorm", branchnorm_updates=40)
    start = outputs(model.eval()).detach()
    model.set_num_updates(9)  # the tenth update is next
    progress = {name: buffer.item() for name, buffer in model.named_buffers() if name.endswith("progress")}
    assert len(progress) == 3 * 2 + 2 * 3
    assert set(progress.values()) == {0.25}
    assert built("branchnorm", branchnorm_updates=40).encoder.layers[
        0
    ].final_layer_norm.progress.item() == pytest.approx(1 / 40)
    again = built("branchnorm", branchnorm_updates=40).eval()
    again.load_state_dict(copied(model), strict=True)
    torch.testing.assert_close(outputs(again), outputs(model), rtol=0, atol=0)
    assert not torch.allclose(outputs(again), start)
    again.set_num_updates(100)
    assert again.decoder.layers[1].encoder_attn_layer_norm.progress.item() == 1.0


def test_admins_profile_is_in_the_checkpoint() -> None:
    """Measured once, in the first training forward; a loaded model measures nothing."""
    model = built("admin")
    outputs(model)
    measured = {name: value for name, value in copied(model).items() if name.endswith("profiled_skip")}
    assert len(measured) == 12
    assert len({value.item() for value in measured.values()}) > 6
    again = built("admin", seed=2)
    again.load_state_dict(copied(model), strict=True)
    outputs(again.train())
    assert all(torch.equal(again.state_dict()[name], value) for name, value in measured.items())
    other = built("admin", seed=2)
    outputs(other)
    assert not all(torch.equal(other.state_dict()[name], value) for name, value in measured.items())


def test_admin_measures_layers_that_layerdrop_would_leave_out() -> None:
    """In the first forward, for there is no other measurement; from the next one on they are dropped."""
    results = []
    for drop in (0.0, 0.5):
        model = built("admin", encoder_layerdrop=drop, decoder_layerdrop=drop)
        torch.manual_seed(1)
        outputs(model)
        results.append({name: value for name, value in copied(model).items() if name.endswith("profiled_skip")})
    for name, expected in results[0].items():
        assert torch.equal(results[1][name], expected), name
    outputs(model)
    assert model.encoder.layers.training
    assert any(len(list(model.encoder.layers)) < model.encoder.num_layers for _ in range(50))


def test_a_small_scale_under_autocast_is_not_in_half_precision() -> None:
    """LayerScale's 1e-6 of a branch is lost in float16, but not in the stream, which is in float32 there."""
    residual = built("layerscale", layerscale_init=1e-6).encoder.layers[0].final_layer_norm
    branch = torch.full((1, 1, 8), 0.02, dtype=torch.float16)
    streams = residual.leave(Streams(torch.zeros(1, 1, 8)), branch, padding=None, layer_input=branch, scale=None)
    torch.testing.assert_close(streams.x, branch.float() * 1e-6, rtol=1e-5, atol=0)


@pytest.mark.parametrize("norm_type", ["layernorm", "rmsnorm", "scalenorm", "dyt", "derf"])
@pytest.mark.parametrize("placement", placements.names())
def test_fairseqs_trainer_finds_no_shared_parameters(placement: str, norm_type: str) -> None:
    """It would log every slot that a method leaves empty, layer by layer, if it were registered as None."""
    assert _catalog_shared_params(built(placement, norm_type=norm_type)) == []
