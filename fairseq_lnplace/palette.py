"""One look for each placement in every picture: colour, marker and line style, told apart in grey as well."""

from __future__ import annotations

from fairseq_lnplace import placements

__all__ = ["style_of"]

# Okabe and Ito's colours for the methods that are compared most, then others that differ from them in lightness or hue.
COLOURS = {
    "postln": "#D55E00",
    "preln": "#56B4E9",
    "preln_final": "#0072B2",
    "admin": "#009E73",
    "admin_analytic": "#66C2A5",
    "deepnorm": "#CC79A7",
    "realformer": "#E69F00",
    "resi_dual": "#5E3C99",
    "b2t": "#8C510A",
    "sandwich": "#1B7837",
    "subln": "#B2182B",
    "normformer": "#4D9221",
    "rezero": "#7F7F7F",
    "tfixup": "#A6761D",
    "periln": "#2166AC",
    "mixln": "#E7298A",
    "lnscaling": "#35978F",
    "hybridnorm": "#6A51A3",
    "branchnorm": "#FB9A99",
    "dsinit": "#003C30",
    "layerscale": "#BDB76B",
    "dlcl": "#386CB0",
    "denseformer": "#A6D854",
    "gpas": "#01665E",
    "keel": "#67001F",
    "respostnorm": "#9E9AC8",
}
MARKERS = "os^Dv<>PX*hpd"
LINES = ("solid", "dashed", "dashdot", "dotted")
OTHER = "#000000"  # of a placement that a user added, or a model without one


def style_of(placement: str, variant: int = 0) -> dict[str, str]:
    """Return the ``color``, ``marker`` and ``linestyle`` of a placement; neighbours in the table differ in both.

    Args:
        variant: counts the curves of this placement in one picture, which share the colour alone.
    """
    names = placements.names()
    index = names.index(placement) if placement in names else len(names)
    return {
        "color": COLOURS.get(placement, OTHER),
        "marker": MARKERS[(index + variant) % len(MARKERS)],
        "linestyle": LINES[(index + variant) % len(LINES)],
    }
