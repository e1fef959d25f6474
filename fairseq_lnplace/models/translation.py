"""The encoder-decoder model ``transformer_lnplace`` and its architectures."""

from argparse import Namespace
from dataclasses import fields
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from torch import nn

from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.layers.initialisation import initialise, scale_embeddings
from fairseq_lnplace.layers.stack import TransformerDecoder, TransformerEncoder
from fairseq_lnplace.models._architectures import TRANSFORMER_SIZES, fill_in, register_architectures
from fairseq_lnplace.models._method import Method, MethodModel, trained_layers_text
from fairseq_lnplace.models._options import TransformerLNPlaceConfig

MODEL = "transformer_lnplace"
DEFAULTS = {
    **TRANSFORMER_SIZES[""],
    "placement": "preln_final",
    "norm_type": "layernorm",
    "init": "xavier",
    "max_source_positions": 1024,
    "max_target_positions": 1024,
}
DECODER_FOLLOWS_ENCODER = ("embed_dim", "ffn_embed_dim")


@register_model(MODEL, dataclass=TransformerLNPlaceConfig)  # type: ignore[untyped-decorator]
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
        nested = nested_config(cfg)
        nested.method = method
        model = super().build_model(nested, task)
        initialise(model, cfg.init)
        scale_embeddings((model.encoder.embed_tokens, model.decoder.embed_tokens), method.stack("encoder"))
        model.decoder.need_attn_in_training = bool(getattr(task.cfg, "load_alignments", False))
        return model  # type: ignore[no-any-return]

    @classmethod
    def build_encoder(cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding) -> TransformerEncoder:
        """Return the encoder."""
        return TransformerEncoder(cfg, src_dict, embed_tokens, cfg.method.stack("encoder"))

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding) -> TransformerDecoder:
        """Return the decoder."""
        return TransformerDecoder(cfg, tgt_dict, embed_tokens, cfg.method.stack("decoder"), cfg.no_cross_attention)

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Prepare for generation: attention weights are computed only where the command asks for alignments."""
        super().prepare_for_inference_(cfg)
        if getattr(cfg.generation, "replace_unk", None) is not None:
            self.decoder.need_attn = True


def resolve(cfg: Any) -> None:
    """Fill in what a flat configuration (Namespace or DictConfig) leaves open, in place."""
    fill_in(cfg, DEFAULTS)
    fill_in(cfg, {f"decoder_{name}": getattr(cfg, f"encoder_{name}") for name in DECODER_FOLLOWS_ENCODER})
    dims = {"decoder_input_dim": cfg.decoder_embed_dim, "decoder_output_dim": cfg.decoder_embed_dim}
    fill_in(cfg, dims)


def nested_config(cfg: Any) -> TransformerConfig:
    """Return a resolved flat configuration as the nested one that fairseq's stacks read."""
    names = {each.name for each in fields(TransformerLNPlaceConfig)}
    given = {name: getattr(cfg, name, None) for name in names if not name.endswith("layers_to_keep")}
    given = {name: value for name, value in given.items() if value is not None}
    return TransformerConfig.from_namespace(Namespace(**given))


def apply_pruning(cfg: Any, method: Method) -> None:
    """Write into the configuration how many layers are kept, and which layers of which depths they were."""
    text = trained_layers_text(method)
    if text is not None:
        cfg.encoder_layers, cfg.decoder_layers = len(method.encoder_layers), len(method.decoder_layers)
        cfg.trained_layers = text


def check_options(cfg: Any, method: Method, task: Any) -> None:
    """Check the options that the placement, or these layers, leave no room for.

    Raises:
        LnplaceError: on the first that does not fit.
    """
    placement = method.placement
    for side in ("encoder", "decoder"):
        for number in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads"):
            value = getattr(cfg, f"{side}_{number}")
            if value < 1:
                raise must_be(f"--{side}-{number.replace('_', '-')}", "at least 1", value)
        if getattr(cfg, f"{side}_embed_dim") % getattr(cfg, f"{side}_attention_heads"):
            dim = getattr(cfg, f"{side}_embed_dim")
            raise must_be(
                f"--{side}-attention-heads", f"a divisor of {dim}", getattr(cfg, f"{side}_attention_heads")
            )
        if getattr(cfg, f"{side}_normalize_before") and not placement.layer.self_attention.in_norm:
            raise LnplaceError(
                f"`--{side}-normalize-before` must be left out with {placement.name}, which does not normalise a "
                "branch's input, but is given"
            )
        if getattr(cfg, f"{side}_xformers_att_config", None):
            raise LnplaceError(f"`--{side}-xformers-att-config` must be left out: the attention is this package's own")
    if cfg.no_decoder_final_norm and placement.final_norm:
        raise LnplaceError("`--no-decoder-final-norm` must be left out; the placement without final norm is preln")
    if cfg.base_layers:
        raise LnplaceError("`--base-layers` must be 0: BASE layers are not placed, but is given")
    if cfg.char_inputs:
        raise LnplaceError("`--char-inputs` must be left out: fairseq's models no longer read characters")
    if cfg.quant_noise_scalar and cfg.quant_noise_scalar > 0:
        pass  # fairseq's trainer applies it to the finished model
    if cfg.share_all_embeddings:
        if task.source_dictionary != task.target_dictionary:
            raise LnplaceError("`--share-all-embeddings` must go with a joined dictionary (--joined-dictionary)")
        if cfg.encoder_embed_dim != cfg.decoder_embed_dim:
            raise must_be("--decoder-embed-dim", f"{cfg.encoder_embed_dim} to share embeddings", cfg.decoder_embed_dim)
        if cfg.decoder_embed_path and cfg.decoder_embed_path != cfg.encoder_embed_path:
            raise LnplaceError("`--decoder-embed-path` must be left out with --share-all-embeddings")
    if cfg.cross_self_attention and cfg.encoder_embed_dim != cfg.decoder_embed_dim:
        raise must_be("--decoder-embed-dim", f"{cfg.encoder_embed_dim} for --cross-self-attention", cfg.decoder_embed_dim)


register_architectures(MODEL, "transformer_", TRANSFORMER_SIZES)
