"""What Figure 3 of Xiong et al. 2020 (2002.04745) shows: norms of expected gradients, 6+6 layers, IWSLT14 De-En.

Read off the figure: (b) to about 0.005, (a) by eye. The paper does not say which stack is shown; layer 6 of (b) equals
the last feed-forward of (c, d), so it is very likely the decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairseq_lnplace.diagnostics.subjects import INITIAL

__all__ = ["DIFFERENCES", "FIGURE_3", "INITIAL", "LAST_BY_DEPTH", "SIDE", "Series"]

SIDE = "decoder"
WARMED_UP = "after warm-up"


@dataclass(frozen=True)
class Series:
    """One line of the figure: values by layer from 1, or by depth."""

    placement: str
    state: str
    matrix: str
    values: dict[int, float]


def _by_layer(placement: str, state: str, matrix: str, *values: float) -> Series:
    return Series(placement, state, matrix, dict(enumerate(values, 1)))


FIGURE_3 = (
    _by_layer("preln_final", INITIAL, "fc1", 0.22, 0.23, 0.22, 0.18, 0.17, 0.18),
    _by_layer("postln", INITIAL, "fc1", 0.06, 0.12, 0.27, 0.37, 0.76, 1.3),
    _by_layer("preln_final", INITIAL, "fc2", 0.56, 0.43, 0.41, 0.37, 0.31, 0.29),
    _by_layer("postln", INITIAL, "fc2", 0.13, 0.20, 0.37, 0.58, 1.10, 1.66),
    _by_layer("postln", WARMED_UP, "fc2", 0.015, 0.015, 0.015, 0.017, 0.013, 0.014),
)
# (c, d): "around 1.6" whatever the depth; of Pre-LN only the 6-layer model's value is known, from (b)
LAST_BY_DEPTH = (
    Series("postln", INITIAL, "fc2", dict.fromkeys((6, 8, 10, 12, 14), 1.6)),
    Series("preln_final", INITIAL, "fc2", {6: 0.29}),
)

# Measured with `lnplace diagnose gradients` on 6+6 layers of 128/256 and of 256/512, mean of up to 3 seeds.
DIFFERENCES = (
    "Post-LN's W2 grows 12.8 times from the first to the last decoder layer in the paper, and 6 to 8 times here. What "
    "moves that factor: fairseq 0.12.2's initialisation (--init fairseq: 2.4 for 5.6), dropout (0, 0.1, 0.3: 6.9, 7.9, "
    "9.5), a feed-forward as narrow as the model (9.7; with dropout 0.3: 11.4). What hardly does: sentence length, "
    "batch size, vocabulary, label smoothing, tied embeddings, heads, positions. The encoder's W2 does not rise so."
)
