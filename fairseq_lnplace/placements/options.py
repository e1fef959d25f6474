"""The options that belong to one method each: name, type, default, help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairseq_lnplace.errors import LnplaceError, flag, must_be


@dataclass(frozen=True)
class MethodOption:
    """An option of one placement; ``default`` holds where the command line is silent.

    ``identifies``: models that differ in it are different methods, and load no checkpoints of each other.
    """

    kind: type
    default: Any
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    identifies: bool = True


METHOD_OPTIONS: dict[str, MethodOption] = {
    "admin_profile_batches": MethodOption(
        int, 1, "training forwards over which Admin averages its profile", 1, identifies=False
    ),
    "realformer_mean": MethodOption(bool, False, "divide RealFormer's summed scores by the number of layers summed"),
    "resi_dual_scale": MethodOption(float, 1.0, "scale of ResiDual's second stream (0.05 guards fp16)", 1e-4),
    "b2t_rescaled_init": MethodOption(bool, False, "scale B2T's layer matrices by 1/sqrt(layers), as its code does"),
    "mixln_post_fraction": MethodOption(float, 0.25, "fraction of Mix-LN's layers that are Post-LN", 0.0, 1.0),
    "branchnorm_updates": MethodOption(int, 4000, "updates until BranchNorm's branch factor reaches 1", 1),
    "dsinit_exponent": MethodOption(float, 0.5, "DS-Init's exponent: 0.5 as in the paper, 0.25 as in its code", 0.0),
    "layerscale_init": MethodOption(float, None, "LayerScale's start (default: by depth, 0.1, 1e-5 or 1e-6)", 0.0),
    "dlcl_form": MethodOption(str, "pre", "DLCL's form: pre or post", choices=("pre", "post")),
    "denseformer_dilation": MethodOption(int, 1, "DenseFormer's dilation k: every k-th output below is averaged", 1),
    "denseformer_period": MethodOption(
        int, 1, "DenseFormer's period p: outputs are averaged behind every p-th layer", 1
    ),
    "admin_form": MethodOption(
        str,
        "paper",
        "Admin's initialisation: Xavier, or the authors' on q, k, v",
        None,
        None,
        ("paper", "authors"),
        False,
    ),
    "deepnorm_form": MethodOption(
        str, "paper", "DeepNorm's encoder gain: the paper's or torchscale's", None, None, ("paper", "torchscale"), False
    ),
    "tfixup_form": MethodOption(
        str, "paper", "T-Fixup's q and k: Xavier, or the authors' gain", None, None, ("paper", "authors"), False
    ),
    "normformer_resscale": MethodOption(bool, False, "NormFormer's learned scale of the feed-forward's skip"),
    "periln_form": MethodOption(
        str,
        "embedding_norm",
        "Peri-LN's embedding: normalised or plain",
        choices=("embedding_norm", "plain_embedding"),
    ),
    "hybridnorm_form": MethodOption(
        str,
        "published",
        "HybridNorm's form: as published, HybridNorm* (another first layer), or with norms over the full width",
        choices=("published", "star", "full_width"),
    ),
    "keel_form": MethodOption(
        str,
        "published",
        "KEEL's form: as published (a Pre-LN first layer), or all layers alike",
        choices=("published", "uniform"),
    ),
}


def method_options(placement: str, takes: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a method, defaults filled in.

    Args:
        placement: the method's name, for the message.
        takes: the options it takes.
        given: the options that the user gave; those that are None or False were not given.

    Raises:
        LnplaceError: an option of another method was given, or a value is out of its range.
    """
    values: dict[str, Any] = {}
    for name, option in METHOD_OPTIONS.items():
        value = given.get(name)
        if value is None or value is False:
            values[name] = option.default
            continue
        if name not in takes:
            raise LnplaceError(
                f"`{flag(name)}` must go with the method that takes it, but the placement is {placement}"
            )
        low, high = option.minimum, option.maximum
        if (low is not None and not value >= low) or (high is not None and not value <= high):  # nan is neither
            wanted = f"at least {low}" if high is None else f"between {low} and {high}"
            raise must_be(flag(name), wanted, value)
        if option.choices and value not in option.choices:
            raise must_be(flag(name), " or ".join(option.choices), value)
        values[name] = value
    return values
