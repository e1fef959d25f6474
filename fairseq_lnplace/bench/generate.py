"""``lnplace bench generate``: fairseq-generate's batches and search with the same weights on every side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.dataclass.configs import GenerationConfig

from fairseq_lnplace.bench.data import Sample, batches
from fairseq_lnplace.bench.setting import Setting
from fairseq_lnplace.bench.sides import Side, share_weights, size_options
from fairseq_lnplace.bench.timing import compared, in_turn
from fairseq_lnplace.checkpoints import options
from fairseq_lnplace.compat import load_checkpoint
from fairseq_lnplace.errors import LnplaceError

__all__ = ["bench_generate", "searches_of"]

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


@contextmanager
def searches_of(
    setting: Setting, beam: int, checkpoint: Path | None, double: bool
) -> Iterator[tuple[dict[str, Search], list[bool]]]:
    """Give the sides' searches by name, the baseline first, ready for the test set, and which have its equation.

    Args:
        setting: what all benchmarks share.
        beam: the hypotheses that are kept.
        checkpoint: one of a model of ours, whose sizes and weights all sides get; without it weights are random.
        double: whether to compute in float64.

    Raises:
        LnplaceError: the checkpoint does not fit.
    """
    weights = None
    if checkpoint is not None:
        state = load_checkpoint(checkpoint)
        model, weights = options(state, "model"), state["model"]
        arch = f"transformer_{model['placement']}" if model.get("placement") else str(model.get("arch"))
        setting = replace(setting, archs=(arch,), extra=(*setting.extra, *size_options(model)))
    with setting.sides() as sides:
        searches = {side.name: Search(side, beam, checkpoint is not None, double) for side in sides}
        if weights is not None:
            try:
                for search in searches.values():
                    search.model.load_state_dict(dict(weights))
            except (RuntimeError, KeyError) as error:
                reason = " ".join(str(error).split())[:300]
                raise LnplaceError(f"{checkpoint} does not fit the sides: {reason}") from error
        same = share_weights([search.model for search in searches.values()])
        samples = batches(searches[sides[0].name].task, "test", setting.max_tokens, setting.batches)
        for search in searches.values():
            search.prepare(samples)
        yield searches, same


def bench_generate(
    setting: Setting, beam: int = 5, checkpoint: Path | None = None, double: bool = False
) -> list[dict[str, Any]]:
    """Return a row for each side, the baseline first: see :func:`.compared`, and :func:`same_text`.

    The arguments and errors are those of :func:`searches_of`.
    """
    with searches_of(setting, beam, checkpoint, double) as (searches, same):
        seconds = in_turn({name: search.run for name, search in searches.items()}, setting.clock, setting.rounds)
        baseline = next(iter(searches))
        truth = searches[baseline].run()
        texts = [same_text(truth, search.run()) if s else {} for search, s in zip(searches.values(), same, strict=True)]
    return [
        {"side": name, **figures, "sentences_per_second": len(truth) / figures["seconds"], **text}
        for (name, figures), text in zip(compared(seconds, baseline).items(), texts, strict=True)
    ]


def same_text(truth: Sequence[Hypotheses], found: Sequence[Hypotheses]) -> dict[str, float]:
    """Return the share of sentences with the same best translation, and the largest distance of the best scores."""
    pairs = [(theirs[0], ours[0]) for theirs, ours in zip(truth, found, strict=True)]
    equal = [torch.equal(theirs["tokens"], ours["tokens"]) for theirs, ours in pairs]
    apart = [abs(float(theirs["score"]) - float(ours["score"])) for theirs, ours in pairs]
    return {"identical": sum(equal) / len(equal), "score_difference": max(apart)}
