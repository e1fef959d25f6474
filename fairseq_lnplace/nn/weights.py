"""Weights of other models: of this package's own, inside fairseq or not, and of other libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.layers.spec import StackSpec
from fairseq_lnplace.layers.stack import PlacedStack
from fairseq_lnplace.layers.transformer_layer import TransformerLayer
from fairseq_lnplace.nn.foreign import Load, load_of_layer, loads_of_stack

__all__ = ["load_weights"]

BY_FAIRSEQ = ("version", "_float_tensor")  # the ends of names that hold no weights
IN_A_STACK = ("layers", "layer_norm", "embedding_norm", "history", "profile")


def load_weights(target: nn.Module, source: nn.Module) -> None:
    """Copy the weights of another library's layer or stack into ours, or those of our own models inside fairseq.

    Other libraries' are those of ``torch.nn``'s Transformer and of Hugging Face's BERT, BART and GPT-2, and what is
    derived from them. Sizes, activation and ``layer_norm_eps`` (1e-12 in BERT) are yours to set alike; BART's and
    BERT's layers go with the placement postln, GPT-2's with preln, and its stack with preln_final.

    Where anything does not fit, nothing is copied.

    Args:
        target: a layer, a stack or a model of this package.
        source: theirs; of a stack the module that has the layers as ``layers``, ``layer`` or ``h``. Or a stack or model
            of this package, such as :func:`fairseq.checkpoint_utils.load_model_ensemble` gives.

    Raises:
        LnplaceError: the source is of another kind, or its placement, depth, shapes or epsilon differ.
    """
    ours, theirs = stacks_of(target), stacks_of(source)
    if ours and theirs:
        if missing := ours.keys() - theirs.keys():
            raise must_be("source", f"a model with {' and '.join(sorted(missing))}", "one without")
        loads = [load_of_own(stack, theirs[side]) for side, stack in ours.items()]
    elif isinstance(target, PlacedStack):
        loads = loads_of_stack(target, source)
    elif isinstance(target, TransformerLayer):
        loads = [load_of_layer(target, source)]
    else:
        raise must_be("target", "a layer or a stack of this package", f"a {type(target).__name__}")
    for load in loads:
        check_fit(*load)
    for module, state in loads:
        module.load_state_dict(state)


def stacks_of(model: nn.Module) -> dict[str, Any]:
    """Return the stacks of this package that a model has, by side."""
    stacks = [module for module in model.modules() if isinstance(module, PlacedStack)]
    return {stack.spec.positions[0].side: stack for stack in stacks}


def load_of_own(target: Any, source: Any) -> Load:
    """Return what to load from a stack of this package; one that reads no tokens takes the layers alone.

    Raises:
        LnplaceError: they are of different methods or depths.
    """
    told: dict[str, Callable[[StackSpec], object]] = {
        "placement": lambda spec: spec.placement.name,
        "qk_norm": lambda spec: spec.placement.layer.self_attention.qk_norm or None,
        "options": lambda spec: dict(spec.options),
        "depth": lambda spec: [(each.layer, each.encoder_layers, each.decoder_layers) for each in spec.positions],
        "norm_type": lambda spec: spec.norm_type,
        "layer_norm_eps": lambda spec: spec.norm_eps,
    }
    for name, tell in told.items():
        if (wanted := tell(source.spec)) != (given := tell(target.spec)):
            raise must_be(name, f"{wanted}, as the source's", given)
    weights = {name: tensor for name, tensor in source.state_dict().items() if not name.endswith(BY_FAIRSEQ)}
    if not hasattr(target, "embed_tokens"):
        weights = {name: tensor for name, tensor in weights.items() if name.split(".")[0] in IN_A_STACK}
    return target, weights


def check_fit(module: nn.Module, state: Any) -> None:
    """Raise LnplaceError unless a module has what a state has, of the same shapes."""
    ours = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            shapes = [f"of shape {found}" if found else "left out" for found in (ours.get(name), theirs.get(name))]
            raise must_be(f"source's {name}", shapes[0], shapes[1])
