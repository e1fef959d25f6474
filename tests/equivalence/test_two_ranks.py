"""Two processes with different data: no unused parameters, equal weights, and measured numbers that are everybody's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from every_placement import ALL, PAD, built, outputs
from helpers import batch
from torch import Tensor, distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

BATCHES = (batch((5, 3, 7), (4, 6, 2), seed=1), batch((2, 7), (6, 6), seed=2))
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *((kind, placement, {}) for kind, placement in ALL),
    ("translation", "postln", {"norm_type": "batchnorm"}),
    ("bert", "preln_final", {"norm_type": "batchnorm"}),
]


def three_updates(rank: int, folder: Path) -> None:
    """Train every model; torch tells of a parameter without gradient at the next forward."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    states: list[list[dict[str, Tensor]]] = []
    for kind, placement, options in CASES:
        model = built(placement, kind, **options)
        parallel = DistributedDataParallel(model, find_unused_parameters=False, broadcast_buffers=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        history = []
        for update in range(3):
            model.set_num_updates(update)
            optimizer.zero_grad()
            try:
                outputs(parallel, kind, BATCHES[rank]).log_softmax(-1)[:, 5].mean().neg().backward()
            except RuntimeError as error:
                raise AssertionError(f"{kind} {placement}") from error
            optimizer.step()
            history.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        states.append(history)
    torch.save(states, folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[list[list[dict[str, Tensor]]]]:
    """The state dicts by rank, by case and by update."""
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(three_updates, args=(folder,), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.slow
def test_all_ranks_hold_the_same_after_each_update(trained: Any) -> None:
    for case, *histories in zip(CASES, *trained, strict=True):
        for first, second in zip(*histories, strict=True):
            for name in first:
                torch.testing.assert_close(first[name], second[name], rtol=0, atol=0, msg=f"{case} {name}")
    start = built("rezero").state_dict()
    moved = trained[0][CASES.index(("translation", "rezero", {}))][-1]
    assert not torch.equal(start["encoder.layers.0.layer_scale"], moved["encoder.layers.0.layer_scale"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "placement", "norm_type", "measured"),
    [
        *((kind, "admin", "layernorm", "profiled_skip") for kind in ("translation", "lm", "bert")),
        ("translation", "postln", "batchnorm", "running_var"),
        ("bert", "preln_final", "batchnorm", "running_mean"),
    ],
)
def test_what_is_measured_is_that_of_both_ranks_data(
    kind: str, placement: str, norm_type: str, measured: str, trained: Any
) -> None:
    """As one process measures it on the two batches together; and neither batch alone gives it."""
    options = {} if norm_type == "layernorm" else {"norm_type": norm_type}
    ranks = trained[0][CASES.index((kind, placement, options))][0]

    def alone(sample: dict[str, Any]) -> dict[str, Tensor]:
        model = built(placement, kind, **options)
        outputs(model, kind, sample)
        return {name: tensor for name, tensor in model.state_dict().items() if name.endswith(measured)}

    together = alone(joined(*BATCHES))
    assert together
    for name, expected in together.items():
        torch.testing.assert_close(ranks[name], expected, rtol=1e-5, atol=1e-6, msg=name)
    for sample in BATCHES:
        assert not all(torch.allclose(ranks[name], value, rtol=1e-4) for name, value in alone(sample).items())


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return two batches as one, with padding as each side has it."""

    def stacked(a: Tensor, b: Tensor, left: bool = False) -> Tensor:
        length = max(a.size(1), b.size(1))
        pads = [(length - x.size(1), 0) if left else (0, length - x.size(1)) for x in (a, b)]
        return torch.cat([torch.nn.functional.pad(x, pad, value=PAD) for x, pad in zip((a, b), pads, strict=True)])

    one, two = first["net_input"], second["net_input"]
    return {
        "target": stacked(first["target"], second["target"]),
        "net_input": {
            "src_tokens": stacked(one["src_tokens"], two["src_tokens"], left=True),
            "src_lengths": torch.cat([one["src_lengths"], two["src_lengths"]]),
            "prev_output_tokens": stacked(one["prev_output_tokens"], two["prev_output_tokens"]),
        },
    }
