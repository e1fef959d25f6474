"""The residual connection: the one interpreter of the placement equation."""

from typing import TYPE_CHECKING, Optional

import torch
from torch import Tensor, nn

from fairseq_lnplace.layers.dropout import Dropout
from fairseq_lnplace.layers.norm import Norm, widened
from fairseq_lnplace.layers.spec import LayerSpec
from fairseq_lnplace.layers.streams import Streams, moved
from fairseq_lnplace.placements.spec import Slots


class Residual(Norm):
    """What stands around one sub-layer f; the equation is in :mod:`fairseq_lnplace.placements.spec`.

    A layer calls ``h = f(residual.enter(streams.x))`` and then ``streams = residual.leave(streams, h, ...)``.

    Its own ``weight`` and ``bias`` are the norm that stock fairseq has at this place: in_norm where the method has
    one, else add_norm. So the parameter names of Post-LN and Pre-LN are stock's; a method's further norms and scales
    have names of their own below it.

    Args:
        spec: the method at the layer's place, for the depth constants and the kind of the norms.
        dim: the number of features C.
        slots: the method's slots for this sub-layer.
        dropout: the dropout module for the branch.
    """

    if TYPE_CHECKING:  # TorchScript would read these at run time
        skip_scale: Optional[nn.Parameter]
        branch_scale: Optional[nn.Parameter]
        profiled_skip: Optional[Tensor]
        progress: Optional[Tensor]

    def __init__(self, spec: LayerSpec, dim: int, slots: Slots, dropout: Dropout) -> None:
        position, options = spec.position, spec.options
        super().__init__(spec.norm_type if slots.in_norm or slots.add_norm else "none", dim, spec.norm_eps)
        self.in_norm = slots.in_norm
        self.add_norm = slots.add_norm and not slots.in_norm
        self.out_norm = spec.norm(dim) if slots.out_norm else None
        self.second_add_norm = spec.norm(dim) if slots.add_norm and slots.in_norm else None
        self.layer_skip = slots.layer_skip
        self.gate = slots.gate
        self.layer_scaled = slots.branch_scale.learned == "layer"
        self.scheduled = int(options[slots.branch_scale.scheduled]) if slots.branch_scale.scheduled else 0
        self.in_scale = slots.in_scale(position, options)
        self.skip_start = slots.skip_scale.start(position, options)
        self.branch_start = slots.branch_scale.start(position, options)
        second = spec.placement.second_stream
        self.second_scale = 1.0 if second is None else second(position, options)
        self.dropout_module = dropout
        self.skip_scale = difference(dim) if slots.skip_scale.learned == "vector" else None
        self.branch_scale = difference(dim) if slots.branch_scale.learned == "vector" else None
        self.register_buffer("profiled_skip", torch.ones(1) if slots.skip_scale.profiled else None)
        self.register_buffer("progress", torch.full((1,), 1 / self.scheduled) if self.scheduled else None)
        self._profile = (spec.profile,)  # in a tuple: the stack owns the module

    def enter(self, x: Tensor, padding: Optional[Tensor]) -> Tensor:
        """Return the branch's input, B x T x C."""
        if self.in_norm:
            x = self.normalize(x, padding)
        return x if self.in_scale == 1.0 else x * self.in_scale

    def leave(
        self,
        streams: Streams,
        branch: Tensor,
        padding: Optional[Tensor],
        layer_input: Tensor,
        scale: Optional[Tensor],
    ) -> Streams:
        """Return the streams after the sub-layer.

        Args:
            streams: those before it.
            branch: the sub-layer's output, B x T x C.
            padding: B x T, True at padding.
            layer_input: the stream at the start of the layer, B x T x C.
            scale: the number that the sub-layers of the layer share, shape (1,).
        """
        x, second = streams.x, streams.second
        if self.out_norm is not None:
            branch = self.out_norm(branch, padding)
        branch = self.dropout_module(branch)
        if self.layer_scaled and scale is not None:
            branch = branch * (self.branch_start + scale)
        elif self.branch_scale is not None:
            # under autocast the branch is in half precision, in which 1e-6 of it would be lost, and the stream is not
            branch = (branch * (self.branch_start + widened(self.branch_scale))).to(x.dtype)
        elif self.progress is not None:
            branch = branch * self.progress.to(branch.dtype)
        elif self.branch_start != 1.0:
            branch = branch * self.branch_start
        if second is not None:
            second = second + branch * self.second_scale
        if self.profiled_skip is not None and not torch.jit.is_scripting():
            self.measure(x, branch, padding)
        x = self.skip(x) + branch
        if self.layer_skip:
            x = x + layer_input
        if self.gate and scale is not None:
            x = x - nn.functional.silu(scale) * x.detach()
        if self.add_norm:
            x = self.normalize(x, padding)
        elif self.second_add_norm is not None:
            x = self.second_add_norm(x, padding)
        return moved(streams, x, second)

    def skip(self, x: Tensor) -> Tensor:
        """Return skip_scale * x, B x T x C."""
        learned = self.skip_scale
        if learned is None:
            return x if self.skip_start == 1.0 else x * self.skip_start
        start = self.profiled_skip
        if start is not None:
            return x * (start + learned).to(x.dtype)
        return x * (self.skip_start + learned).to(x.dtype)

    @torch.jit.unused
    def measure(self, x: Tensor, branch: Tensor, padding: Optional[Tensor]) -> None:
        """Let the stack's profile set this connection's skip scale, while it is measuring."""
        profile, skip = self._profile[0], self.profiled_skip
        if profile is not None and skip is not None:
            profile.measure(skip, x, branch, padding=padding)

    def set_num_updates(self, num_updates: int) -> None:
        """Set the progress of a scheduled branch: the update being computed is ``num_updates`` + 1."""
        if self.progress is not None:
            self.progress.fill_(min(1.0, (num_updates + 1) / self.scheduled))

    def updates_done(self) -> int:
        """Return the number of updates that the progress of a scheduled branch tells; at its end the first such."""
        return 0 if self.progress is None else round(float(self.progress) * self.scheduled) - 1


def difference(dim: int) -> nn.Parameter:
    """Return a learned scale of ``dim`` numbers, as the difference from its start."""
    return nn.Parameter(torch.zeros(dim))
