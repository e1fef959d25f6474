"""From a model's flat configuration to what fairseq's stacks read, and the checks on the way."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields
from itertools import pairwise
from typing import Any

import torch
from fairseq import options
from fairseq.models.transformer import TransformerConfig
from omegaconf import OmegaConf, open_dict

from fairseq_lnplace.errors import LnplaceError, flag, must_be
from fairseq_lnplace.placements.spec import Side
from fairseq_lnplace.plugin.models.architectures import fill_in
from fairseq_lnplace.plugin.models.method import Method, trained_layers_text

PROBABILITIES = (
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "relu_dropout",
    "adaptive_softmax_dropout",
    "pooler_dropout",
    "encoder_layerdrop",
    "decoder_layerdrop",
    "quant_noise_scalar",
)
SIZES = ("max_source_positions", "max_target_positions", "max_positions", "decoder_input_dim", "decoder_output_dim")
DEFAULTS = {"placement": "preln_final", "norm_type": "layernorm", "init": "xavier"}


def open_fields(flat: type) -> dict[str, Any]:
    """Return every option of the dataclass ``flat`` as left open: a Namespace, or an old checkpoint, may lack some."""
    return dict.fromkeys(each.name for each in fields(flat) if each.name != "_name")


def nested_config(cfg: Any, flat: type, method: Method) -> TransformerConfig:
    """Return a resolved flat configuration (of the dataclass ``flat``) as the nested one that fairseq's stacks read.

    The method comes along as its attribute ``method``, --compile as ``compile``.
    """
    names = {each.name for each in fields(flat) if not each.name.endswith("layers_to_keep")}
    given = {name: getattr(cfg, name, None) for name in names if not name.startswith("_")}
    given = {name: value for name, value in given.items() if value is not None}
    nested = TransformerConfig.from_namespace(Namespace(**given))
    nested.method, nested.compile = method, bool(getattr(cfg, "compile", None))
    return nested


def apply_pruning(cfg: Any, method: Method) -> None:
    """Write into the configuration how many layers are kept, and which layers of which depths they were."""
    text = trained_layers_text(method)
    if text is None:
        return
    for each in (cfg, saved(cfg)):
        fill_in(each, {"trained_layers": text})
        each.trained_layers = text
        for side, layers in (("encoder", method.encoder_layers), ("decoder", method.decoder_layers)):
            if layers:
                setattr(each, f"{side}_layers", len(layers))


def saved(cfg: Any) -> Any:
    """Return the configuration that goes into the checkpoint: fairseq builds a model by its dataclass from a copy."""
    parent = cfg._get_parent() if OmegaConf.is_config(cfg) else None
    return cfg if parent is None else parent.model


def write_back(cfg: Any) -> None:
    """Put a resolved model configuration into the whole one, whose trainer reads it and whose checkpoint keeps it.

    fairseq hands a model that is asked for by its own name, and not as an architecture, a copy of ``cfg.model``.
    """
    whole = cfg._get_parent() if OmegaConf.is_config(cfg) else None
    if whole is not None and "model" in whole and whole.model is not cfg:
        with open_dict(whole):
            whole.model = cfg


def check_side(cfg: Any, method: Method, side: Side) -> None:
    """Check the options of one stack.

    Raises:
        LnplaceError: one is out of range, contradicts the placement, or cannot work in these layers.
    """
    for number in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads"):
        value = getattr(cfg, f"{side}_{number}")
        if value < 1:
            raise must_be(flag(f"{side}_{number}"), "at least 1", value)
    dim, heads = getattr(cfg, f"{side}_embed_dim"), getattr(cfg, f"{side}_attention_heads")
    if dim % heads:
        raise must_be(f"--{side}-attention-heads", f"a divisor of {dim}", heads)
    layers = {method.placement.at(position, method.options) for position in method.stack(side).positions}
    if getattr(cfg, f"{side}_normalize_before", None) and not all(each.self_attention.in_norm for each in layers):
        raise LnplaceError(
            f"`--{side}-normalize-before` must be left out with {method.placement.name}, which does not normalise "
            "every branch's input, but is given"
        )
    if getattr(cfg, f"{side}_xformers_att_config", None):
        raise LnplaceError(f"`--{side}-xformers-att-config` must be left out: the attention is this package's own")
    block = cfg.quant_noise_pq_block_size
    for number in ("embed_dim", "ffn_embed_dim"):
        if cfg.quant_noise_pq > 0 and getattr(cfg, f"{side}_{number}") % block:
            raise must_be("--quant-noise-pq-block-size", f"a divisor of --{side}-{number.replace('_', '-')}", block)


def check_common(cfg: Any, method: Method) -> None:
    """Check the options that the kinds of models share.

    Raises:
        LnplaceError: one contradicts the placement, or cannot work in these layers.
    """
    if getattr(cfg, "no_decoder_final_norm", None) and method.placement.final_norm:
        raise LnplaceError("`--no-decoder-final-norm` must be left out; the placement without final norm is preln")
    if cfg.init == "fairseq" and method.options.get(method.placement.form_option) == "authors":
        form = flag(method.placement.form_option)
        raise must_be("--init", f"xavier with {form} authors, whose gain it has by itself", "fairseq")
    if method.placement.history != "none" and trained_layers_text(method):
        raise LnplaceError(
            f"`layers-to-keep` must be left out with {method.placement.name}, where a layer reads all others"
        )
    if cfg.compile and (cfg.checkpoint_activations or cfg.offload_activations):
        raise LnplaceError("`--compile` must be left out with --checkpoint-activations, which torch cannot compile")
    if method.norm_type == "batchnorm" and (cfg.checkpoint_activations or cfg.offload_activations):
        raise LnplaceError(
            "`--checkpoint-activations` must be left out with --norm-type batchnorm, whose running statistics would "
            "move twice"
        )
    if method.norm_type == "batchnorm" and getattr(cfg, "encoder_layerdrop", None):
        raise LnplaceError(
            "`--encoder-layerdrop` must be 0 with --norm-type batchnorm, whose ranks wait for each other"
        )
    if getattr(cfg, "base_layers", None):
        raise must_be("--base-layers", "0, as BASE layers have no placement", cfg.base_layers)
    for name in ("scale_fc", "scale_attn", "scale_heads", "scale_resids"):
        if getattr(cfg, name, None):
            raise LnplaceError(f"`{flag(name)}` must be left out; its place is --placement normformer")
    for name in PROBABILITIES:
        if not 0 <= (getattr(cfg, name, None) or 0) <= 1:
            raise must_be(flag(name), "between 0 and 1", getattr(cfg, name))
    for name in SIZES:
        if (value := getattr(cfg, name, None)) is not None and value < 1:
            raise must_be(flag(name), "at least 1", value)
    if (getattr(cfg, "log_layer_stats", None) or 0) < 0:
        raise must_be("--log-layer-stats", "at least 0", cfg.log_layer_stats)
    if not 0 <= cfg.quant_noise_pq < 1:
        raise must_be("--quant-noise-pq", "at least 0 and below 1", cfg.quant_noise_pq)
    scalar = getattr(cfg, "quant_noise_scalar", None)
    if scalar and not torch.cuda.is_available():
        raise must_be("--quant-noise-scalar", "0 without a GPU, which fairseq's own noise asks for", scalar)
    if cfg.quant_noise_pq and scalar:
        raise LnplaceError(
            "`--quant-noise-scalar` must be left out with --quant-noise-pq: a matrix takes one kind of noise"
        )


def options_of(task: Any) -> Any:
    """Return a task's own options: fairseq's older tasks keep them as ``args``, the others as ``cfg``."""
    return task.args if task.cfg is None else task.cfg


def check_blocks(task: Any, positions: int, name: str) -> None:
    """Check that the blocks into which a task cuts its text are no longer than the model's ``positions``.

    Raises:
        LnplaceError: they are, so that fairseq would leave all of them out; the sentence has the ``name`` of positions.
    """
    cfg = options_of(task)
    length = getattr(cfg, "tokens_per_sample", None)
    if length is not None and str(getattr(cfg, "sample_break_mode", None)) == "none" and length > positions:
        raise must_be("--tokens-per-sample", f"at most {positions}, the model's {flag(name)}", length)


def check_adaptive_softmax(cfg: Any, words: int) -> None:
    """Check the cut-offs of an adaptive softmax over a vocabulary of so many ``words``.

    Raises:
        LnplaceError: they do not cut the vocabulary into bands.
    """
    cutoff = cfg.adaptive_softmax_cutoff
    if cutoff is not None:
        bands = [0, *options.eval_str_list(cutoff, type=int)]
        if len(bands) < 2 or bands[-1] > words or any(low >= high for low, high in pairwise(bands)):
            raise must_be("--adaptive-softmax-cutoff", f"increasing numbers up to {words}, the vocabulary", cutoff)


def check_embedding_file(cfg: Any, side: Side) -> None:
    """Check the file of pre-trained embeddings of one side, where one is given.

    Raises:
        LnplaceError: it cannot be read, or does not start with the number of its words and of their features.
    """
    path, dim = getattr(cfg, f"{side}_embed_path"), getattr(cfg, f"{side}_embed_dim")
    if not path:
        return
    try:
        with open(path, encoding="utf-8") as file:
            header = file.readline().split()
    except (OSError, UnicodeDecodeError):
        raise must_be(flag(f"{side}_embed_path"), "a text file that can be read", path) from None
    if len(header) != 2 or header[1] != str(dim):
        raise must_be(flag(f"{side}_embed_path"), f"a file whose first line is 'WORDS {dim}'", path)
