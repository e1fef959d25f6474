"""Our layer as fairseq asks for it: compiled, checkpointed, laid out for translating, loaded from old checkpoints."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from fairseq import utils
from fairseq.distributed import fsdp_wrap
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from fairseq_lnplace.layers.linear import reads_columns
from fairseq_lnplace.layers.spec import LayerSize, LayerSpec
from fairseq_lnplace.layers.streams import Batch, Cache, Streams
from fairseq_lnplace.layers.transformer_layer import TransformerLayer
from fairseq_lnplace.plugin.compiling import set_compiled


class FairseqLayer(TransformerLayer):
    """A layer inside fairseq.

    Args:
        spec, size: as of the layer.
        compiles: whether it runs compiled in training.
    """

    def __init__(self, spec: LayerSpec, size: LayerSize, compiles: bool) -> None:
        super().__init__(spec, size)
        self.compiles = compiles

    def train(self, mode: bool = True) -> "FairseqLayer":
        """Set training or evaluation; under --compile only training runs compiled: a search's shapes seldom repeat."""
        super().train(mode)
        if self.compiles:
            set_compiled(self, mode)
        return self

    @torch.jit.unused
    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Lay the matrices out in memory as products with them read them; fairseq calls this before it translates."""
        for module in self.modules():
            if reads_columns(module):
                module.weight.data = module.weight.data.t().contiguous().t()

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Take what other versions of fairseq save.

        0.12.2 has ghost parameters; before 0.7 the q, k, v matrices were one, and before 0.6 norms were numbered.
        """
        for kind in ("weight", "bias"):
            for ghost in ("in_proj", "out_proj", "fc1", "fc2"):
                state_dict.pop(f"{name}.{ghost}_{kind}", None)
            for number, norm in enumerate(self.norm_names()):
                old = f"{name}.layer_norms.{number}.{kind}"
                if old in state_dict:
                    state_dict[f"{name}.{norm}.{kind}"] = state_dict.pop(old)
            for attention in ("self_attn", "encoder_attn"):
                joined = state_dict.pop(f"{name}.{attention}.in_proj_{kind}", None)
                if joined is not None:
                    for part, rows in zip("qkv", joined.chunk(3), strict=True):
                        state_dict[f"{name}.{attention}.{part}_proj.{kind}"] = rows

    def flat_forward(self, *flat: Any) -> Any:
        """Run the layer on what streams and batch hold, laid out flat, and the cache; return the streams likewise."""
        split = len(Streams._fields)
        return tuple(type(self).forward(self, Streams(*flat[:split]), Batch(*flat[split:-1]), cache=flat[-1]))


def checkpointed(forward: Any, streams: Streams, batch: Batch, cache: Cache | None = None) -> Streams:
    """Run a checkpointed layer: fairseq's checkpoints know tensors only as arguments and results of their own."""
    return Streams(*forward(*streams, *batch, cache))


def wrapped(layer: FairseqLayer, cfg: Any) -> nn.Module:
    """Return the layer with activation checkpointing and FSDP as the configuration asks for."""
    if cfg.checkpoint_activations:
        usual = layer.forward
        vars(layer)["forward"] = layer.flat_forward
        checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        vars(layer).update(forward=partial(checkpointed, layer.forward), precheckpoint_forward=usual)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)  # type: ignore[no-any-return]


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return fairseq's activation function of this name."""
    return utils.get_activation_fn(name)  # type: ignore[no-any-return]
