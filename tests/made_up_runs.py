"""Runs made up for tests of what is said about runs."""

from pathlib import Path

from fairseq_lnplace.experiments.outcomes import Outcome
from fairseq_lnplace.runs.records import Evaluation
from fairseq_lnplace.runs.trained_run import TrainedRun
from fairseq_lnplace.runs.training_log import TrainingLog


def outcome(
    levels: dict[str, str], losses: list[float], bleu: float | None = None, state: str = "finished", **more: float
) -> Outcome:
    """A run that was validated every 10 updates."""
    valid = [{"updates": 10.0 * (n + 1), "loss": loss, **more} for n, loss in enumerate(losses)]
    record = Evaluation(Path("x.json"), "test", "checkpoint_best.pt", None, {}, {"bleu": bleu or 0.0}, {})
    tests = () if bleu is None else (record,)
    log = TrainingLog([], valid, 1.0)
    return Outcome(levels, TrainedRun(Path(), "r", "R", "", "", 1, "", {}, state, log, tests))
