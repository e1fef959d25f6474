"""``lnplace diagnose activations``: how large the hidden states are, layer by layer, beside Lemma 2's lines."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fairseq_lnplace.diagnostics.command import Session, check, described, parser_of
from fairseq_lnplace.diagnostics.tables import over_seeds, table
from fairseq_lnplace.measure.activation_rows import activation_rows

__all__ = ["main"]

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


def fraction(text: str) -> float:
    """Return a number between 0 and 1, for argparse."""
    try:
        if 0 < (value := float(text)) < 1:
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be between 0 and 1, but is {text}")


def main(words: Sequence[str]) -> None:
    """Measure, print the table, write and draw.

    Raises:
        LnplaceError: an architecture, an option, a checkpoint or the data is wrong.
    """
    parser = parser_of(
        NAME,
        "Measure the squared norm of the hidden states over their width, layer by layer, and how far it is "
        "concentrated: δ is the share of tokens further than ε from the mean. Dropout is off.",
        EXAMPLE,
        batch_count=2,
        tokens=1000,
    )
    parser.add_argument("--epsilon", type=fraction, default=0.1, metavar="E", help="the paper's ε of concentration")
    args, extra = parser.parse_known_args(words)
    check(args)
    session = Session(NAME, args, extra)
    rows = []
    for subject, samples in session.subjects():
        rows += described(subject, activation_rows(subject, samples, args.epsilon))
    averaged = over_seeds(rows, ("label", "placement", "state", "side", "layer"), VALUES)
    title = f"hidden states on {session.text().name}: {args.batches} batches of {args.batch_tokens} tokens"

    from fairseq_lnplace.diagnostics.plots import activation_figure  # matplotlib is slow to import

    session.finish(
        {NAME: averaged, f"{NAME}_by_seed": rows},
        [table(averaged, COLUMNS, title, CAPTION)],
        {NAME: activation_figure(averaged, title, args.epsilon)},
    )
