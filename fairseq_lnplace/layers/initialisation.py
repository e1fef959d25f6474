"""Initialisation of a whole model by the role of each matrix, never by its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.layers.attention import Attention
from fairseq_lnplace.layers.spec import StackSpec
from fairseq_lnplace.layers.transformer_layer import TransformerLayer
from fairseq_lnplace.placements.spec import Constant, Gains

INITS = ("xavier", "xavier_normal", "fairseq")


def initialise(model: nn.Module, init: str) -> None:
    """Initialise the matrices of every layer of ``model`` in place.

    The base is, before the method's gain (:class:`Gains`):

    - ``xavier``: Xavier uniform with gain 1 on every matrix, biases 0, as the papers state it;
    - ``xavier_normal``: the same variance, normal;
    - ``fairseq``: what fairseq 0.12.2 does, which the constructors have done by now: gain 1/sqrt(2) on q, k, v where
      they share a width, ``nn.Linear``'s default on the feed-forward (whose second matrix is then about half as
      large) and on q, k, v's biases; in BERT N(0, 0.02).

    Embeddings and an untied output projection stay as the constructors leave them, which is as stock fairseq does:
    N(0, 1/d), in BERT N(0, 0.02).

    Raises:
        LnplaceError: ``init`` is not one of these.
    """
    if init not in INITS:
        raise must_be("--init", " or ".join(INITS), init)
    for layer in layers_of(model):
        for linear, gain in matrices(layer):
            if init != "fairseq":
                fill = nn.init.xavier_uniform_ if init == "xavier" else nn.init.xavier_normal_
                fill(linear.weight)
                nn.init.zeros_(linear.bias)
            scale(linear.weight, gain(layer.spec.position, layer.spec.options))


def layers_of(model: nn.Module) -> Iterator[TransformerLayer]:
    """Yield the layers of a model."""
    return (module for module in model.modules() if isinstance(module, TransformerLayer))


def matrices(layer: TransformerLayer) -> Iterator[tuple[nn.Linear, Constant]]:
    """Yield each matrix of a layer with the method's gain."""
    gains = layer.spec.placement.gains
    yield from attention_matrices(layer.self_attn, gains)
    if layer.encoder_attn is not None:
        yield from attention_matrices(layer.encoder_attn, gains if gains.cross_attention else Gains())
    yield layer.fc1, gains.fc1
    yield layer.fc2, gains.fc2


def attention_matrices(attention: Attention, gains: Gains) -> Iterator[tuple[nn.Linear, Constant]]:
    """Yield the four matrices of an attention; see :func:`matrices`."""
    yield attention.q_proj, gains.query
    yield attention.k_proj, gains.key
    yield attention.v_proj, gains.value
    yield attention.out_proj, gains.output


@torch.no_grad()
def scale(weight: torch.Tensor, gain: float) -> None:
    """Multiply a weight by ``gain`` in place."""
    if gain != 1.0:
        weight.mul_(gain)


def scale_embeddings(embeddings: Iterable[nn.Embedding], spec: StackSpec) -> None:
    """Multiply each distinct embedding by the method's gain, in place."""
    gain = spec.placement.gains.embedding(spec.positions[0], spec.options)
    for weight in {id(embedding.weight): embedding.weight for embedding in embeddings}.values():
        scale(weight, gain)
