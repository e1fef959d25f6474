"""What a placement puts around the layers of a stack, and how they run."""

from typing import TYPE_CHECKING, Any, List, Optional

import torch
from torch import Tensor, nn

from fairseq_lnplace.layers.history import DepthAverage, History
from fairseq_lnplace.layers.norm import Norm, widened
from fairseq_lnplace.layers.profile import Profile
from fairseq_lnplace.layers.spec import StackSpec
from fairseq_lnplace.layers.streams import Batch, Cache, Streams, moved


class PlacedStack:
    """A stack's layers with what stands around them: for an encoder or a decoder to inherit beside its ``nn.Module``.

    The module has its layers, from the bottom, in ``layers``, and calls :meth:`install`.
    """

    if TYPE_CHECKING:  # TorchScript would read these at run time
        spec: StackSpec
        layer_norm: Optional[Norm]
        embedding_norm: Optional[Norm]
        history: Optional[nn.Module]
        profile: Optional[Profile]
        layers: Any
        training: bool

    def install(self, spec: StackSpec, dim: int) -> None:
        """Make the modules that a method has once a stack of ``dim`` features."""
        placement, norm_type = spec.placement, spec.norm_type
        self.spec = spec
        final_eps = spec.norm_eps if placement.final_norm_eps is None else placement.final_norm_eps
        self.layer_norm = Norm(norm_type, dim, final_eps) if placement.final_norm else None
        self.embedding_norm = Norm(norm_type, dim, spec.norm_eps) if placement.embedding_norm else None
        self.history = None
        if placement.history == "dense":
            dilation, period = (int(spec.options[f"denseformer_{name}"]) for name in ("dilation", "period"))
            if period <= len(spec.positions):  # else nothing is averaged, and DDP does not take an empty parameter
                self.history = DepthAverage(len(spec.positions), dilation, period)
        elif placement.history != "none":
            self.history = History(
                len(spec.positions), dim, norm_type, norm_before_sum=placement.history == "pre", eps=spec.norm_eps
            )
        self.profile = spec.profile
        second = placement.second_stream
        self.second_scale = 0.0 if second is None else second(spec.positions[0], spec.options)

    def run(
        self, x: Tensor, batch: Batch, caches: Optional[List[Cache]] = None, states: Optional[List[Tensor]] = None
    ) -> Streams:
        """Return the streams after the stack, whose output is their ``x``.

        Args:
            x: the embedded tokens, B x T x C.
            batch: what all layers are given.
            caches: one for each layer, in incremental decoding; they are written.
            states: where to put what each layer reads, and what comes after the last, B x T x C each.
        """
        streams = self.begin(x, batch)
        outputs: List[Tensor] = []
        if states is not None:
            states.append(streams.x)
        streams = self.remember(outputs, streams, batch)
        for index, layer in enumerate(self.layers):
            streams = layer(streams, batch) if caches is None else layer(streams, batch, cache=caches[index])
            streams = self.remember(outputs, streams, batch)
            if states is not None:
                states.append(streams.x)
        return self.end(streams, batch)

    def begin(self, x: Tensor, batch: Batch) -> Streams:
        """Return the streams at the start of the stack."""
        if self.embedding_norm is not None:
            x = self.embedding_norm(x, batch.padding)
        if self.profile is not None and not torch.jit.is_scripting():
            # fairseq's list drops layers while it is in training; one that is dropped would never be measured
            self.layers.training = not self.profile.start() and self.training
        if self.second_scale == 0.0:
            return Streams(x)
        return Streams(x, widened(x) * self.second_scale)  # without norms, it outgrows half precision

    def remember(self, outputs: List[Tensor], streams: Streams, batch: Batch) -> Streams:
        """Return what the next layer reads, of the ``outputs`` below and the stream, which joins them."""
        if self.history is None:
            return streams
        return moved(streams, self.history(outputs, streams.x, batch.padding), streams.second)

    def end(self, streams: Streams, batch: Batch) -> Streams:
        """Return the streams after the stack."""
        if self.profile is not None and not torch.jit.is_scripting():
            self.profile.finish()
        x, second = streams.x, streams.second
        if self.layer_norm is not None:
            if second is None:
                x = self.layer_norm(x, batch.padding)
            else:
                x = x + self.layer_norm(second, batch.padding).to(x.dtype)
        return moved(streams, x, second)
