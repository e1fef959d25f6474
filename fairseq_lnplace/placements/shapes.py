"""Slots, layers and gains that several methods, or several forms of one, are made of."""

from __future__ import annotations

from dataclasses import replace

from fairseq_lnplace.placements import depth
from fairseq_lnplace.placements.spec import Gains, Layer, Scale, Slots

POST = Slots(add_norm=True)
PRE = Slots(in_norm=True)
IN_OUT = Slots(in_norm=True, out_norm=True)
HYBRID = Slots(qkv_norm="head", add_norm=True)
HYBRID_IN = Slots(in_norm=True, qkv_norm="head")
HYBRID_WIDE = Slots(qkv_norm="width", add_norm=True)
NORMFORMER = Layer(replace(IN_OUT, head_scale=True), PRE, replace(PRE, inner_norm=True))
LEARNED = Scale(learned="vector")
ADMIN_CODE = Gains(
    query=depth.fused_qkv_gain, key=depth.fused_qkv_gain, value=depth.fused_qkv_gain, cross_attention=False
)
TFIXUP = Gains.of_branch(depth.tfixup_gain, embedding=depth.tfixup_embedding_gain)
