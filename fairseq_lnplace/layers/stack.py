"""What the encoder and the decoder stack have in common, and what they are built from."""

from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from fairseq_lnplace.layers.dropout import Dropout
from fairseq_lnplace.layers.history import History
from fairseq_lnplace.layers.norm import Norm, widened
from fairseq_lnplace.layers.profile import Profile
from fairseq_lnplace.layers.quant_noise import linear
from fairseq_lnplace.layers.transformer_layer import LayerSpec
from fairseq_lnplace.placements.spec import Options, Placement, Position, Side


class StackSpec:
    """What a stack is built from: a method, its options, and where the stack's layers stand.

    Args:
        placement: the method, its variant resolved.
        options: the method's options.
        side: encoder or decoder.
        layers: the number of each layer counted from 1 in the model as it was trained; pruning leaves gaps.
        encoder_layers, decoder_layers: the depths N and M of the model as it was trained; 0 for a missing stack.
        norm_type: the kind of the norms.
        cross: whether decoder layers attend to an encoder.
    """

    def __init__(
        self,
        placement: Placement,
        options: Options,
        side: Side,
        layers: List[int],
        encoder_layers: int,
        decoder_layers: int,
        norm_type: str,
        cross: bool = True,
    ) -> None:
        self.placement, self.options, self.norm_type = placement, options, norm_type
        self.positions = [Position(side, layer, encoder_layers, decoder_layers, cross) for layer in layers]
        slots = [s for position in self.positions for s in placement.at(position, options).slots]
        profiled = any(s.skip_scale.profiled for s in slots)
        self.profile = Profile(int(options["admin_profile_batches"])) if profiled else None
        self._next = iter(self.positions)

    def next_layer(self, cfg: Any) -> LayerSpec:
        """Return what the next layer from the bottom is built from."""
        return LayerSpec(self.placement, self.options, next(self._next), self.norm_type, cfg, self.profile)


class PlacedStack:
    """What a placement puts around the layers of a stack: for fairseq's encoder or decoder to inherit, too."""

    if TYPE_CHECKING:  # TorchScript would read these at run time
        layer_norm: Optional[Norm]
        embedding_norm: Optional[Norm]
        history: Optional[History]
        profile: Optional[Profile]
        second_scale: float
        dropout_module: Dropout
        layers: Any
        training: bool
        quant_noise: Optional[nn.Module]
        cfg: Any
        modules: Callable[[], Iterator[nn.Module]]

    def install(self, spec: "StackSpec", dim: int) -> None:
        """Make the modules that a method has once a stack of ``dim`` features, in place of fairseq's."""
        placement, norm_type = spec.placement, spec.norm_type
        self.layer_norm = Norm(norm_type, dim, placement.final_norm_eps) if placement.final_norm else None
        self.embedding_norm = Norm(norm_type, dim) if placement.embedding_norm else None
        self.history = None
        if placement.history != "none":
            self.history = History(len(spec.positions), dim, norm_type, placement.history == "pre")
        self.profile = spec.profile
        second = placement.second_stream
        self.second_scale = 0.0 if second is None else second(spec.positions[0], spec.options)
        self.dropout_module = Dropout(self.dropout_module.p, module_name=self.dropout_module.module_name)
        for module in self.modules():  # fairseq's modules that hold one leave it as the memory was, and save it
            if isinstance(buffer := getattr(module, "_float_tensor", None), Tensor):
                buffer.zero_()
        if self.quant_noise is not None:  # fairseq's own map of the embeddings, but under our noise
            noise = self.cfg.quant_noise
            self.quant_noise = linear(dim, dim, noise.pq, noise.pq_block_size, bias=False)

    def begin(self, x: Tensor, padding: Optional[Tensor]) -> Tuple[Tensor, Optional[Tensor]]:
        """Return the stream and the second stream at the start of the stack, each B x T x C."""
        if self.embedding_norm is not None:
            x = self.embedding_norm(x, padding)
        if self.profile is not None and not torch.jit.is_scripting():
            # fairseq's list drops layers while it is in training; one that is dropped would never be measured
            self.layers.training = not self.profile.start() and self.training
        if self.second_scale == 0.0:
            return x, None
        return x, widened(x) * self.second_scale  # without norms, it outgrows half precision

    def remember(self, outputs: List[Tensor], x: Tensor, padding: Optional[Tensor]) -> Tensor:
        """Return the next layer's input, of the ``outputs`` below and ``x`` (B x T x C), which joins them."""
        if self.history is not None:
            return self.history(outputs, x, padding)  # type: ignore[no-any-return]
        return x

    def end(self, x: Tensor, second: Optional[Tensor], padding: Optional[Tensor]) -> Tensor:
        """Return the stack's output, B x T x C."""
        if self.profile is not None and not torch.jit.is_scripting():
            self.profile.finish()
        if self.layer_norm is None:
            return x
        if second is None:
            return self.layer_norm(x, padding)  # type: ignore[no-any-return]
        return x + self.layer_norm(second, padding).to(x.dtype)  # type: ignore[no-any-return]

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> Dict[str, Tensor]:
        """Accept checkpoints of stock fairseq."""
        # without a version buffer fairseq takes one for old, and deletes the stack's final norm without a word
        state_dict.setdefault(f"{name}.version", torch.Tensor([3]))
        super().upgrade_state_dict_named(state_dict, name)  # type: ignore[misc]
        made = state_dict.get(f"{name}.embed_positions._float_tensor")
        if made is not None:
            made.zero_()  # fairseq has just put it there as the memory was
        return state_dict


def wrapped(layer: nn.Module, cfg: Any) -> nn.Module:
    """Return the layer with activation checkpointing and FSDP as the configuration asks for."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)  # type: ignore[no-any-return]
