"""Every published method side by side, as slots of the placement equation (:mod:`.spec`)."""

from __future__ import annotations

from fairseq_lnplace.placements import depth
from fairseq_lnplace.placements.spec import Layer, Placement, Slots

POST = Slots(add_norm=True)
PRE = Slots(in_norm=True)

METHODS: tuple[Placement, ...] = (
    Placement(
        "postln",
        "Post-LN",
        "Vaswani et al. 2017, Attention Is All You Need, 1706.03762",
        Layer.same(POST),
        needs_warmup=True,
        results="IWSLT14 De-En 6+6 35.64 (5 seeds); WMT14 En-De 6+6 27.80; fails at 12+12",
    ),
    Placement(
        "preln",
        "Pre-LN without final norm",
        "Xiong et al. 2020, On Layer Normalization in the Transformer Architecture, 2002.04745",
        Layer.same(PRE),
        results="none published: an ablation",
    ),
    Placement(
        "preln_final",
        "Pre-LN",
        "Xiong et al. 2020, On Layer Normalization in the Transformer Architecture, 2002.04745",
        Layer.same(PRE),
        final_norm=True,
        results="IWSLT14 De-En 6+6 35.50 (5 seeds); WMT14 En-De 6/12/18 layers 27.27/28.26/28.38",
    ),
)
