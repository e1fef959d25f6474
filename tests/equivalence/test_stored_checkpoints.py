"""Checkpoints that earlier versions wrote load today, as fairseq loads them, and give the logits of then.

`tests/stored/make.py` made them; each version has its folder there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.logging import metrics
from helpers import KINDS, sample_of, tiny_task, tiny_trainer
from stored.make import FOLDER, OF_MANY_FORMS, PLACEMENTS, UPDATES, logits_path, with_logits

from fairseq_lnplace.compat import load_checkpoint
from fairseq_lnplace.compat.one_sentence import sentence_of
from fairseq_lnplace.errors import LnplaceError

STORED = sorted(path for path in FOLDER.glob("*/*.pt") if not path.name.endswith(".logits.pt"))
# version and placement -> the options under which a method is what that version called by its name, and what it says
CHANGED: dict[tuple[str, str], tuple[dict[str, Any], str]] = {
    ("0.1.0", "keel"): (
        {"keel_form": "uniform"},
        "its first layer was as the others, and is plain Pre-LN in the paper; --keel-form uniform is that form",
    ),
    ("0.1.0", "hybridnorm"): (
        {"hybridnorm_form": "full_width"},
        "its norms of queries, keys and values were over the full width, not over each head; "
        "--hybridnorm-form full_width is that form",
    ),
    ("0.1.0", "normformer"): (
        {"normformer_resscale": True},
        "its learned scale of the feed-forward's skip (ResScale) was always there; --normformer-resscale is that form",
    ),
}
every_stored = pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")))


def kind_and_placement(path: Path) -> tuple[str, str]:
    kind, _, placement = path.stem.partition("_")
    return kind, placement


def form_of_then(path: Path) -> dict[str, Any]:
    """Return the options that a stored checkpoint's method has today."""
    return CHANGED.get((path.parent.name, kind_and_placement(path)[1]), ({}, ""))[0]


@pytest.fixture
def own_meters() -> Iterator[None]:
    """Keep the meters, which a loaded checkpoint brings and which are global, from the tests that follow."""
    yield
    metrics.reset()


def test_none_is_lost() -> None:
    """The tests below take what they find, and so would not miss a file."""
    found = {kind_and_placement(path) for path in STORED if path.parent.name == "0.1.0"}
    expected = {(kind, placement) for kind in KINDS for placement in PLACEMENTS}
    assert found == expected | {("translation", placement) for placement in OF_MANY_FORMS}


@every_stored
def test_the_logits_are_those_of_then(path: Path) -> None:
    kind, _ = kind_and_placement(path)
    then = torch.load(logits_path(path), weights_only=True)
    task = tiny_task(kind)
    [model], _ = checkpoint_utils.load_model_ensemble([str(path)], task=task)
    assert form_of_then(path).items() <= model.method.options.items()
    real = then["target"].ne(task.source_dictionary.pad())  # what stands at padding is nobody's
    logits, expected = with_logits(model, then)["logits"][real], then["logits"][real]
    assert expected.isfinite().all()
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)  # not bit for bit, since processors differ


@every_stored
@pytest.mark.usefixtures("own_meters")
def test_training_goes_on_from_the_same_weights(path: Path, tmp_path: Path) -> None:
    """As of `fairseq-train --restore-file`."""
    kind, placement = kind_and_placement(path)
    trainer = tiny_trainer(tmp_path, placement, kind, **form_of_then(path))
    extra_state = trainer.load_checkpoint(str(path))
    assert extra_state["train_iterator"]["iterations_in_epoch"] == trainer.get_num_updates() == UPDATES
    stored = load_checkpoint(path)["model"]
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter, stored[name]), name
    trainer.train_step([sample_of(kind)])
    assert trainer.get_num_updates() == UPDATES + 1


@pytest.mark.parametrize(("version", "placement"), CHANGED)
@pytest.mark.usefixtures("own_meters")
def test_another_form_than_of_then_is_refused_and_told(version: str, placement: str, tmp_path: Path) -> None:
    """In one sentence that says what has changed, and which option brings it back."""
    path = FOLDER / version / f"translation_{placement}.pt"
    form, change = CHANGED[version, placement]
    today = {name: False if value is True else "published" for name, value in form.items()}
    with pytest.raises(LnplaceError) as error:
        checkpoint_utils.load_model_ensemble([str(path)], arg_overrides=today, task=tiny_task())
    told = str(error.value)
    assert told.startswith(f"`checkpoint` must be trained as '{placement} layernorm layernorm 3+2 ")
    assert told.endswith(f", but is trained as '{placement} layernorm layernorm 3+2': in version {version} {change}")
    assert "\n" not in told
    trainer = tiny_trainer(tmp_path, placement)
    with pytest.raises(Exception, match="Cannot load model parameters") as hidden:  # fairseq's own, raised from ours
        trainer.load_checkpoint(str(path))
    assert sentence_of(hidden.value) == told
