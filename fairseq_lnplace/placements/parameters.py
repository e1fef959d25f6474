"""The parameters that a method has besides the matrices and embeddings: their names, their shapes, their number."""

from __future__ import annotations

import re
from collections import Counter

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig
from torch import nn

from fairseq_lnplace import placements
from fairseq_lnplace.layers.stack import StackSpec, TransformerDecoder, TransformerEncoder
from fairseq_lnplace.models._method import IDENTITY, STOCK_PLACEMENTS
from fairseq_lnplace.placements.at_depth import Depth
from fairseq_lnplace.placements.options import method_options
from fairseq_lnplace.placements.spec import Options, Placement, Side

__all__ = ["extra_parameters", "parameters"]

# The sizes of the stacks that are built for their names, on the meta device: they cost nothing, and no depth is one.
HEADS, DIM, FFN = 10_007, 30_021, 50_021
SIZE_NAMES = {HEADS: "H", DIM: "d", FFN: "f", 1: "1"}
USUAL = r"(_proj|\.fc\d)\.(weight|bias)$|^embed_|^version$|^output_projection"
MATRIX = "(L+1)²"  # DLCL's weights, the only matrix that is not one of the usual layer's


def parameters(placement: Placement, options: Options, depth: Depth) -> dict[str, str]:
    """Return the names and shapes that the method gives a state dict, besides the matrices and embeddings.

    A ``*`` stands for the number of a layer, counted from 0. Shapes are in d (width), f (feed-forward), H (heads).
    """
    found: dict[str, str] = {}
    for side in depth.sides:
        for name, tensor in stack_on_meta(placement, options, depth, side).state_dict().items():
            if not re.search(USUAL, name):
                shape = " × ".join(SIZE_NAMES.get(size, str(size)) for size in tensor.shape)
                any_layer = re.sub(r"(?<=\.)[0-9]+(?=\.)", "*", name)
                found[f"{side}.{any_layer}"] = shape
    if placement.name not in STOCK_PLACEMENTS:
        found[IDENTITY] = "identifies the method"
    return found


def stack_on_meta(placement: Placement, options: Options, depth: Depth, side: Side) -> nn.Module:
    """Return a stack without memory."""
    cfg = TransformerConfig(no_token_positional_embeddings=True)
    for each, layers in ((cfg.encoder, depth.encoder_layers), (cfg.decoder, depth.decoder_layers)):
        each.layers, each.embed_dim, each.ffn_embed_dim, each.attention_heads = layers, DIM, FFN, HEADS
    cfg.decoder.input_dim = cfg.decoder.output_dim = DIM
    numbers = [position.layer for position in depth.positions(side)]
    spec = StackSpec(placement, options, side, numbers, depth.encoder_layers, depth.decoder_layers, "layernorm")
    words = Dictionary()
    with torch.device("meta"):
        embedding = nn.Embedding(len(words), DIM, words.pad())
        if side == "encoder":
            return TransformerEncoder(cfg, words, embedding, spec)
        return TransformerDecoder(cfg, words, embedding, spec, no_encoder_attn=depth.encoder_layers == 0)


def extra_parameters(placement: Placement) -> dict[str, str]:
    """Return how many parameters a layer and a stack have more than Post-LN's, as formulas in d, f and H."""
    options, depth = method_options(placement.name, placement.options, {}), Depth(2, 2)
    counts: dict[str, Counter[str]] = {}
    for method, sign in ((placement, 1), (placements.get("postln"), -1)):
        for side in depth.sides:
            for name, tensor in stack_on_meta(method, options, depth, side).named_parameters():
                index = re.search(r"\.(\d+)\.", name)
                if index is None or index[1] == "1":
                    group = "stack" if index is None else f"{side}_layer"
                    size = MATRIX if tensor.dim() == 2 else SIZE_NAMES[tensor.numel()]
                    counts.setdefault(group, Counter())[size] += sign
    both = {"stack": Counter({size: count // 2 for size, count in counts.pop("stack", Counter()).items()})}
    return {group: formula(count) for group, count in sorted((counts | both).items())}


def formula(count: Counter[str]) -> str:
    """Return a sum of sizes as text, such as "+2d +2f"."""
    terms = []
    for size in ("d", "f", "H", MATRIX, "1"):
        if number := count[size]:
            factor = "" if abs(number) == 1 and size != "1" else str(abs(number))
            terms.append(f"{'−' if number < 0 else '+'}{factor}{'' if size == '1' else size}")
    return " ".join(terms) or "0"
