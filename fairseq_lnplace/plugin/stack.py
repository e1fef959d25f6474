"""What our encoder and decoder share inside fairseq: dropout, checkpoints, and what its configuration asks for."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fairseq.modules import FairseqDropout
from fairseq.modules.quantization.scalar.utils import MAPPING
from torch import Tensor, nn

from fairseq_lnplace.layers.dropout import Dropout
from fairseq_lnplace.layers.linear import Linear
from fairseq_lnplace.layers.quant_noise import linear
from fairseq_lnplace.layers.spec import LayerSize, StackSpec
from fairseq_lnplace.layers.stack import PlacedStack
from fairseq_lnplace.plugin.layer import FairseqLayer, activation, wrapped

MAPPING[Linear] = MAPPING[nn.Linear]  # what fairseq's --quant-noise-scalar puts in its place; it knows no subclass


class RetainableDropout(Dropout, FairseqDropout):  # type: ignore[misc]
    """Our dropout, which fairseq's --retain-dropout can keep on in evaluation."""

    def __init__(self, p: float, module_name: str) -> None:
        FairseqDropout.__init__(self, p, module_name)


class FairseqStack(PlacedStack):
    """A stack inside of fairseq's encoder or decoder, whose class comes after this one."""

    if TYPE_CHECKING:  # TorchScript would read these at run time
        dropout_module: FairseqDropout
        quant_noise: nn.Module | None
        cfg: Any
        modules: Callable[[], Iterator[nn.Module]]

    def prepare(self, spec: StackSpec) -> None:
        """Note what the layers are to be built from, before fairseq's class asks for them."""
        self.unbuilt = spec.layers()

    def next_layer(self, cfg: Any, memory_dim: int) -> nn.Module:
        """Return the next layer from the bottom; ``memory_dim`` as of :class:`LayerSize`."""
        spec = self.unbuilt.pop(0)
        side = getattr(cfg, spec.position.side)
        size = LayerSize(
            dim=int(side.embed_dim),
            ffn_dim=int(side.ffn_embed_dim),
            heads=side.attention_heads,
            memory_dim=memory_dim,
            memory_first=bool(cfg.cross_self_attention and spec.position.side == "decoder"),
            dropout=cfg.dropout,
            attention_dropout=cfg.attention_dropout,
            # fairseq's old relu_dropout holds where activation_dropout is silent
            activation_dropout=float(cfg.activation_dropout or cfg.relu_dropout or 0),
            activation=activation(cfg.activation_fn),
            noise=cfg.quant_noise.pq,
            noise_block=cfg.quant_noise.pq_block_size,
            make_dropout=RetainableDropout,
        )
        return wrapped(FairseqLayer(spec, size, bool(cfg.compile)), cfg)

    def install(self, spec: StackSpec, dim: int) -> None:
        """Make the modules that a method has once a stack of ``dim`` features, in place of fairseq's."""
        super().install(spec, dim)
        self.dropout_module = RetainableDropout(self.dropout_module.p, self.dropout_module.module_name)
        for module in self.modules():  # fairseq's modules that hold one leave it as the memory was, and save it
            if isinstance(buffer := getattr(module, "_float_tensor", None), Tensor):
                buffer.zero_()
        if self.quant_noise is not None:  # fairseq's own map of the embeddings, but under our noise
            noise = self.cfg.quant_noise
            self.quant_noise = linear(dim, dim, noise.pq, block_size=noise.pq_block_size, bias=False)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> dict[str, Tensor]:
        """Accept checkpoints of stock fairseq."""
        # without a version buffer fairseq takes one for old, and deletes the stack's final norm without a word
        state_dict.setdefault(f"{name}.version", Tensor([3]))
        super().upgrade_state_dict_named(state_dict, name)  # type: ignore[misc]
        made = state_dict.get(f"{name}.embed_positions._float_tensor")
        if made is not None:
            made.zero_()  # fairseq has just put it there as the memory was
        return state_dict
