"""One update of a training, measured by place while fairseq's trainer makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.optim.amp_optimizer import AMPOptimizer
from torch import Tensor, nn

from fairseq_lnplace.layers.initialisation import layers_of
from fairseq_lnplace.layers.streams import Streams
from fairseq_lnplace.measure.places import Place, connections, parameters_by_place, stacks
from fairseq_lnplace.measure.taps import tapped
from fairseq_lnplace.plugin.compiling import eager

__all__ = ["MeasuredUpdate"]

Parameters = Mapping[Place, Sequence[nn.Parameter]]
ByPlace = dict[Place, list[Tensor]]


class MeasuredUpdate:
    """Watches the one update that the trainer makes inside its ``with``; then :meth:`numbers` has the results."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.parameters = parameters_by_place(trainer.get_model(), trainer.get_criterion())
        self.streams: dict[Place, Tensor] = {}  # sum of ‖x‖²/d and number of the positions x, on this rank
        self.gradients: dict[Place, float] = {}
        self.before: ByPlace = {}
        self.hooks = ExitStack()

    def __enter__(self) -> MeasuredUpdate:
        model = self.trainer.get_model()
        self.hooks.enter_context(eager(layers_of(model)))
        for place, module, method in exits(model):
            total = self.streams[place] = torch.zeros(2, dtype=torch.float64, device=self.trainer.device)
            self.hooks.enter_context(tapped(module, method, partial(add_positions, total)))
        self.trainer.clip_grad_norm = partial(self.clip_grad_norm, self.trainer.clip_grad_norm)
        self.hooks.callback(delattr, self.trainer, "clip_grad_norm")
        return self

    def __exit__(self, *_: object) -> None:
        self.hooks.close()

    def clip_grad_norm(self, clip: Callable[[float], Tensor], clip_norm: float) -> Tensor:
        """Measure the gradients, which are summed over batches and ranks by now, keep the weights, and clip."""
        self.gradients = gradients(self.parameters, self.trainer.optimizer)
        for place, tensors in weights(self.parameters, self.trainer.optimizer).items():
            self.before[place] = [each.clone() for each in tensors]
        return clip(clip_norm)

    def numbers(self) -> dict[Place, dict[str, Any]]:
        """Return gradient, activation, update and weight of each place; the same on every rank."""
        after, activations = weights(self.parameters, self.trainer.optimizer), self.activations()
        numbers: dict[Place, dict[str, Any]] = {}
        for place in dict.fromkeys([*self.streams, *self.parameters]):
            before = self.before.get(place, [])
            numbers[place] = {
                "gradient": self.gradients.get(place, 0.0),
                "activation": activations.get(place),
                "update": norm(
                    [new.float() - old.float() for new, old in zip(after.get(place, []), before, strict=True)]
                ),
                "weight": norm(before),
            }
        return numbers

    def activations(self) -> dict[Place, float | None]:
        """Return the mean of ‖x‖²/d over the positions of all ranks; None where none passed, as under layerdrop."""
        table = torch.stack(list(self.streams.values()))
        if self.trainer.data_parallel_world_size > 1:
            distributed_utils.all_reduce(table, group=self.trainer.data_parallel_process_group)
        return {
            place: total / count if count else None
            for place, (total, count) in zip(self.streams, table.tolist(), strict=True)
        }


def exits(model: nn.Module) -> Iterator[tuple[Place, nn.Module, str]]:
    """Yield where streams leave: the place, the module, and its method that returns them."""
    for side, stack in stacks(model):
        yield Place(side, None, "embedding"), stack, "begin"
        for place, residual in connections(stack):
            yield place, residual, "leave"
        if stack.layer_norm is not None:
            yield Place(side, None, "final_norm"), stack, "end"


@torch.no_grad()
def add_positions(total: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], result: Streams) -> None:
    """Add the sum of ‖x‖²/d over the real positions x of a stream, and their number.

    Args:
        total: what to add to, shape (2,).
        args: of the method that the stream leaves; the second is a stack's batch.
        kwargs: likewise; a residual connection's have the padding, B x T or None.
        result: what it returns, of which the stream is B x T x C.
    """
    padding = kwargs["padding"] if "padding" in kwargs else args[1].padding
    squares = result.x.float().square().mean(-1)
    if padding is not None:
        squares = squares[~padding]
    total += torch.stack([squares.sum(dtype=total.dtype), torch.full_like(total[0], squares.numel())])


def gradients(parameters: Parameters, optimizer: Any) -> dict[Place, float]:
    """Return the norm of each place's gradient as the optimizer would see it without clipping.

    In half precision fairseq divides by the loss scale, and by the number of tokens, later than here.
    """
    if isinstance(optimizer, AMPOptimizer):
        factor = 1 / optimizer.scaler.get_scale()
    else:
        factor = float(getattr(optimizer, "_multiply_factor", 1.0))
    return {
        place: factor * norm([each.grad for each in own if each.grad is not None]) for place, own in parameters.items()
    }


def weights(parameters: Parameters, optimizer: Any) -> ByPlace:
    """Return the weights that the optimizer changes: the parameters or, in half precision, fairseq's 32-bit copies."""
    half, copies = getattr(optimizer, "fp16_params", []), getattr(optimizer, "fp32_params", [])
    if isinstance(copies, dict):  # all laid into one vector
        (vector,) = copies.values()
        copies = vector.split([each.numel() for each in half])
    copy_of = dict(zip(half, copies, strict=True))
    return {place: [copy_of.get(each, each).detach() for each in own] for place, own in parameters.items()}


def norm(tensors: Sequence[Tensor]) -> float:
    """Return the Euclidean norm over all numbers of the tensors."""
    if not tensors:
        return 0.0
    return float(torch.stack([torch.linalg.vector_norm(each, dtype=torch.float32) for each in tensors]).norm())
