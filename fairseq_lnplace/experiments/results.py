"""What the runs of an experiment gave: a record for each, and the records as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fairseq_lnplace.files import new_file
from fairseq_lnplace.palette import style_of
from fairseq_lnplace.runs.options import placement_of
from fairseq_lnplace.runs.trained_run import TrainedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw", "markdown", "record_of", "table"]

Record = dict[str, Any]

VALIDATED = ("epoch", "updates", "loss", "nll_loss", "ppl", "accuracy")  # not every criterion logs all of them


def record_of(run: TrainedRun) -> Record:
    """Return a run's results.

    Losses are fairseq's, label-smoothed, in bits a token; ``seconds`` were spent on updates. ``scores`` holds each
    evaluation's subset, epoch (None: the best checkpoint) and sacreBLEU's scores with their signatures.
    """
    return {
        "name": run.name,
        "title": run.title,
        "arch": run.arch,
        "state": run.state,
        "folder": run.folder.name,
        "command": run.command,
        "updates": run.updates,
        "seconds": round(run.log.seconds, 1),
        "valid": [{key: row[key] for key in VALIDATED if key in row} for row in run.log.valid],
        "scores": [
            {
                "subset": evaluation.subset,
                "epoch": evaluation.epoch,
                "beam": evaluation.decoding["beam"],
                **evaluation.scores,
                "signatures": list(evaluation.signatures.values()),
            }
            for evaluation in run.evaluations
        ],
    }


def rows(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of the table: the best validation loss, and the test scores if there are any."""
    tested = any(score["subset"] == "test" for record in records for score in record["scores"])
    headings = ["model", "updates", "valid loss", "valid ppl", *(["BLEU", "chrF"] if tested else []), "minutes"]
    lines = []
    for record in records:
        best = min(record["valid"], key=lambda row: row["loss"], default=None)
        losses = [f"{best['loss']:.2f}", f"{best['ppl']:.1f}"] if best else ["-", "-"]
        test = next((score for score in record["scores"] if score["subset"] == "test"), None)
        scores = [f"{test['bleu']:.1f}", f"{test['chrf']:.1f}"] if test else ["-", "-"]
        title = record["title"] + ("" if record["state"] == "finished" else f" ({record['state']})")
        minutes = f"{record['seconds'] / 60:.1f}"
        lines.append([title, str(record["updates"]), *losses, *(scores if tested else []), minutes])
    return headings, lines


def table(records: Sequence[Record], caption: str) -> Table:
    """Return the table for a terminal."""
    headings, lines = rows(records)
    shown = Table(caption=caption, caption_justify="left")
    for heading in headings:
        first = heading == headings[0]
        shown.add_column(heading, justify="left" if first else "right", no_wrap=first)
    for line in lines:
        shown.add_row(*line)
    return shown


def markdown(records: Sequence[Record]) -> str:
    """Return the table in Markdown."""
    headings, lines = rows(records)
    rule = ["---", *("--:" for _ in headings[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, rule, *lines)) + "\n"


def draw(records: Sequence[Record], caption: str, folder: Path) -> None:
    """Draw validation loss and BLEU against epochs to curves.png and curves.svg in ``folder``."""
    figure = curves(records, caption)
    for kind in ("png", "svg"):
        with new_file(folder / f"curves.{kind}") as partial:
            figure.savefig(partial, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)


def curves(records: Sequence[Record], caption: str) -> Figure:
    """Return the picture: one panel for the loss, one for BLEU if it was measured after every epoch."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    by_epoch = {
        record["name"]: [score for score in record["scores"] if score["epoch"] is not None] for record in records
    }
    panels = 2 if any(by_epoch.values()) else 1
    figure = Figure(figsize=(5.2 * panels, 4.2), layout="constrained")
    figure.suptitle(caption, fontsize="medium")
    loss = figure.add_subplot(1, panels, 1, xlabel="epoch", ylabel="validation loss (label-smoothed, bits a token)")
    axes = [loss]
    if panels == 2:
        beam = next(score["beam"] for scores in by_epoch.values() for score in scores)
        search = "greedy search" if beam == 1 else f"beam {beam}"
        axes.append(figure.add_subplot(1, panels, 2, xlabel="epoch", ylabel=f"BLEU on the validation set ({search})"))
    seen: dict[str, int] = {}
    for record in records:
        placement = placement_of(record["arch"])
        style = {"label": record["title"], "markersize": 4, **style_of(placement, seen.setdefault(placement, 0))}
        seen[placement] += 1
        loss.plot([row["epoch"] for row in record["valid"]], [row["loss"] for row in record["valid"]], **style)
        if panels == 2:
            scores = sorted(by_epoch[record["name"]], key=lambda score: score["epoch"])
            axes[1].plot([score["epoch"] for score in scores], [score["bleu"] for score in scores], **style)
    if panels == 2:
        axes[1].set_ylim(bottom=0)
    for panel in axes:
        panel.set_xlim(left=0)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    loss.legend(frameon=False)
    return figure
