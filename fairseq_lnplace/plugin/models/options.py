"""The options of the models, as flat dataclasses that fairseq's argparse and Hydra both read.

A field that is None means "as the architecture says". fairseq fills in a dataclass's defaults before an architecture
is looked up, so with a default of its own a field could not be told from one that the user gave, and every
architecture would silently train the base size.
"""

from dataclasses import field, fields, is_dataclass, make_dataclass
from typing import Any, Dict, List, Optional, Tuple

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig

from fairseq_lnplace.layers.initialisation import INITS
from fairseq_lnplace.layers.norm import NORM_TYPES
from fairseq_lnplace.placements.options import METHOD_OPTIONS
from fairseq_lnplace.placements.qk_norm import DEFAULT_LENGTH, QK_NORMS

Fields = List[Tuple[str, Any, Any]]

# fairseq parses these as lists but then splits them as text
TEXT_FIELDS = ("encoder_layers_to_keep", "decoder_layers_to_keep")
# these follow the embedding dimension where they are open
DIMENSIONS = ("decoder_input_dim", "decoder_output_dim")
# fairseq compares these with numbers before there is a model, when it starts several processes
READ_EARLY = ("base_layers",)


def flat_fields(config: type, prefix: str = "") -> Fields:
    """Return the fields of a nested fairseq dataclass as a flat list, with prefixed names and None for defaults.

    A default that refers to another part of the configuration ("${task.…}") stays, and one that is READ_EARLY.
    """
    flat: Fields = []
    for each in fields(config):
        name = prefix + each.name
        if name.startswith("_"):
            continue
        if isinstance(each.type, type) and is_dataclass(each.type):
            flat += flat_fields(each.type, name + "_")
            continue
        metadata = dict(each.metadata)
        refers = isinstance(each.default, str) and each.default.startswith("${") and name not in DIMENSIONS
        if refers or name in READ_EARLY:
            flat.append((name, each.type, field(default=each.default, metadata=metadata)))
            continue
        metadata.setdefault("help", f"fairseq's {name}")
        kind = Optional[str] if name in TEXT_FIELDS else Optional[each.type]
        flat.append((name, kind, field(default=None, metadata=metadata)))
    return flat


def flat_defaults(config: type, prefix: str = "") -> Dict[str, Any]:
    """Return fairseq's own defaults of :func:`flat_fields`, to be filled in last of all."""
    defaults: Dict[str, Any] = {}
    for each in fields(config):
        name = prefix + each.name
        if isinstance(each.type, type) and is_dataclass(each.type):
            defaults.update(flat_defaults(each.type, name + "_"))
        elif not (isinstance(each.default, str) and each.default.startswith("${")):
            defaults[name] = each.default
    return {name: value for name, value in defaults.items() if value is not None and not name.startswith("_")}


def our_fields() -> Fields:
    """Return the options that this package adds."""
    added: Fields = [
        (
            "placement",
            Optional[str],
            field(default=None, metadata={"help": "where normalisation stands (lnplace list)"}),
        ),
        ("norm_type", Optional[str], field(default=None, metadata={"help": " | ".join(NORM_TYPES)})),
        (
            "decoder_norm_type",
            Optional[str],
            field(
                default=None, metadata={"help": "the decoder's norm type where the encoder's cannot stand in a decoder"}
            ),
        ),
        (
            "qk_norm",
            Optional[str],
            field(default=None, metadata={"help": f"norm of each head's queries and keys: {' | '.join(QK_NORMS)}"}),
        ),
        (
            "qk_norm_length",
            Optional[int],
            field(
                default=None,
                metadata={
                    "help": "of --qk-norm l2, whose factor starts by it: the length below which 97.5 of 100 of the "
                    f"training's sentences are (default {DEFAULT_LENGTH} pieces)"
                },
            ),
        ),
        ("init", Optional[str], field(default=None, metadata={"help": " | ".join(INITS)})),
        (
            "compile",
            Optional[bool],
            field(default=None, metadata={"help": "train with layers compiled by torch: slow to start, then faster"}),
        ),
        (
            "log_layer_stats",
            Optional[int],
            field(
                default=None,
                metadata={
                    "help": "log each layer's norms of gradient, activation and update in every Nth update, and write "
                    "them to layer_stats.jsonl in --save-dir (0: never)"
                },
            ),
        ),
        (
            "trained_layers",
            Optional[str],
            field(
                default=None,
                metadata={"help": "of a pruned model: the depths and layers it was trained with (kept by itself)"},
            ),
        ),
    ]
    added += [
        (name, Optional[option.kind], field(default=None, metadata={"help": option.help}))
        for name, option in METHOD_OPTIONS.items()
    ]
    return added


def flat_config(name: str, doc: str, all_fields: Fields) -> type:
    """Return a flat dataclass of fairseq's kind."""
    config = make_dataclass(name, all_fields + our_fields(), bases=(FairseqDataclass,))
    config.__module__, config.__doc__ = __name__, doc
    return config


TransformerLNPlaceConfig = flat_config(
    "TransformerLNPlaceConfig",
    "Every option of stock `transformer`, flat, and this package's own.",
    flat_fields(TransformerConfig),
)

TransformerLMLNPlaceConfig = flat_config(
    "TransformerLMLNPlaceConfig",
    "Every option of stock `transformer_lm`, and this package's own.",
    flat_fields(TransformerLanguageModelConfig),
)

# stock's options of `roberta` are no dataclass; those that it does not share with `transformer`:
BERT_FIELDS: Fields = [
    ("max_positions", Optional[int], field(default=None, metadata={"help": "number of positional embeddings"})),
    (
        "pooler_activation_fn",
        Optional[str],
        field(default=None, metadata={"help": "activation of classification heads"}),
    ),
    ("pooler_dropout", Optional[float], field(default=None, metadata={"help": "dropout of classification heads"})),
    ("load_checkpoint_heads", Optional[bool], field(default=None, metadata={"help": "load a checkpoint's heads too"})),
    ("untie_weights_roberta", Optional[bool], field(default=None, metadata={"help": "untie embedding and output"})),
    (
        "spectral_norm_classification_head",
        Optional[bool],
        field(default=None, metadata={"help": "spectral normalisation of the classification heads' output"}),
    ),
]

BertLNPlaceConfig = flat_config(
    "BertLNPlaceConfig",
    "The options of stock `roberta`, and this package's own.",
    [each for each in flat_fields(TransformerConfig) if "decoder" not in each[0] and "adaptive" not in each[0]]
    + BERT_FIELDS,
)
