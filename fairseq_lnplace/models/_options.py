"""The options of the models, as flat dataclasses that fairseq's argparse and Hydra both read.

A field that is None means "as the architecture says". fairseq fills in a dataclass's defaults before an architecture
is looked up, so with a default of its own a field could not be told from one that the user gave, and every
architecture would silently train the base size.
"""

from dataclasses import field, fields, is_dataclass, make_dataclass
from typing import Any, List, Optional, Tuple

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig

from fairseq_lnplace.layers.initialisation import INITS
from fairseq_lnplace.layers.norm import NORM_TYPES
from fairseq_lnplace.placements.options import METHOD_OPTIONS

Fields = List[Tuple[str, Any, Any]]

# fairseq parses these as lists but then splits them as text
TEXT_FIELDS = ("encoder_layers_to_keep", "decoder_layers_to_keep")


def flat_fields(config: type, prefix: str = "") -> Fields:
    """Return the fields of a nested fairseq dataclass as a flat list with prefixed names and None for defaults."""
    flat: Fields = []
    for each in fields(config):
        name = prefix + each.name
        if name.startswith("_"):
            continue
        if is_dataclass(each.type):
            flat += flat_fields(each.type, name + "_")
            continue
        kind = Optional[str] if name in TEXT_FIELDS else Optional[each.type]
        metadata = dict(each.metadata)
        metadata.setdefault("help", f"fairseq's {name}")
        if each.type is bool:
            flat.append((name, bool, field(default=False, metadata=metadata)))
        else:
            flat.append((name, kind, field(default=None, metadata=metadata)))
    return flat


def our_fields() -> Fields:
    """Return the options that this package adds."""
    added: Fields = [
        ("placement", Optional[str], field(default=None, metadata={"help": "where normalisation stands (lnplace list)"})),
        ("norm_type", Optional[str], field(default=None, metadata={"help": " | ".join(NORM_TYPES)})),
        (
            "decoder_norm_type",
            Optional[str],
            field(default=None, metadata={"help": "the decoder's norm type where the encoder's cannot stand in a decoder"}),
        ),
        ("init", Optional[str], field(default=None, metadata={"help": " | ".join(INITS)})),
        (
            "trained_layers",
            Optional[str],
            field(default=None, metadata={"help": "of a pruned model: the depths and layers it was trained with (kept by itself)"}),
        ),
    ]
    for name, option in METHOD_OPTIONS.items():
        if option.kind is bool:
            added.append((name, bool, field(default=False, metadata={"help": option.help})))
        else:
            added.append((name, Optional[option.kind], field(default=None, metadata={"help": option.help})))
    return added


TransformerLNPlaceConfig = make_dataclass(
    "TransformerLNPlaceConfig",
    flat_fields(TransformerConfig) + our_fields(),
    bases=(FairseqDataclass,),
)
TransformerLNPlaceConfig.__module__ = __name__
TransformerLNPlaceConfig.__doc__ = "Every option of stock `transformer`, flat, and this package's own."
