"""The kinds of models, and stock fairseq's model of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairseq.models import ARCH_MODEL_NAME_REGISTRY

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.placements.spec import Side
from fairseq_lnplace.plugin.models.bert import MODEL as BERT
from fairseq_lnplace.plugin.models.decoder_lm import MODEL as LM
from fairseq_lnplace.plugin.models.translation import MODEL as TRANSLATION

__all__ = ["Kind", "kind_of"]


@dataclass(frozen=True)
class Kind:
    """A kind of models.

    Attributes:
        stock: the registered name of stock's model.
        has_dataclass: whether stock configures it by a dataclass, and so saves its options as a dictionary.
        stacks: the prefix of each stack's names in a state dict.
        untie: the options that let the output projection have weights of its own.
    """

    stock: str
    has_dataclass: bool
    stacks: Mapping[Side, str]
    untie: Mapping[str, bool]


KINDS = {
    TRANSLATION: Kind(
        "transformer",
        False,
        {"encoder": "encoder", "decoder": "decoder"},
        untie={"share_all_embeddings": False, "share_decoder_input_output_embed": False},
    ),
    LM: Kind("transformer_lm", True, {"decoder": "decoder"}, untie={"share_decoder_input_output_embed": False}),
    BERT: Kind("roberta", False, {"encoder": "encoder.sentence_encoder"}, untie={"untie_weights_roberta": True}),
}


def kind_of(model: Mapping[str, Any]) -> Kind:
    """Return the kind of the model with these options, as a checkpoint holds them.

    Raises:
        LnplaceError: it is none of this package's models.
    """
    name = str(model.get("_name") or model.get("arch"))
    registered = ARCH_MODEL_NAME_REGISTRY.get(name, name)
    if registered not in KINDS:
        raise must_be("checkpoint", "of one of this package's models", f"of {name}")
    return KINDS[registered]
