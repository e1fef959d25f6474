"""What layers and stacks are built from: a method at its place in a model, and sizes that no method decides."""

from dataclasses import dataclass
from typing import Callable, List, Optional

import torch.nn.functional as F
from torch import Tensor

from fairseq_lnplace.layers.dropout import Dropout
from fairseq_lnplace.layers.norm import Norm
from fairseq_lnplace.layers.profile import Profile
from fairseq_lnplace.placements.spec import Layer, Options, Placement, Position, Side


@dataclass(frozen=True)
class LayerSpec:
    """A method, where one layer stands.

    Attributes:
        placement: the method, its variant resolved.
        options: the method's options.
        position: the layer's place.
        norm_type: the kind of the norms.
        norm_eps: what they add to the variance.
        profile: the stack's measurement of skip scales, where the method measures them.
    """

    placement: Placement
    options: Options
    position: Position
    norm_type: str
    norm_eps: float = 1e-5
    profile: Optional[Profile] = None

    @property
    def slots(self) -> Layer:
        """The method's slots of this layer."""
        return self.placement.at(self.position, self.options)

    def norm(self, dim: int) -> Norm:
        """Return a norm over ``dim`` features."""
        return Norm(self.norm_type, dim, self.norm_eps)


@dataclass(frozen=True)
class LayerSize:
    """What a layer is built from besides its method.

    Attributes:
        dim: the number of features C.
        ffn_dim: the width of the feed-forward.
        heads: the number of attention heads H.
        memory_dim: the number of features K of what cross-attention reads; 0 for a layer without it.
        memory_first: whether self-attention reads the memory, too, before its own positions (fairseq's cross+self).
        dropout, attention_dropout, activation_dropout: of the branches, the attention weights, the hidden layer.
        activation: of the feed-forward.
        noise: the probability that training drops a block of a matrix (quantisation noise); 0 for none.
        noise_block: the size of these blocks.
        make_dropout: builds a dropout of its probability and the class of module that it belongs to.
    """

    dim: int
    ffn_dim: int
    heads: int
    memory_dim: int = 0
    memory_first: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: Callable[[Tensor], Tensor] = F.relu
    noise: float = 0.0
    noise_block: int = 8
    make_dropout: Callable[[float, str], Dropout] = Dropout


class StackSpec:
    """A method, where the layers of one stack stand.

    Args:
        placement: the method, its variant resolved.
        options: the method's options.
        side: encoder or decoder.
        layers: the number of each layer counted from 1 in the model as it was trained; pruning leaves gaps.
        encoder_layers, decoder_layers: the depths N and M of the model as it was trained; 0 for a missing stack.
        norm_type: the kind of the norms.
        cross: whether decoder layers attend to an encoder.
        norm_eps: what the norms add to the variance.
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
        norm_eps: float = 1e-5,
    ) -> None:
        self.placement, self.options, self.norm_type, self.norm_eps = placement, options, norm_type, norm_eps
        self.positions = [
            Position(side, layer, encoder_layers, decoder_layers=decoder_layers, cross=cross) for layer in layers
        ]
        slots = [s for position in self.positions for s in placement.at(position, options).slots]
        profiled = any(s.skip_scale.profiled for s in slots)
        self.profile = Profile(int(options["admin_profile_batches"])) if profiled else None

    def layers(self) -> List[LayerSpec]:
        """Return what each layer is built from, from the bottom."""
        return [
            LayerSpec(
                self.placement,
                self.options,
                position,
                norm_type=self.norm_type,
                norm_eps=self.norm_eps,
                profile=self.profile,
            )
            for position in self.positions
        ]
