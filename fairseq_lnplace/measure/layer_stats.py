"""The file that a training with ``--log-layer-stats`` writes: one line for each place in each measured update."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.files import new_file

__all__ = ["FILE", "Row", "append", "go_back", "read_layer_stats"]

FILE = "layer_stats.jsonl"


@dataclass(frozen=True)
class Row:
    """One place in one update. Norms are Euclidean, over all parameters of the place.

    Attributes:
        updates: the number of the update, from 1; fairseq's ``num_updates`` after it.
        side: encoder or decoder; None for what belongs to neither.
        layer: from 1, as the model was trained; None outside of the layers.
        part: SA, CA, FF or scale (what they share) of a layer; embedding, final_norm, output, ... outside. A parameter
            that several places share counts once, where it comes first in the model.
        gradient: the norm of the gradient of the loss a token (or what else the criterion divides by), before it is
            clipped. The squares of an update's rows sum to the square of fairseq's ``gnorm``.
        activation: E[‖x‖²/d] of the stream x, of d features, that leaves the part's residual connection (FF's is the
            layer's), the embedding for the first layer, or the final norm; as it is in training, with dropout, over
            the real positions of all the update's batches on all ranks. None where no stream leaves, or none passed.
        update: the norm of the change of the weights.
        weight: the norm of the weights before it.
    """

    updates: int
    side: str | None
    layer: int | None
    part: str
    gradient: float
    activation: float | None
    update: float
    weight: float


def read_layer_stats(path: Path) -> list[Row]:
    """Return the rows of a training in the order of its updates, but for a last line that is cut off; none if no file.

    Raises:
        LnplaceError: a line is no row.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], start=1):
        try:
            rows.append(Row(**json.loads(line)))
        except (TypeError, ValueError):
            raise LnplaceError(f"{path} is damaged: its line {number} is no row of layer statistics") from None
    return rows


def append(path: Path, rows: Sequence[Row]) -> None:
    """Write rows at the end of the file."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(asdict(row)) + "\n" for row in rows))


def go_back(path: Path, updates: int) -> None:
    """Drop the rows of this update and later ones: an interrupted training made them before it went back to here."""
    earlier = [row for row in read_layer_stats(path) if row.updates < updates]
    with new_file(path) as written:
        append(written, earlier)
