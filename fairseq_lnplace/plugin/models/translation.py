"""The encoder-decoder model ``transformer_lnplace`` and its architectures."""

from typing import Any

from fairseq.data import Dictionary
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from torch import nn

from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.layers.initialisation import initialise, scale_embeddings
from fairseq_lnplace.plugin.decoder import TransformerDecoder
from fairseq_lnplace.plugin.encoder import TransformerEncoder
from fairseq_lnplace.plugin.models.architectures import TRANSFORMER_SIZES, fill_in, register_architectures
from fairseq_lnplace.plugin.models.config import (
    DEFAULTS,
    apply_pruning,
    check_adaptive_softmax,
    check_common,
    check_embedding_file,
    check_side,
    nested_config,
    open_fields,
    write_back,
)
from fairseq_lnplace.plugin.models.method import Method, MethodModel
from fairseq_lnplace.plugin.models.options import TransformerLNPlaceConfig, flat_defaults

MODEL = "transformer_lnplace"
DECODER_FOLLOWS_ENCODER = ("embed_dim", "ffn_embed_dim")


@register_model(MODEL, dataclass=TransformerLNPlaceConfig)
class TransformerLNPlaceModel(MethodModel, TransformerModelBase):  # type: ignore[misc]
    """fairseq's encoder-decoder Transformer with normalisation where a placement puts it.

    ``--placement NAME`` or an architecture ``transformer_NAME`` chooses the method; ``lnplace list`` shows them.
    """

    def __init__(self, cfg: TransformerConfig, encoder: TransformerEncoder, decoder: TransformerDecoder) -> None:
        super().__init__(cfg, encoder, decoder)
        self.install(cfg.method)

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the model's options, without defaults: an architecture fills in what the command line leaves open."""
        super(TransformerModelBase, cls).add_args(parser)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "TransformerLNPlaceModel":
        """Build the model that a flat configuration describes; fills in what the configuration leaves open.

        Raises:
            LnplaceError: an option is out of range, contradicts another, or cannot work in these layers.
        """
        resolve(cfg)
        method = Method.from_config(cfg, cfg.encoder_layers, cfg.decoder_layers)
        check_options(cfg, method, task)
        apply_pruning(cfg, method)
        write_back(cfg)
        nested = nested_config(cfg, TransformerLNPlaceConfig, method)
        model = super().build_model(nested, task)
        initialise(model, cfg.init)
        scale_embeddings((model.encoder.embed_tokens, model.decoder.embed_tokens), method.stack("encoder"))
        model.decoder.need_attn_in_training = bool(getattr(task.cfg, "load_alignments", False))
        return model  # type: ignore[no-any-return]

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> TransformerEncoder:
        """Return the encoder."""
        return TransformerEncoder(cfg, src_dict, embed_tokens, spec=cfg.method.stack("encoder"))

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> TransformerDecoder:
        """Return the decoder."""
        return TransformerDecoder(
            cfg, tgt_dict, embed_tokens, spec=cfg.method.stack("decoder"), no_encoder_attn=cfg.no_cross_attention
        )

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Prepare for generation: attention weights are computed only where the command asks for alignments."""
        super().prepare_for_inference_(cfg)
        if getattr(cfg.generation, "replace_unk", None) is not None:
            self.decoder.need_attn = True


def resolve(cfg: Any) -> None:
    """Fill in what a flat configuration (Namespace or DictConfig) leaves open, in place."""
    positions = {"max_source_positions": 1024, "max_target_positions": 1024}
    fill_in(cfg, {**open_fields(TransformerLNPlaceConfig), **TRANSFORMER_SIZES[""], **DEFAULTS, **positions})
    fill_in(cfg, {f"decoder_{name}": getattr(cfg, f"encoder_{name}") for name in DECODER_FOLLOWS_ENCODER})
    dims = {"decoder_input_dim": cfg.decoder_embed_dim, "decoder_output_dim": cfg.decoder_embed_dim}
    fill_in(cfg, dims)
    fill_in(cfg, flat_defaults(TransformerConfig))


def check_options(cfg: Any, method: Method, task: Any) -> None:
    """Check the options that the placement, or these layers, leave no room for.

    Raises:
        LnplaceError: on the first that does not fit.
    """
    check_side(cfg, method, "encoder")
    check_side(cfg, method, "decoder")
    check_common(cfg, method)
    if cfg.char_inputs:
        raise LnplaceError("`--char-inputs` must be left out: fairseq's models no longer read characters")
    check_adaptive_softmax(cfg, len(task.target_dictionary))
    check_embedding_file(cfg, "encoder")
    check_embedding_file(cfg, "decoder")
    if cfg.tie_adaptive_weights:
        raise LnplaceError("`--tie-adaptive-weights` must be left out: the embeddings here are not adaptive")
    if cfg.decoder_input_dim != cfg.decoder_embed_dim:
        raise must_be("--decoder-input-dim", f"{cfg.decoder_embed_dim}, as the embeddings", cfg.decoder_input_dim)
    shared = cfg.share_all_embeddings or cfg.share_decoder_input_output_embed
    if shared and cfg.decoder_output_dim != cfg.decoder_embed_dim and cfg.adaptive_softmax_cutoff is None:
        raise must_be("--decoder-output-dim", f"{cfg.decoder_embed_dim} to share embeddings", cfg.decoder_output_dim)
    if cfg.share_all_embeddings:
        if task.source_dictionary != task.target_dictionary:
            raise LnplaceError("`--share-all-embeddings` must go with a joined dictionary (--joined-dictionary)")
        if cfg.encoder_embed_dim != cfg.decoder_embed_dim:
            raise must_be("--decoder-embed-dim", f"{cfg.encoder_embed_dim} to share embeddings", cfg.decoder_embed_dim)
        if cfg.decoder_embed_path and cfg.decoder_embed_path != cfg.encoder_embed_path:
            raise LnplaceError("`--decoder-embed-path` must be left out with --share-all-embeddings")
    if cfg.cross_self_attention and cfg.encoder_embed_dim != cfg.decoder_embed_dim:
        raise must_be(
            "--decoder-embed-dim", f"{cfg.encoder_embed_dim} for --cross-self-attention", cfg.decoder_embed_dim
        )


register_architectures(MODEL, "transformer_", TRANSFORMER_SIZES)
