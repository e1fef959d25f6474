"""``lnplace bench generate``: fairseq-generate's batches and search with the same weights on every side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from fairseq import utils
from fairseq.dataclass.configs import GenerationConfig

from fairseq_lnplace.bench.data import Sample, batches
from fairseq_lnplace.bench.processes import Work, apart
from fairseq_lnplace.bench.setting import Setting
from fairseq_lnplace.bench.sides import Side, share_weights, size_options
from fairseq_lnplace.bench.timing import compared, in_turn
from fairseq_lnplace.checkpoints import options
from fairseq_lnplace.compat import load_checkpoint
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.plugin.models.kinds import kind_of

__all__ = ["bench_generate", "for_checkpoint", "searching"]

Hypotheses = list[dict[str, Any]]


class Search:
    """One side's model with the search that fairseq-generate would give it.

    Random weights end no sentence, so without a checkpoint every one gets as many pieces as its source.

    Args:
        side: what to build.
        beam: the hypotheses that are kept.
        trained: whether the weights will come from a checkpoint.
        double: whether to compute in float64.
    """

    def __init__(self, side: Side, beam: int, trained: bool, double: bool) -> None:
        trainer = side.trainer()
        self.task, self.model = trainer.task, trainer.model
        self.model.double() if double else None
        length = {"max_len_a": 1.2, "max_len_b": 10} if trained else {"max_len_a": 1.0, "max_len_b": 0}
        self.options = GenerationConfig(beam=beam, **length)
        self.cfg = trainer.cfg
        self.cuda = trainer.cuda

    def prepare(self, samples: Sequence[Sample]) -> None:
        """Build the search, once the weights are in, and take the batches to the device."""
        self.model.prepare_for_inference_(self.cfg)
        self.generator = self.task.build_generator([self.model], self.options)
        self.samples = [utils.move_to_cuda(sample) for sample in samples] if self.cuda else samples

    def run(self) -> list[Hypotheses]:
        """Return the hypotheses of every sentence."""
        found = [self.task.inference_step(self.generator, [self.model], sample) for sample in self.samples]
        return [hypotheses for batch in found for hypotheses in batch]


def for_checkpoint(setting: Setting, checkpoint: Path | None) -> Setting:
    """Return the setting with a checkpoint's architecture and sizes, for all sides.

    Raises:
        LnplaceError: it is not of a translation model of ours.
    """
    if checkpoint is None:
        return setting
    model = options(load_checkpoint(checkpoint), "model")
    kind = kind_of(model)
    if kind.stock != "transformer":
        raise must_be("--checkpoint", "of a translation model of this package", f"of {kind.stock}")
    arch = f"transformer_{model['placement']}" if model.get("placement") else str(model.get("arch"))
    return replace(setting, archs=(arch,), extra=(*setting.extra, *size_options(model)))


def search_of(side: Side, setting: Setting, beam: int, weights: Path | None, trained: bool, double: bool) -> Search:
    """Return a side's search, ready for the test set.

    Args:
        side: what to build.
        setting: what all benchmarks share.
        beam: the hypotheses that are kept.
        weights: the checkpoint that the model's weights come from; without one they are random.
        trained: whether they have been trained.
        double: whether to compute in float64.

    Raises:
        LnplaceError: the checkpoint does not fit.
    """
    search = Search(side, beam, trained, double)
    if weights is not None:
        try:
            search.model.load_state_dict(load_checkpoint(weights)["model"])
        except (RuntimeError, KeyError) as error:
            reason = " ".join(str(error).split())[:300]
            raise LnplaceError(f"{weights} does not fit the sides: {reason}") from error
    search.prepare(batches(search.task, "test", setting.max_tokens, setting.batches))
    return search


def searching(side: Side, *how: Any) -> Work:
    """Return a round of a side's search; ``how`` as of :func:`search_of`."""
    return search_of(side, *how).run


def bench_generate(
    setting: Setting, beam: int = 5, checkpoint: Path | None = None, double: bool = False
) -> list[dict[str, Any]]:
    """Return a row for each side, the baseline first: see :func:`.compared`, and :func:`same_text`.

    The sides are timed in processes of their own.

    Args:
        setting: what all benchmarks share.
        beam: the hypotheses that are kept.
        checkpoint: one of a model of ours, whose sizes and weights all sides get; without it weights are random, and
            the same where the equation is.
        double: whether to compute in float64.

    Raises:
        LnplaceError: the checkpoint does not fit.
    """
    setting = for_checkpoint(setting, checkpoint)
    trained = checkpoint is not None
    with setting.sides() as sides, TemporaryDirectory() as scratch:
        weights = checkpoint or Path(scratch, "weights.pt")
        texts, sentences = texts_of(sides, setting, beam, weights, trained, double)
        builds = {
            side.name: partial(searching, side, setting, beam, weights if trained or text else None, trained, double)
            for side, text in zip(sides, texts, strict=True)
        }
        with apart(builds, setting.clock) as works:
            seconds = in_turn(works, setting.rounds)
    return [
        {"side": name, **figures, "sentences_per_second": sentences / figures["seconds"], **text}
        for (name, figures), text in zip(compared(seconds, sides[0].name).items(), texts, strict=True)
    ]


def texts_of(
    sides: Sequence[Side], setting: Setting, beam: int, weights: Path, trained: bool, double: bool
) -> tuple[list[dict[str, float]], int]:
    """Return :func:`same_text` of each side that has the baseline's equation (else nothing), and the sentences.

    Random weights, the baseline's, are written to ``weights``.
    """
    searches = [search_of(side, setting, beam, weights if trained else None, trained, double) for side in sides]
    same = share_weights([search.model for search in searches])
    if not trained:
        torch.save({"model": searches[0].model.state_dict()}, weights)
    truth = searches[0].run()
    texts = [same_text(truth, each.run()) if equal else {} for each, equal in zip(searches, same, strict=True)]
    return texts, len(truth)


def same_text(truth: Sequence[Hypotheses], found: Sequence[Hypotheses]) -> dict[str, float]:
    """Return the share of sentences with the same best translation, and the largest distance of the best scores."""
    pairs = [(theirs[0], ours[0]) for theirs, ours in zip(truth, found, strict=True)]
    equal = [torch.equal(theirs["tokens"], ours["tokens"]) for theirs, ours in pairs]
    apart = [abs(float(theirs["score"]) - float(ours["score"])) for theirs, ours in pairs]
    return {"identical": sum(equal) / len(equal), "score_difference": max(apart)}
