"""In which part of a model the first NaN or infinity came up, told where a training ends for it."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn

from fairseq_lnplace.layers.initialisation import layers_of
from fairseq_lnplace.layers.streams import Streams
from fairseq_lnplace.measure.places import Place, connections, parameters_by_place, stacks
from fairseq_lnplace.measure.taps import tapped
from fairseq_lnplace.plugin.compiling import eager

__all__ = ["FirstNotFinite"]

LOSS = Place(None, None, "loss")
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class FirstNotFinite:
    """Stands in for fairseq's ``NanDetector``, inside whose ``with`` the trainer repeats the update that failed.

    It looks at the weights, then in the order of execution at each stream between sub-layers and at the loss, then at
    each gradient as the backward computes it. What it finds becomes the message of the error that is being handled.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.found: str | None = None
        self.hooks = ExitStack()

    def __enter__(self) -> None:
        model, criterion, hooks = self.trainer.get_model(), self.trainer.get_criterion(), self.hooks
        for place, parameters in parameters_by_place(model, criterion).items():
            self.look(place, "weights", *parameters)
            for parameter in parameters:
                self.watch(place, parameter)
        hooks.enter_context(eager(layers_of(model)))
        *_, (last, _) = stacks(model)  # whose output is the model's features
        for side, stack in stacks(model):
            hooks.enter_context(tapped(stack, "begin", partial(self.begun, side)))
            hooks.enter_context(tapped(stack, "end", partial(self.ended, stack, side == last)))
            if stack.history is not None:
                hooks.callback(stack.history.register_forward_hook(partial(self.combined, side)).remove)
        for place, residual in connections(model):
            hooks.enter_context(tapped(residual, "leave", partial(self.left, place)))
        hooks.callback(model.register_forward_hook(partial(self.projected, last)).remove)
        hooks.callback(criterion.register_forward_hook(self.compared).remove)
        torch.manual_seed(torch.initial_seed())  # that of the update, so that dropout drops the same

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.hooks.close()
        error = sys.exc_info()[1]
        if kind is None and error is not None and (found := self.found_on_any_rank()):
            reason = str(error) if "loss scale" in str(error) else "gradients are Nan/Inf"
            update = self.trainer.get_num_updates() + 1
            error.args = (f"{reason}: in update {update} the first value that is not finite came from {found}",)

    def found_on_any_rank(self) -> str | None:
        """Return what was found here or, since the gradient is everybody's, on another rank."""
        distributed_cfg = self.trainer.cfg.distributed_training
        if not self.trainer.use_distributed_wrapper or distributed_cfg.ddp_backend == "slowmo":
            return self.found
        found: list[str | None] = [None] * self.trainer.data_parallel_world_size
        distributed.all_gather_object(found, self.found, group=self.trainer.data_parallel_process_group)
        return next(filter(None, found), None)

    def look(self, place: Place, when: str, *tensors: Tensor | None) -> None:
        """Note the place if a tensor is not finite, and nothing was found before."""
        for tensor in tensors:
            if self.found is None and tensor is not None and not torch.isfinite(tensor).all():
                self.found = f"{place} ({when})"

    def watch(self, place: Place, tensor: Tensor) -> None:
        """Look at the gradient that the place computes for what it reads."""
        if tensor.requires_grad:
            hook = tensor.register_hook(partial(self.look, place, "backward"))  # type: ignore[no-untyped-call]
            self.hooks.callback(hook.remove)

    def begun(self, side: str, args: Args, kwargs: Kwargs, result: Streams) -> None:
        """Look at the embedded words, before and after a norm."""
        self.look(Place(side, None, "embedding"), "forward", args[0], result.x, result.second)

    def combined(self, side: str, _: nn.Module, args: Args, result: Tensor) -> None:
        """Look at a sum of layers."""
        self.look(Place(side, None, "history"), "forward", result)

    def left(self, place: Place, args: Args, kwargs: Kwargs, result: Streams) -> None:
        """Look at the streams after a sub-layer."""
        self.watch(place, args[0].x)
        self.look(place, "forward", result.x, result.second)

    def ended(self, stack: Any, is_last: bool, args: Args, kwargs: Kwargs, result: Streams) -> None:
        """Look at a stack's output."""
        side = stack.spec.positions[0].side
        if stack.layer_norm is not None:
            self.watch(Place(side, None, "final_norm"), args[0].x)
        self.look(Place(side, None, "final_norm"), "forward", result.x)
        if is_last:
            self.watch(Place(side, None, "output"), result.x)

    def projected(self, side: str, _: nn.Module, args: Args, result: tuple[Any, Any]) -> None:
        """Look at the model's output; the fused criterion may have the model return two losses in its place."""
        if isinstance(result[0], Tensor):
            self.look(Place(side, None, "output"), "forward", result[0])
            self.watch(LOSS, result[0])

    def compared(self, _: nn.Module, args: Args, result: tuple[Tensor, Any, Any]) -> None:
        """Look at the loss."""
        self.look(LOSS, "forward", result[0])
