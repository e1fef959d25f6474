"""The decoder-only model ``transformer_lm_lnplace`` and its architectures."""

from typing import Any

from fairseq import options
from fairseq.models import register_model
from fairseq.models.transformer import Embedding
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from fairseq.modules import AdaptiveInput
from torch import nn

from fairseq_lnplace.errors import LnplaceError, flag, must_be
from fairseq_lnplace.layers.initialisation import initialise, scale_embeddings
from fairseq_lnplace.plugin.decoder import TransformerDecoder
from fairseq_lnplace.plugin.models.architectures import LM_SIZES, fill_in, register_architectures
from fairseq_lnplace.plugin.models.config import (
    DEFAULTS,
    apply_pruning,
    check_adaptive_softmax,
    check_common,
    check_side,
    nested_config,
    open_fields,
    write_back,
)
from fairseq_lnplace.plugin.models.method import Method, MethodModel
from fairseq_lnplace.plugin.models.options import TransformerLMLNPlaceConfig, flat_defaults

MODEL = "transformer_lm_lnplace"


@register_model(MODEL, dataclass=TransformerLMLNPlaceConfig)
class TransformerLMLNPlaceModel(MethodModel, TransformerLanguageModel):  # type: ignore[misc]
    """fairseq's Transformer language model with normalisation where a placement puts it."""

    def __init__(self, decoder: TransformerDecoder, method: Method) -> None:
        super().__init__(decoder)
        self.install(method)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "TransformerLMLNPlaceModel":
        """Build the model that a flat configuration describes; fills in what the configuration leaves open.

        Raises:
            LnplaceError: an option is out of range, contradicts another, or cannot work in these layers.
        """
        resolve(cfg)
        method = Method.from_config(cfg, 0, cfg.decoder_layers)
        check_side(cfg, method, "decoder")
        check_common(cfg, method)
        check_adaptive_softmax(cfg, len(task.target_dictionary))
        if cfg.adaptive_input and cfg.quant_noise_pq:
            raise must_be("--quant-noise-pq", "0 with --adaptive-input", cfg.quant_noise_pq)
        if cfg.character_embeddings:
            raise LnplaceError("`--character-embeddings` must be left out: this model reads pieces, not characters")
        apply_pruning(cfg, method)
        write_back(cfg)
        nested = nested_config(cfg, TransformerLMLNPlaceConfig, method)
        nested.checkpoint_activations = bool(cfg.checkpoint_activations or cfg.offload_activations)
        embed_tokens = build_embedding(cfg, task)
        decoder = TransformerDecoder(
            nested, task.target_dictionary, embed_tokens, spec=method.stack("decoder"), no_encoder_attn=True
        )
        model = cls(decoder, method)
        initialise(model, cfg.init)
        embeddings = [each for each in embed_tokens.modules() if isinstance(each, nn.Embedding)]  # adaptive: one a band
        scale_embeddings(embeddings, method.stack("decoder"))
        return model


def build_embedding(cfg: Any, task: Any) -> nn.Module:
    """Return the token embedding, adaptive if the configuration says so.

    Raises:
        LnplaceError: tied adaptive weights do not fit together.
    """
    dictionary = task.source_dictionary
    if cfg.tie_adaptive_weights:
        pairs = (
            ("adaptive_input_factor", "adaptive_softmax_factor"),
            ("adaptive_input_cutoff", "adaptive_softmax_cutoff"),
        )
        for ours, theirs in pairs:
            if getattr(cfg, ours) != getattr(cfg, theirs):
                raise must_be(flag(ours), f"{getattr(cfg, theirs)} to tie adaptive weights", getattr(cfg, ours))
        if not cfg.adaptive_input:
            raise LnplaceError("`--tie-adaptive-weights` must go with --adaptive-input")
        if cfg.decoder_input_dim != cfg.decoder_output_dim:
            raise must_be(
                "--decoder-input-dim", f"{cfg.decoder_output_dim} to tie adaptive weights", cfg.decoder_input_dim
            )
    if not cfg.adaptive_input:
        return Embedding(len(dictionary), cfg.decoder_input_dim, dictionary.pad())  # type: ignore[no-any-return]
    return AdaptiveInput(  # type: ignore[no-any-return]
        len(dictionary),
        dictionary.pad(),
        cfg.decoder_input_dim,
        cfg.adaptive_input_factor or 4.0,
        cfg.decoder_embed_dim,
        options.eval_str_list(cfg.adaptive_input_cutoff, type=int),
    )


def resolve(cfg: Any) -> None:
    """Fill in what a flat configuration (Namespace or DictConfig) leaves open, in place."""
    fill_in(cfg, {**open_fields(TransformerLMLNPlaceConfig), **LM_SIZES[""], **DEFAULTS})
    dims = {"decoder_input_dim": cfg.decoder_embed_dim, "decoder_output_dim": cfg.decoder_embed_dim}
    fill_in(cfg, {**dims, "max_target_positions": getattr(cfg, "tokens_per_sample", None) or 1024})
    fill_in(cfg, flat_defaults(TransformerLanguageModelConfig))


register_architectures(MODEL, "transformer_lm_", LM_SIZES)
