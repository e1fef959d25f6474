"""``lnplace diagnose activations``: how large the hidden states are, layer by layer, beside Lemma 2's lines."""

from __future__ import annotations

import argparse

from fairseq_lnplace.diagnostics.command import Measurement, Results, Session, number
from fairseq_lnplace.diagnostics.tables import over_seeds, table
from fairseq_lnplace.measure.activation_rows import activation_rows

__all__ = ["MEASUREMENT"]

NAME = "activations"
EXAMPLE = (
    "lnplace diagnose activations --arch transformer_lm_postln transformer_lm_preln_final "
    "--no-token-positional-embeddings --decoder-ffn-embed-dim 512"
)
VALUES = ("stream", "growth", "variance", "inner", "delta")
COLUMNS = {
    "label": "model",
    "side": "stack",
    "layer": "layer",
    "stream": "‖x‖²/d",
    "growth": "growth",
    "inner": "inner",
    "delta": "δ",
}
CAPTION = (
    "inner: ‖·‖²/d of the last sum before a norm. Lemma 2: 3/2 in Post-LN; ‖x‖²/d between 1 + l/2 and 1 + 3l/2 in "
    "Pre-LN, if it starts at 1 (positions add to it), with square feed-forwards and without cross-attention."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this measurement's own options."""
    fraction = number(lambda value: 0 < value < 1, "between 0 and 1")
    parser.add_argument("--epsilon", type=fraction, default=0.1, metavar="E", help="the paper's ε of concentration")


def results(session: Session) -> Results:
    """Measure, and return what there is to see."""
    epsilon = session.args.epsilon
    tables = session.measured(lambda subject, samples: {NAME: activation_rows(subject.opened(), samples, epsilon)})
    averaged = over_seeds(tables[NAME], ("label", "placement", "state", "side", "layer"), VALUES)
    title = session.title("hidden states")

    from fairseq_lnplace.diagnostics.plots.activations import activation_figure  # matplotlib is slow to import

    return Results(
        {NAME: averaged, f"{NAME}_by_seed": tables[NAME]},
        [table(averaged, COLUMNS, title, CAPTION)],
        {NAME: activation_figure(averaged, title, epsilon)},
    )


MEASUREMENT = Measurement(
    NAME,
    "Measure the squared norm of the hidden states over their width, layer by layer, and how far it is "
    "concentrated: δ is the share of tokens further than ε from the mean. Dropout is off.",
    EXAMPLE,
    results,
    add_options,
    batches=(2, 1000),
)
