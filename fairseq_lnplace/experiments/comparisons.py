"""Claims about how well trainings do, judged wherever two of them differ in nothing but what the claim is about.

Their quality is the test set's BLEU where both have one, a classifier's accuracy, or else the best validation loss. A
difference counts where the means over seeds lie further apart than a margin and the seeds' ranges do not overlap; a
training that diverged is worse than any that did not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from fairseq_lnplace.experiments.outcomes import Levels, Results
from fairseq_lnplace.experiments.verdicts import Judge, Verdict, verdict_of
from fairseq_lnplace.runs.summary import accuracy, best_validation
from fairseq_lnplace.runs.trained_run import TrainedRun

__all__ = ["alike", "no_worse", "reaches", "worse"]


@dataclass(frozen=True)
class Scale:
    """How the quality of trainings is measured, so that more is better."""

    name: str
    margin: float
    value: Callable[[TrainedRun], float]
    shown: Callable[[float], str]


def best_loss(run: TrainedRun) -> float:
    """Return the best validation loss in bits; infinity for a training that diverged or was never validated."""
    return math.inf if run.state == "diverged" else best_validation(run).get("loss", math.inf)


# what diverged has no BLEU and may have no accuracy: the worst there is
BLEU = Scale("BLEU", 1.0, lambda run: run.test.scores["bleu"] if run.test else 0.0, "{:.1f}".format)
ACCURACY = Scale("accuracy", 1.0, lambda run: accuracy(run) or 0.0, "{:.1f} %".format)
LOSS = Scale("loss", 0.1, lambda run: -best_loss(run), lambda value: f"{-value:.2f}")


def scale_of(runs: Sequence[TrainedRun]) -> Scale:
    """Return the scale that all of the trainings have."""
    finished = [run for run in runs if run.state == "finished"]
    if finished and all(run.test for run in finished):
        return BLEU
    return ACCURACY if finished and all(accuracy(run) is not None for run in finished) else LOSS


def gap(worse: Sequence[float], better: Sequence[float], margin: float) -> int | None:
    """Return 1 where the second values are clearly the larger ones, -1 where the first are, 0 where they are alike.

    None stands for seeds that spread too far to tell: the means are further apart than the margin, but the ranges meet.
    """
    difference = mean(better) - mean(worse)
    if not abs(difference) > margin:
        return 0
    if min(better) > max(worse):
        return 1
    return -1 if min(worse) > max(better) else None


def compare(results: Results, one: Levels, other: Levels, margin: float = 1.0) -> tuple[list[int | None], str]:
    """Return the :func:`gap` of each comparison, 1 where ``other`` is better; and the comparisons in words.

    Args:
        margin: in the scale's own: 1 is one point of BLEU or accuracy, or 0.1 bits of loss.
    """
    signs, words = [], []
    for rest, ones, others in results.pairs(one, other):
        scale = scale_of([*ones, *others])
        values = [scale.value(run) for run in ones], [scale.value(run) for run in others]
        signs.append(gap(*values, scale.margin * margin))
        told = (scale.shown(mean(each)) for each in values)
        words.append(f"{scale.name} {' against '.join(told)}{f' ({rest})' if rest else ''}")
    return signs, "; ".join(words) or "the cells it takes are not there"


def worse(one: Levels, other: Levels, margin: float = 1.0) -> Judge:
    """Return the judge of "``one`` is worse than ``other``"."""
    return _judge(one, other, margin, confirming=(1,), contradicting=(-1,))


def no_worse(one: Levels, other: Levels, margin: float = 1.0) -> Judge:
    """Return the judge of "``one`` does as well as ``other``, or better"."""
    return _judge(one, other, margin, confirming=(0, -1), contradicting=(1,))


def alike(one: Levels, other: Levels, margin: float = 1.0) -> Judge:
    """Return the judge of "there is little between ``one`` and ``other``"."""
    return _judge(one, other, margin, confirming=(0,), contradicting=(1, -1))


def _judge(one: Levels, other: Levels, margin: float, confirming: Sequence[int], contradicting: Sequence[int]) -> Judge:
    """Return the judge that takes each comparison's :func:`gap` for or against the claim."""

    def judge(results: Results) -> Verdict:
        signs, words = compare(results, one, other, margin)
        held = verdict_of([sign in confirming for sign in signs], [sign in contradicting for sign in signs])
        return Verdict(held, words)

    return judge


def reaches(one: Levels, other: Levels, share: float) -> Judge:
    """Return the judge of "``one`` comes to where ``other`` ends within so great a share of the other's updates"."""

    def judge(results: Results) -> Verdict:
        shares, words = [], []
        for rest, ones, others in results.pairs(one, other):
            goal, whole = max(map(best_loss, others)), max(run.updates for run in others)
            if not math.isfinite(goal):
                continue
            needed = max(_updates_to(run, goal) for run in ones)
            shares.append(needed / whole)
            reached = f"after {needed:.0f} of {whole} updates" if math.isfinite(needed) else "never"
            words.append(f"loss {goal:.2f} {reached}{f' ({rest})' if rest else ''}")
        within = verdict_of([each <= share for each in shares], [each > 1 for each in shares])
        return Verdict(within, "; ".join(words) or "the cells it takes are not there")

    return judge


def _updates_to(run: TrainedRun, goal: float) -> float:
    """Return after how many updates the validation loss came to the goal; infinity for never."""
    return next((row["updates"] for row in run.log.valid if row["loss"] <= goal), math.inf)
