"""Claims about how gradients go with the layer and the depth, judged on what `lnplace diagnose gradients` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from fairseq_lnplace.diagnostics.theory import exponent
from fairseq_lnplace.experiments.outcomes import Results
from fairseq_lnplace.experiments.verdicts import CANNOT_TELL, CONFIRMED, CONTRADICTED, Judge, Verdict, verdict_of

__all__ = ["calmed", "falls", "flat", "rising"]


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
    return Verdict(verdict_of(steps, [not step for step in steps]), f"W² by decoder layer: {_told(norms)}")


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


def falls(placement: str, low: float, high: float) -> Judge:
    """Return the judge of "the last W²'s gradient goes with a power of the depth between ``low`` and ``high``"."""

    def judge(results: Results) -> Verdict:
        rows = sorted(rows_of(results, "depths", placement=placement), key=lambda row: row["depth"])
        if len(rows) < 3:
            return Verdict(CANNOT_TELL, "too few depths were measured")
        slope = exponent([row["depth"] for row in rows], [row["norm_of_mean"] for row in rows])
        values = ", ".join(f"{row['norm_of_mean']:.3g} at {row['depth']}" for row in rows)
        return Verdict(CONFIRMED if low <= slope <= high else CONTRADICTED, f"exponent {slope:.2f}: {values}")

    return judge
