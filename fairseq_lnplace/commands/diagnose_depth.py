"""``lnplace diagnose depth``: the essay's claim made measurable, that Pre-LN's depth is watered down."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from fairseq_lnplace.diagnostics.bleu import bleu_rows
from fairseq_lnplace.diagnostics.command import Measurement, Results, Session, number, positive
from fairseq_lnplace.diagnostics.subjects import state_of
from fairseq_lnplace.diagnostics.tables import Row, over_seeds, table
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.evaluation import Decoding
from fairseq_lnplace.measure.depth_tables import depth_tables

__all__ = ["MEASUREMENT"]

NAME = "depth"
EXAMPLE = "lnplace diagnose depth --arch transformer_lm_postln transformer_lm_preln_final --decoder-layers 12"
WHO = ("label", "placement", "state", "side")
# table -> what tells its rows apart, and what is measured
TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "layers": (("layer",), ("step", "cosine", "influence", "merge_error", "loss_merged", "loss_removed")),
    "sublayers": (("sublayer", "branch"), ("dependency", "collapse")),
    "distances": (("layer", "n"), ("distance",)),
    "stacks": (("depth",), ("effective_depth", "loss", "output_change", "model_update")),
}
LAYER_COLUMNS = {
    "label": "model",
    "side": "stack",
    "layer": "t",
    "step": "step",
    "cosine": "cosine",
    "merge_error": "e",
    "loss_merged": "merged",
    "loss_removed": "removed",
}
STACK_COLUMNS = {
    "label": "model",
    "side": "stack",
    "depth": "layers",
    "effective_depth": "effective",
    "loss": "loss",
    "output_change": "output change",
    "model_update": "update",
}
BLEU_COLUMNS = {"label": "model", "side": "stack", "layer": "t", "what": "layer", "bleu": "BLEU"}
LAYER_CAPTION = (
    "step: ‖x_t - x_{t-1}‖/‖x_{t-1}‖; e: relative change of what layer t adds when it reads what layer t-1 reads; "
    "merged, removed: loss in bits a token with t evaluated beside t-1, and without t"
)
STACK_CAPTION = (
    "effective depth: 1 + Σ min(1, e_t); output change: of the normalised output, squared, under weight noise of "
    "relative size ε, over ε²; update: of the output after one step of Adam, root mean square"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this measurement's own options."""
    rate = number(lambda value: 0 < value < math.inf, "a positive number")
    parser.add_argument("--step-lr", type=rate, default=1e-4, metavar="LR", help="of the one step of Adam")
    parser.add_argument("--bleu", metavar="SPLIT", help="also score every checkpoint without each layer; slow")
    parser.add_argument("--beam", type=positive, default=5, metavar="N", help="of --bleu")


def check(args: argparse.Namespace) -> None:
    """Check that there is something to translate with.

    Raises:
        LnplaceError: there is not.
    """
    if args.bleu and not (args.checkpoint and args.data):
        raise LnplaceError("`--bleu` must go with --checkpoint and --data")


def results(session: Session) -> Results:
    """Measure, and return what there is to see."""
    args = session.args
    found = session.measured(lambda subject, samples: depth_tables(subject.opened(), samples, args.step_lr))
    averaged = {name: over_seeds(found[name], (*WHO, *keys), values) for name, (keys, values) in TABLES.items()}
    title = session.title("depth")

    from fairseq_lnplace.diagnostics.plots import depth as plots  # matplotlib is slow to import

    figures = {
        NAME: plots.layer_figure(averaged["layers"], averaged["stacks"], title),
        "sublayers": plots.sublayer_figure(averaged["sublayers"], title),
        "distances": plots.distance_figure(averaged["distances"], title),
    }
    shown = [
        table(averaged["layers"], LAYER_COLUMNS, title, LAYER_CAPTION),
        table(averaged["stacks"], STACK_COLUMNS, "effective depth", STACK_CAPTION),
    ]
    if args.bleu:
        scores = averaged["bleu"] = bleu_scores(args, averaged["stacks"])
        heading = f"BLEU on {args.bleu}, beam {args.beam}"
        figures["bleu"] = plots.bleu_figure(scores, heading)
        shown.append(table(scores, BLEU_COLUMNS, heading, scores[0]["signature"]))
    return Results(averaged, shown, figures)


def bleu_scores(args: argparse.Namespace, stacks: Sequence[Row]) -> list[Row]:
    """Return the scores of every checkpoint, named as in its row of the table of stacks."""
    who = {row["state"]: {name: row[name] for name in ("label", "placement")} for row in stacks}
    return [
        {**who[state_of(path)], "beam": args.beam, **row}
        for path in args.checkpoint
        for row in bleu_rows(path, args.data, args.bleu, Decoding(beam=args.beam, cpu=args.cpu))
    ]


MEASUREMENT = Measurement(
    NAME,
    "Measure how much each layer counts: relative step and cosine, angular distances, Block Influence, the error "
    "and the loss when neighbouring layers are merged or one is removed, effective depth, Admin's dependency, "
    "ResiDual's collapse, and how far the output moves under noise and one step of Adam.",
    EXAMPLE,
    results,
    add_options,
    check,
    batches=(1, 500),
)
