"""``lnplace diagnose theory``: the paper's lemmas and its theorem, checked by simulation."""

from __future__ import annotations

import argparse

from fairseq_lnplace.diagnostics.command import Measurement, Results, Session, number, positive
from fairseq_lnplace.diagnostics.tables import table
from fairseq_lnplace.diagnostics.theory import decay_rows, exponent_rows, lemma_rows, theorem_rows
from fairseq_lnplace.errors import must_be

__all__ = ["MEASUREMENT"]

NAME = "theory"
EXAMPLE = "lnplace diagnose theory --depths 4 8 16 32 64 --widths 32 64 128 256"
LAYERS = 14  # of the lemmas' check and of the decay, as many as the deepest model of the paper's Figure 3

LEMMA_COLUMNS = {
    "lemma": "lemma",
    "what": "what",
    "low": "from",
    "high": "to",
    "measured": "measured",
    "holds": "holds",
}
THEOREM_COLUMNS = {
    "placement": "model",
    "depth": "L",
    "width": "d",
    "gradient": "‖dL/dW2‖",
    "bound": "bound",
    "ratio": "ratio",
    "delta": "δ",
}
EXPONENT_COLUMNS = {
    "placement": "model",
    "power_of": "power of",
    "fitted": "fitted",
    "bound": "bound's",
    "holds": "holds",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this measurement's own options."""
    share = number(lambda value: 0 <= value <= 1, "from 0 to 1")
    parser.add_argument("--depths", nargs="+", type=positive, default=[4, 8, 16, 32, 64], metavar="L", help="layers")
    parser.add_argument("--widths", nargs="+", type=positive, default=[32, 64, 128, 256], metavar="D", help="features")
    parser.add_argument("--tokens", type=positive, default=32, metavar="N", help="length of the sequence")
    parser.add_argument("--correlation", type=share, default=0.0, metavar="R", help="of any two tokens")
    parser.add_argument("--seeds", type=positive, default=5, metavar="N", help="to average over")


def check(args: argparse.Namespace) -> None:
    """Check that exponents can be fitted.

    Raises:
        LnplaceError: an option is out of range.
    """
    for name in ("depths", "widths"):
        if len(set(getattr(args, name))) < 2:
            raise must_be(f"--{name}", "two numbers at least, for the fit", *getattr(args, name))
    if min(args.widths) < 2:
        raise must_be("--widths", "at least 2", min(args.widths))


def results(session: Session) -> Results:
    """Simulate, and return what there is to see."""
    args = session.args
    sampling = (args.tokens, args.correlation, args.seeds)
    lemmas = lemma_rows(max(args.widths), LAYERS, *sampling)
    theorem = theorem_rows(args.depths, args.widths, *sampling)
    exponents = exponent_rows(theorem)
    decay = decay_rows(LAYERS, max(args.widths), *sampling)

    from fairseq_lnplace.diagnostics.plots.theory import theory_figure  # matplotlib is slow to import

    return Results(
        {"lemmas": lemmas, "theorem": theorem, "exponents": exponents, "decay": decay},
        [
            table(lemmas, LEMMA_COLUMNS, f"Lemmas, d = {max(args.widths)}"),
            table(
                theorem, THEOREM_COLUMNS, "Theorem 1: d √ln d in Post-LN, d √(ln d / L) in Pre-LN, without a constant"
            ),
            table(exponents, EXPONENT_COLUMNS, "‖dL/dW2‖ of the last layer as a power of depth and of width"),
        ],
        {NAME: theory_figure(lemmas, theorem, decay)},
    )


MEASUREMENT = Measurement(
    NAME,
    "Simulate the paper's set-up (one head, W^Q = W^K = 0, square Gaussian matrices) and check Lemmas "
    "1 to 3 and Theorem 1: the gradient of the last feed-forward, over depth and width, with the fitted exponents.",
    EXAMPLE,
    results,
    add_options,
    check,
)
