"""What the papers claim, judged on the runs at hand: confirmed, contradicted, or this run cannot tell.

A comparison is made wherever two runs differ in nothing but what the claim is about, on the test set's BLEU where both
have one, on a classifier's accuracy, or else on the best validation loss. A difference counts where the means over
seeds lie further apart than a margin and the seeds' ranges do not overlap; a training that diverged is worse than any
that did not. A claim is confirmed where every comparison says so, contradicted where every one says the contrary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean
from typing import Any

from fairseq_lnplace.diagnostics.theory import exponent
from fairseq_lnplace.report.runs import TrainedRun
from fairseq_lnplace.report.summary import accuracy, best_validation

__all__ = ["CLAIMS", "Claim", "Outcome", "Results", "Verdict"]

Levels = Mapping[str, str]
CONFIRMED, CONTRADICTED, CANNOT_TELL = "confirmed", "contradicted", "cannot tell"


@dataclass(frozen=True)
class Outcome:
    """A cell's level of each factor, and its training."""

    levels: Levels
    run: TrainedRun


@dataclass(frozen=True)
class Verdict:
    """``confirmed``, ``contradicted`` or ``cannot tell``, and the figures that say so."""

    verdict: str
    evidence: str


@dataclass(frozen=True)
class Results:
    """What an experiment gave: its trainings, and its measurements by name."""

    outcomes: Sequence[Outcome]
    measurements: Mapping[str, Any] = field(default_factory=dict)

    def groups(self, wanted: Levels) -> dict[tuple[tuple[str, str], ...], list[TrainedRun]]:
        """Return the ended trainings at the wanted levels, all seeds together, by their other levels."""
        found: dict[tuple[tuple[str, str], ...], list[TrainedRun]] = {}
        for outcome in self.outcomes:
            if wanted.items() <= outcome.levels.items() and outcome.run.state in ("finished", "diverged"):
                others = tuple(sorted(outcome.levels.items() - wanted.items()))
                found.setdefault(others, []).append(outcome.run)
        return found

    def pairs(self, one: Levels, other: Levels) -> list[tuple[str, list[TrainedRun], list[TrainedRun]]]:
        """Return the trainings at ``one`` and at ``other`` that agree in the rest, with that rest in words."""
        ones, others = self.groups(one), self.groups(other)
        fixed = one.items() & other.items()
        return [
            (", ".join(f"{factor} {level}" for factor, level in sorted({*rest, *fixed})), ones[rest], others[rest])
            for rest in ones
            if rest in others
        ]


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


def worse(one: Levels, other: Levels, margin: float = 1.0) -> Callable[[Results], Verdict]:
    """Return the judge of "``one`` is worse than ``other``"."""

    def judge(results: Results) -> Verdict:
        signs, words = compare(results, one, other, margin)
        return Verdict(_verdict([sign == 1 for sign in signs], [sign == -1 for sign in signs]), words)

    return judge


def no_worse(one: Levels, other: Levels, margin: float = 1.0) -> Callable[[Results], Verdict]:
    """Return the judge of "``one`` does as well as ``other``, or better"."""

    def judge(results: Results) -> Verdict:
        signs, words = compare(results, one, other, margin)
        return Verdict(_verdict([sign in (0, -1) for sign in signs], [sign == 1 for sign in signs]), words)

    return judge


def alike(one: Levels, other: Levels, margin: float = 1.0) -> Callable[[Results], Verdict]:
    """Return the judge of "there is little between ``one`` and ``other``"."""

    def judge(results: Results) -> Verdict:
        signs, words = compare(results, one, other, margin)
        return Verdict(_verdict([sign == 0 for sign in signs], [sign in (1, -1) for sign in signs]), words)

    return judge


def _verdict(confirming: Sequence[bool], contradicting: Sequence[bool]) -> str:
    if confirming and all(confirming):
        return CONFIRMED
    return CONTRADICTED if contradicting and all(contradicting) else CANNOT_TELL


def reaches(one: Levels, other: Levels, share: float) -> Callable[[Results], Verdict]:
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
        within = _verdict([each <= share for each in shares], [each > 1 for each in shares])
        return Verdict(within, "; ".join(words) or "the cells it takes are not there")

    return judge


def _updates_to(run: TrainedRun, goal: float) -> float:
    """Return after how many updates the validation loss came to the goal; infinity for never."""
    return next((row["updates"] for row in run.log.valid if row["loss"] <= goal), math.inf)


def rows_of(results: Results, table: str, **wanted: object) -> list[Mapping[str, Any]]:
    """Return the rows of a measurement of gradients that have the wanted values."""
    rows = results.measurements.get("gradients", {}).get(table, [])
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def by_layer(results: Results, placement: str, state: str) -> list[float]:
    """Return the norm of the mean gradient of W² of the decoder's feed-forwards, from the bottom."""
    rows = rows_of(results, "gradients", placement=placement, side="decoder", matrix="fc2")
    chosen = [row for row in rows if (row["state"] == "initialisation") == (state == "initialisation")]
    return [row["norm_of_mean"] for row in sorted(chosen, key=lambda row: row["layer"])]


def _told(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def rising(results: Results) -> Verdict:
    """Judge "at initialisation Post-LN's gradients grow towards the output"."""
    norms = by_layer(results, "postln", "initialisation")
    if len(norms) < 2:
        return Verdict(CANNOT_TELL, "nothing was measured")
    steps = [later > earlier for earlier, later in pairwise(norms)]
    return Verdict(_verdict(steps, [not step for step in steps]), f"W² by decoder layer: {_told(norms)}")


def flat(results: Results) -> Verdict:
    """Judge "Pre-LN's stay about the same": the paper's own fall to a half, and no layer may exceed the first."""
    norms = by_layer(results, "preln_final", "initialisation")
    if len(norms) < 2:
        return Verdict(CANNOT_TELL, "nothing was measured")
    held = 0.4 <= norms[-1] / norms[0] <= 1.25
    return Verdict(CONFIRMED if held else CONTRADICTED, f"W² by decoder layer: {_told(norms)}")


def calmed(results: Results) -> Verdict:
    """Judge "after warm-up the last layer's gradient is small"."""
    before = by_layer(results, "postln", "initialisation")
    after = by_layer(results, "postln", "trained")
    if not before or not after:
        return Verdict(CANNOT_TELL, "no checkpoint was measured")
    verdict = CONFIRMED if after[-1] < before[-1] / 2 else CONTRADICTED
    return Verdict(verdict, f"W² of the last decoder layer: {before[-1]:.3g} before, {after[-1]:.3g} after")


def falls(placement: str, low: float, high: float) -> Callable[[Results], Verdict]:
    """Return the judge of "the last W²'s gradient goes with a power of the depth between ``low`` and ``high``"."""

    def judge(results: Results) -> Verdict:
        rows = sorted(rows_of(results, "depths", placement=placement), key=lambda row: row["depth"])
        if len(rows) < 3:
            return Verdict(CANNOT_TELL, "too few depths were measured")
        slope = exponent([row["depth"] for row in rows], [row["norm_of_mean"] for row in rows])
        values = ", ".join(f"{row['norm_of_mean']:.3g} at {row['depth']}" for row in rows)
        return Verdict(CONFIRMED if low <= slope <= high else CONTRADICTED, f"exponent {slope:.2f}: {values}")

    return judge


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, and who judges it."""

    text: str
    source: str
    judge: Callable[[Results], Verdict]


XIONG = "Xiong et al. 2020"
ADAM_POST = {"optimiser": "adam", "placement": "postln"}
ADAM_PRE = {"optimiser": "adam", "placement": "preln"}
SGD_POST = {"optimiser": "sgd", "placement": "postln"}
BAD = 5.0  # margins (0.5 bits) for a training that comes to nothing

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "warmup": (
        Claim(
            "Post-LN needs warm-up with Adam",
            f"{XIONG}, section 3.2",
            worse({**ADAM_POST, "warmup": "none"}, {**ADAM_POST, "warmup": "long"}),
        ),
        Claim(
            "… also where the rate without warm-up falls as 1/√t",
            f"{XIONG}, section 3.2",
            worse({**ADAM_POST, "warmup": "none-decaying"}, {**ADAM_POST, "warmup": "long"}),
        ),
        Claim(
            "An eighth of the warm-up (500 updates of 4,000) is not enough",
            f"{XIONG}, section 3.2",
            worse({**ADAM_POST, "warmup": "short"}, {**ADAM_POST, "warmup": "long"}),
        ),
        Claim(
            "Post-LN needs warm-up with SGD",
            f"{XIONG}, section 3.2",
            worse({**SGD_POST, "warmup": "none"}, {**SGD_POST, "warmup": "long"}),
        ),
        Claim(
            "Pre-LN trains as well without warm-up as with it",
            f"{XIONG}, section 4",
            no_worse({**ADAM_PRE, "warmup": "none"}, {**ADAM_PRE, "warmup": "long"}),
        ),
    ),
    "iwslt": (
        Claim(
            "Pre-LN's epoch 9 is as good as Post-LN's epoch 15",
            f"{XIONG}, section 4",
            reaches({"optimiser": "adam", "placement": "preln"}, {"optimiser": "adam", "placement": "postln"}, 0.6),
        ),
        Claim(
            "RAdam trains Post-LN without warm-up",
            f"{XIONG}, section 4",
            no_worse(
                {"optimiser": "radam", "placement": "postln"}, {"optimiser": "adam", "placement": "postln"}, margin=2
            ),
        ),
        Claim(
            "For Pre-LN there is little between RAdam and Adam",
            f"{XIONG}, section 4",
            alike({"optimiser": "radam", "placement": "preln"}, {"optimiser": "adam", "placement": "preln"}),
        ),
    ),
    "wmt": (
        Claim(
            "Pre-LN without warm-up converges faster than Post-LN with it",
            f"{XIONG}, section 4",
            reaches({"placement": "preln"}, {"placement": "postln"}, 0.9),
        ),
    ),
    "gradients": (
        Claim(
            "At initialisation Post-LN's gradients grow towards the output",
            f"{XIONG}, Figure 3(b): 0.13 … 1.66",
            rising,
        ),
        Claim("Pre-LN's stay about the same in all layers", f"{XIONG}, Figure 3(b): 0.56 … 0.29", flat),
        Claim("After warm-up Post-LN's are small", f"{XIONG}, Figure 3(b): about 0.015", calmed),
    ),
    "depth": (
        Claim(
            "In Post-LN the last layer's gradient does not depend on the depth",
            f"{XIONG}, Figure 3(c, d), Theorem 1",
            falls("postln", -0.15, 0.15),
        ),
        Claim(
            "In Pre-LN it falls as 1/√L",
            f"{XIONG}, Figure 3(c, d), Theorem 1",
            falls("preln_final", -0.75, -0.25),
        ),
    ),
    "deep": (
        Claim(
            "Post-LN fails at 12+12 layers, where Pre-LN trains",
            "Xie et al. 2023, Table 3",
            worse(
                {"placement": "postln", "layers": "l12", "warmup": "long"},
                {"placement": "preln_final", "layers": "l12", "warmup": "long"},
                BAD,
            ),
        ),
        Claim(
            "Without warm-up Post-LN fails",
            "Xie et al. 2023, Table 3",
            worse({"placement": "postln", "warmup": "none"}, {"placement": "preln_final", "warmup": "none"}, BAD),
        ),
        *(
            Claim(
                f"At 12+12 layers {title} beats Pre-LN",
                source,
                worse({"placement": "preln_final", "layers": "l12"}, {"placement": placement, "layers": "l12"}, 0.2),
            )
            for placement, title, source in (
                ("resi_dual", "ResiDual", "Xie et al. 2023, Table 3"),
                ("admin", "Admin", "Xie et al. 2023, Table 3"),
                ("deepnorm", "DeepNorm", "Xie et al. 2023, Table 3"),
                ("b2t", "B2T", "Takase et al. 2023, at 18+18 layers on WMT"),
            )
        ),
        Claim(
            "ResiDual needs no warm-up",
            "Xie et al. 2023, Table 3",
            no_worse({"placement": "resi_dual", "warmup": "none"}, {"placement": "resi_dual", "warmup": "long"}),
        ),
    ),
    "bert": (
        Claim(
            "Pre-LN without warm-up comes to Post-LN's loss in three quarters of the updates",
            f"{XIONG}, Figure 5(a)",
            reaches({"pretraining": "preln"}, {"pretraining": "postln"}, 0.75),
        ),
        Claim(
            "At Pre-LN's rate Post-LN fails in spite of warm-up",
            f"{XIONG}, section 4",
            worse({"pretraining": "postln-high"}, {"pretraining": "postln"}, BAD),
        ),
    ),
    "finetune": (
        Claim(
            "Pre-LN, pre-trained without warm-up, fine-tunes as well as Post-LN",
            f"{XIONG}, Figures 5(b) and 5(c)",
            no_worse({"pretrained": "preln"}, {"pretrained": "postln"}),
        ),
    ),
    "transfer": (
        Claim(
            "Pre-trained alike, the two come to about the same loss",
            "Su 2022, article 9009",
            alike({"pretraining": "preln-warmup"}, {"pretraining": "postln"}),
        ),
        Claim(
            "… and fine-tuned, Post-LN is the better one",
            "Su 2022, article 9009",
            worse({"pretrained": "preln-warmup"}, {"pretrained": "postln"}),
        ),
    ),
}
