"""The encoder-only model ``bert_lnplace``: masked-LM head, classification heads, and its architectures."""

from contextlib import nullcontext
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import register_model
from fairseq.models.roberta import RobertaEncoder, RobertaModel
from fairseq.models.transformer import TransformerConfig
from omegaconf import OmegaConf, open_dict
from torch import nn

from fairseq_lnplace.layers.initialisation import initialise, scale_embeddings
from fairseq_lnplace.plugin.encoder import TransformerEncoder
from fairseq_lnplace.plugin.models.architectures import BERT_SIZES, fill_in, register_architectures
from fairseq_lnplace.plugin.models.config import (
    DEFAULTS,
    apply_pruning,
    check_common,
    check_side,
    nested_config,
    open_fields,
    options_of,
    write_back,
)
from fairseq_lnplace.plugin.models.method import Method, MethodModel
from fairseq_lnplace.plugin.models.options import BertLNPlaceConfig, flat_defaults

MODEL = "bert_lnplace"

# as stock `roberta`, but for its norm on the embeddings, which stands only where it is asked for
BERT_DEFAULTS = {
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.0,
    "pooler_dropout": 0.0,
    "encoder_learned_pos": True,
    "layernorm_embedding": False,
    "no_scale_embedding": True,
    "activation_fn": "gelu",
    "pooler_activation_fn": "tanh",
    "untie_weights_roberta": False,
    "spectral_norm_classification_head": False,
    "encoder_layerdrop": 0.0,
    "quant_noise_pq": 0.0,
    "quant_noise_pq_block_size": 8,
}


class BertEncoder(RobertaEncoder):  # type: ignore[misc]
    """fairseq's RoBERTa encoder around our stack.

    Args:
        cfg: the resolved flat configuration.
        dictionary: the vocabulary.
        method: the method of the stack.
    """

    def __init__(self, cfg: Any, dictionary: Dictionary, method: Method) -> None:
        self.method = method
        super().__init__(cfg, dictionary)

    def build_encoder(self, cfg: Any, dictionary: Dictionary, embed_tokens: nn.Embedding) -> TransformerEncoder:
        """Return the stack."""
        nested = nested_config(cfg, BertLNPlaceConfig, self.method)
        nested.checkpoint_activations = bool(cfg.checkpoint_activations or cfg.offload_activations)
        nested.max_source_positions = cfg.max_positions
        return TransformerEncoder(nested, dictionary, embed_tokens, spec=self.method.stack("encoder"))


@register_model(MODEL, dataclass=BertLNPlaceConfig)
class BertLNPlaceModel(MethodModel, RobertaModel):  # type: ignore[misc]
    """A BERT with normalisation where a placement puts it; heads and interface are those of fairseq's RoBERTa."""

    def __init__(self, cfg: Any, encoder: BertEncoder) -> None:
        super().__init__(cfg, encoder)
        self.install(encoder.method)

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the model's options."""
        super(RobertaModel, cls).add_args(parser)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "BertLNPlaceModel":
        """Build the model that a flat configuration describes; fills in what the configuration leaves open.

        ``--init fairseq`` is RoBERTa's here: N(0, 0.02) on every matrix and embedding. Embeddings and heads start so
        under every ``--init``.

        Raises:
            LnplaceError: an option is out of range, contradicts another, or cannot work in these layers.
        """
        resolve(cfg, task)
        method = Method.from_config(cfg, cfg.encoder_layers, 0)
        check_side(cfg, method, "encoder")
        check_common(cfg, method)
        apply_pruning(cfg, method)
        write_back(cfg)
        with open_dict(cfg) if OmegaConf.is_config(cfg) else nullcontext():  # RobertaEncoder writes into it
            model = cls(cfg, BertEncoder(cfg, task.source_dictionary, method))
        initialise(model, cfg.init)
        scale_embeddings([model.encoder.sentence_encoder.embed_tokens], method.stack("encoder"))
        return model


def resolve(cfg: Any, task: Any) -> None:
    """Fill in what a flat configuration (Namespace or DictConfig) leaves open, in place."""
    fill_in(cfg, {**open_fields(BertLNPlaceConfig), **BERT_SIZES[""], **DEFAULTS, **BERT_DEFAULTS})
    blocks = getattr(options_of(task), "tokens_per_sample", None)
    positions = getattr(cfg, "max_positions", None) or blocks or task.max_positions()
    fill_in(cfg, {"max_positions": positions, "max_source_positions": positions})
    fill_in(cfg, {name: value for name, value in flat_defaults(TransformerConfig).items() if hasattr(cfg, name)})


register_architectures(MODEL, "bert_", BERT_SIZES)
