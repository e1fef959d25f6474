"""``lnplace diagnose gradients``: Figure 3 of the paper, of any model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from fairseq_lnplace.diagnostics.command import Measurement, Results, Session, positive
from fairseq_lnplace.diagnostics.paper import DIFFERENCES, FIGURE_3, SIDE
from fairseq_lnplace.diagnostics.subjects import Subject
from fairseq_lnplace.diagnostics.tables import Row, over_seeds, table
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.measure.gradient_rows import gradient_rows

__all__ = ["MEASUREMENT"]

NAME = "gradients"
EXAMPLE = (
    "lnplace diagnose gradients --arch transformer_postln_iwslt_de_en transformer_preln_final_iwslt_de_en "
    "--data data/prepared/quickstart --depths 6 8 10 12 14"
)
VALUES = ("norm_of_mean", "mean_of_norms")
WHO = ("label", "placement", "state")
COLUMNS = {
    "label": "model",
    "side": "stack",
    "layer": "layer",
    "fc1": "W1",
    "fc2": "W2",
    "fc1_norms": "W1 ‖g‖",
    "fc2_norms": "W2 ‖g‖",
}
CAPTION = "W1, W2: norm of the mean gradient; ‖g‖: mean of the norms"
RATIO_TITLE = "last layer over first layer, ‖mean g‖"
RATIO_COLUMNS = {"label": "model", "side": "stack", "fc1": "W1", "fc2": "W2", "paper": "paper's W2"}
DEPTH_COLUMNS = {
    "label": "model",
    "side": "stack",
    "depth": "layers",
    "norm_of_mean": "‖mean g‖",
    "mean_of_norms": "mean ‖g‖",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this measurement's own options."""
    parser.add_argument("--depths", nargs="+", type=positive, default=[], metavar="L", help="also measure these depths")


def check(args: argparse.Namespace) -> None:
    """Check that there are models of other depths.

    Raises:
        LnplaceError: there are none.
    """
    if args.depths and args.checkpoint and not args.arch:
        raise LnplaceError("`--depths` must go with --arch: a checkpoint has the depth that it was trained with")


def results(session: Session) -> Results:
    """Measure, and return what there is to see."""
    rows = session.measured(lambda subject, samples: {NAME: gradient_rows(subject, samples)})[NAME]
    averaged = over_seeds(rows, (*WHO, "side", "layer", "matrix"), VALUES)
    title = session.title("gradients", "mean of ")
    with_paper = any((row["side"], row["layer"], row["placement"]) == (SIDE, 6, "postln") for row in rows)

    from fairseq_lnplace.diagnostics.plots.gradients import depth_figure, gradient_figure  # matplotlib is slow

    tables = {NAME: averaged, f"{NAME}_by_seed": rows}
    figures = {NAME: gradient_figure(averaged, title, with_paper)}
    shown = [
        table(by_layer(averaged), COLUMNS, title, CAPTION),
        table(ratios(averaged), RATIO_COLUMNS, RATIO_TITLE, DIFFERENCES if with_paper else ""),
    ]
    if depths := session.args.depths:
        by_seed = [row for depth in depths for row in last_gradients(session, depth)]
        tables["depths"] = over_seeds(by_seed, (*WHO, "side", "depth"), VALUES)
        figures["depths"] = depth_figure(tables["depths"], "the last feed-forward at initialisation")
        shown.append(table(tables["depths"], DEPTH_COLUMNS, "W2 of the last feed-forward"))
    return Results(tables, shown, figures)


def by_layer(rows: Sequence[Row]) -> list[Row]:
    """Return one row a layer, with both feed-forward matrices."""
    layers: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["matrix"] in ("fc1", "fc2"):
            key = (row["label"], row["side"], row["layer"])
            layer = layers.setdefault(key, {name: row[name] for name in (*WHO, "side", "layer")})
            layer[row["matrix"]], layer[f"{row['matrix']}_norms"] = row["norm_of_mean"], row["mean_of_norms"]
    return list(layers.values())


def ratios(rows: Sequence[Row]) -> list[Row]:
    """Return, for every model and stack, the last layer's norm over the first's, and the paper's where it has one."""
    stacks: dict[tuple[str, str], list[Row]] = {}
    for row in by_layer(rows):
        stacks.setdefault((row["label"], row["side"]), []).append(row)
    result = []
    for (label, side), layers in stacks.items():
        first, last = layers[0], layers[-1]
        ratio: Row = {"label": label, "side": side}
        for matrix in ("fc1", "fc2"):
            known = first.get(matrix) and last.get(matrix) is not None
            ratio[matrix] = last[matrix] / first[matrix] if known else None
        for series in FIGURE_3:
            if (side, len(layers)) == (SIDE, 6) and (series.placement, series.state, series.matrix) == (
                first["placement"],
                first["state"],
                "fc2",
            ):
                ratio["paper"] = series.values[6] / series.values[1]
        result.append(ratio)
    return result


def last_gradients(session: Session, depth: int) -> list[Row]:
    """Return the gradient of the last feed-forward's second matrix, of every model and seed with so many layers."""

    def last(subject: Subject, samples: list[dict[str, Any]]) -> dict[str, list[Row]]:
        row = [row for row in gradient_rows(subject, samples) if row["matrix"] == "fc2"][-1]
        return {"depths": [{"depth": depth, **row}]}

    return session.measured(last, depth)["depths"]


MEASUREMENT = Measurement(
    NAME,
    "Measure, for every weight matrix, the norm of the gradient's mean over batches (the paper's quantity) and the "
    "mean of its norms, at initialisation or of checkpoints.",
    EXAMPLE,
    results,
    add_options,
    check,
    batches=(8, 2000),
)
