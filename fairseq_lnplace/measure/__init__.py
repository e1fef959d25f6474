"""Instruments for any model: gradients, activations and depth by layer, without fairseq.

Each takes a model as it is and leaves it so. ``batches`` is one batch or a list of them; a batch is a tensor, a tuple
of the model's arguments, or a dictionary of them by name. ``layers`` says what the layers are called, such as
"encoder.layers.*", where * is the number of a layer, or is a list of such patterns; models of this package's layers
need none. ``padding`` is True at padding, of the shape of the streams that the layers read without their features
(B x T, or T x B where layers are not batch-first): a tensor, or a function of the batch and the stack's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.measure.activation_rows import activation_rows
from fairseq_lnplace.measure.any_model import AnyModel, Loss, Padding
from fairseq_lnplace.measure.depth_tables import depth_tables
from fairseq_lnplace.measure.gradient_rows import gradient_rows
from fairseq_lnplace.measure.stacks import stacks_of
from fairseq_lnplace.measure.subject import Row

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["activations", "depth", "gradients"]

Patterns = str | Sequence[str]


def gradients(model: nn.Module, batches: Any, loss: Loss, layers: Patterns | None = None) -> DataFrame:
    """Return the norms of the gradients of the loss by matrix; see :func:`.gradient_rows.gradient_rows`.

    The model is in training mode or not, with dropout or without, as it is given.

    Args:
        model: what is measured.
        batches: on what; see above.
        loss: of the model and a batch, shape ().
        layers: what the layers are called; see above.

    Raises:
        LnplaceError: there are no such layers, or no batches.
    """
    return _frame(gradient_rows(AnyModel(model, stacks_of(model, layers), loss), _listed(batches)))


def activations(
    model: nn.Module,
    batches: Any,
    layers: Patterns | None = None,
    padding: Padding | None = None,
    epsilon: float = 0.1,
) -> DataFrame:
    """Return the sizes of the hidden states by layer, without dropout; see :func:`.activation_rows.activation_rows`.

    Args:
        model: what is measured.
        batches: on what; see above.
        layers: what the layers are called; see above.
        padding: which positions do not count; see above.
        epsilon: how far from the mean, relatively, a token counts as outside.

    Raises:
        LnplaceError: there are no such layers, or no batches, or a layer is none that hands on a stream.
    """
    subject = AnyModel(model, stacks_of(model, layers), padding=padding)
    return _frame(activation_rows(subject, _listed(batches), epsilon))


def depth(
    model: nn.Module,
    batches: Any,
    loss: Loss | None = None,
    layers: Patterns | None = None,
    padding: Padding | None = None,
    lr: float = 1e-4,
) -> dict[str, DataFrame]:
    """Return how much each layer counts, without dropout, by table; see :func:`.depth_tables.depth_tables`.

    Args:
        model: what is measured.
        batches: on what; see above.
        loss: of the model and a batch, in nats a token, shape (); without it, there are no losses in the tables.
        layers: what the layers are called; see above.
        padding: which positions do not count; see above.
        lr: the learning rate of the one step of Adam.

    Raises:
        LnplaceError: there are no such layers, or no batches, or a layer is none that hands on a stream.
    """
    subject = AnyModel(model, stacks_of(model, layers), loss, padding=padding)
    return {name: _frame(rows) for name, rows in depth_tables(subject, _listed(batches), lr).items()}


def _listed(batches: Any) -> list[Any]:
    """Return the batches of what is one batch or a list of them."""
    if batches == []:
        raise must_be("batches", "one batch or more", "an empty list")
    return batches if isinstance(batches, list) else [batches]


def _frame(rows: Sequence[Row]) -> DataFrame:
    """Return a table, whose layers stay whole numbers where some rows have none."""
    from pandas import DataFrame  # slow to import

    frame = DataFrame(rows)
    return frame.astype({"layer": "Int64"}) if "layer" in frame and frame["layer"].isna().any() else frame
