"""Checkpoints that earlier versions wrote load today, as fairseq loads them, and give the logits of then.

`tests/stored/make.py` made them; each version has its folder there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.logging import metrics
from helpers import KINDS, sample_of, tiny_task, tiny_trainer
from stored.make import FOLDER, PLACEMENTS, UPDATES, logits_path, with_logits

from fairseq_lnplace.compat import load_checkpoint

STORED = sorted(path for path in FOLDER.glob("*/*.pt") if not path.name.endswith(".logits.pt"))
every_stored = pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")))


def kind_and_placement(path: Path) -> tuple[str, str]:
    kind, _, placement = path.stem.partition("_")
    return kind, placement


@pytest.fixture
def own_meters() -> Iterator[None]:
    """Keep the meters, which a loaded checkpoint brings and which are global, from the tests that follow."""
    yield
    metrics.reset()


def test_none_is_lost() -> None:
    """The tests below take what they find, and so would not miss a file."""
    found = {kind_and_placement(path) for path in STORED if path.parent.name == "0.1.0"}
    assert found == {(kind, placement) for kind in KINDS for placement in PLACEMENTS}


@every_stored
def test_the_logits_are_those_of_then(path: Path) -> None:
    kind, _ = kind_and_placement(path)
    then = torch.load(logits_path(path), weights_only=True)
    task = tiny_task(kind)
    [model], _ = checkpoint_utils.load_model_ensemble([str(path)], task=task)
    real = then["target"].ne(task.source_dictionary.pad())  # what stands at padding is nobody's
    logits, expected = with_logits(model, then)["logits"][real], then["logits"][real]
    assert expected.isfinite().all()
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)  # not bit for bit, since processors differ


@every_stored
@pytest.mark.usefixtures("own_meters")
def test_training_goes_on_from_the_same_weights(path: Path, tmp_path: Path) -> None:
    """As of `fairseq-train --restore-file`."""
    kind, placement = kind_and_placement(path)
    trainer = tiny_trainer(tmp_path, placement, kind)
    extra_state = trainer.load_checkpoint(str(path))
    assert extra_state["train_iterator"]["iterations_in_epoch"] == trainer.get_num_updates() == UPDATES
    stored = load_checkpoint(path)["model"]
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter, stored[name]), name
    trainer.train_step([sample_of(kind)])
    assert trainer.get_num_updates() == UPDATES + 1
