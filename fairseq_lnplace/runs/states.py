"""What became of a training: what its runner recorded, or what the end of fairseq's log tells."""

from __future__ import annotations

import fcntl
import re
from pathlib import Path

from fairseq_lnplace.runs.training_log import TrainingLog, gave_up, last_line

__all__ = ["state_of_cell", "state_of_log"]


def state_of_cell(recorded: str, folder: Path) -> str:
    """Return a cell's state: one that was recorded as at work, and is no longer, was interrupted."""
    if recorded not in ("training", "evaluating"):
        return recorded
    try:
        with (folder / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return recorded  # the runner holds the folder
    except OSError:
        pass  # the folder was copied without its lock
    return "interrupted"


def state_of_log(path: Path, log: TrainingLog) -> str:
    """Return the state that a log of fairseq's ends in."""
    last, crash = last_line(path), path.with_name("crash.pt")  # saved for gradients that are not finite
    if re.search(r"done training in [\d.]+ seconds$", last):
        return "diverged" if log.diverged else "finished"
    if log.diverged or gave_up(path):
        return "diverged"
    if crash.exists() and crash.stat().st_mtime >= path.stat().st_mtime:
        return "diverged"  # of which --log-file tells nothing
    return "failed" if re.match(r"[\w.]*(Error|Exception)\b", last) else "interrupted"
