"""Two processes with different data measure what one measures on all of it, and agree on where NaN came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.logging import metrics
from fairseq.models import distributed_fairseq_model
from helpers import sample_of, tiny_trainer
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from fairseq_lnplace.measure.layer_stats import read_layer_stats

BACKENDS = ("pytorch_ddp", "legacy_ddp")
OPTIONS = {"log_layer_stats": 1, "clip_norm": 0.1}
SIZES = [  # of two batches for each rank
    [{"source": (5, 3, 7), "target": (4, 6, 2)}, {"source": (2, 9), "target": (8, 1), "seed": 2}],
    [{"source": (1,), "target": (9,), "seed": 3}, {"source": (4, 4), "target": (3, 5), "seed": 4}],
]


def on_cpu(module: nn.Module, device_ids: Any, output_device: Any, **options: Any) -> DistributedDataParallel:
    """Stand in for torch's class, as fairseq always names a GPU."""
    return DistributedDataParallel(module, **options)


def three_updates(rank: int, folder: Path) -> None:
    """Make two updates and a third that fails for this package's reasons, and write down what came of it."""
    torch.set_num_threads(1)
    vars(distributed_fairseq_model)["DistributedDataParallel"] = on_cpu
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for backend in BACKENDS:
        save_dir = folder / f"{backend}{rank}"
        save_dir.mkdir()
        world = {"distributed_world_size": 2, "distributed_rank": rank, "ddp_backend": backend}
        trainer = tiny_trainer(save_dir, "preln_final", **world, **OPTIONS)
        samples = [sample_of("translation", **sizes) for sizes in SIZES[rank]]
        with metrics.aggregate(new_root=True) as logged:
            trainer.train_step(samples)
            trainer.train_step(samples)
        if rank == 1:
            trainer.get_model().decoder.layers[1].fc2.register_forward_hook(lambda _, __, result: result * float("inf"))
        try:
            trainer.train_step(samples)
        except FloatingPointError as error:
            message = str(error)
        values = {name: meter.avg for name, meter in logged.items() if name[:4] in ("gnor", "act_", "upda")}
        (save_dir / "seen.json").write_text(json.dumps([message, {name: float(x) for name, x in values.items()}]))
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(three_updates, args=(made,), nprocs=2)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_are_those_of_one_process(backend: str, folder: Path, tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, "preln_final", **OPTIONS)
    for _ in range(2):
        trainer.train_step([sample_of("translation", **sizes) for rank in SIZES for sizes in rank])
    expected = read_layer_stats(tmp_path / "layer_stats.jsonl")
    found = read_layer_stats(folder / f"{backend}0/layer_stats.jsonl")
    assert not (folder / f"{backend}1/layer_stats.jsonl").exists()
    for ours, theirs in zip(found, expected, strict=True):
        for name, value in vars(theirs).items():
            assert getattr(ours, name) == (pytest.approx(value, rel=1e-4) if isinstance(value, float) else value)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_agree(backend: str, folder: Path) -> None:
    """On every number, and on the place that only the second one's data leads to."""
    (message, values), second = (json.loads((folder / f"{backend}{rank}/seen.json").read_text()) for rank in range(2))
    assert message == (
        "gradients are Nan/Inf: in update 3 the first value that is not finite came from "
        "decoder layer 2's feed-forward (forward)"
    )
    assert second == [message, values]
    assert len(values) == 1 + 3 * 5
