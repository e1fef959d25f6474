"""The placement equation and its slots.

Around every sub-layer f (self-attention, cross-attention, feed-forward) every method of this package fills in

    branch = out_norm(f(in_norm(x) * in_scale)) * branch_scale
    x      = add_norm(skip_scale * x + dropout(branch))

A :class:`Placement` is data: which norms stand, and what the scales are at a given :class:`Position`. One interpreter
(:mod:`fairseq_lnplace.layers.residual`) applies it; no method's name appears in a forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Side = Literal["encoder", "decoder"]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Position:
    """Where a layer stands: ``layer`` (from 1) of its stack, in a model of N encoder and M decoder layers.

    A model without one of the two stacks has 0 there. ``cross`` says whether decoder layers attend to an encoder.
    """

    side: Side
    layer: int
    encoder_layers: int
    decoder_layers: int
    cross: bool = True

    @property
    def layers(self) -> int:
        """The depth of the layer's own stack."""
        return self.encoder_layers if self.side == "encoder" else self.decoder_layers

    @property
    def single_stack(self) -> bool:
        """Whether the model is encoder-only or decoder-only."""
        return self.encoder_layers == 0 or self.decoder_layers == 0

    @property
    def sublayers(self) -> int:
        """The number of sub-layers of the layer's own stack: 3 a layer where there is cross-attention, else 2."""
        return self.layers * (3 if self.side == "decoder" and self.cross and not self.single_stack else 2)


Constant = Callable[[Position, Options], float]


@dataclass(frozen=True)
class _Constant:
    value: float

    def __call__(self, position: Position, options: Options) -> float:
        return self.value


@dataclass(frozen=True)
class _OfOption:
    name: str

    def __call__(self, position: Position, options: Options) -> float:
        return float(options[self.name])


def constant(value: float) -> Constant:
    """Return the scale that has the same value everywhere."""
    return _Constant(value)


def of_option(name: str) -> Constant:
    """Return the scale that an option of the method says."""
    return _OfOption(name)


ZERO, ONE = constant(0.0), constant(1.0)


@dataclass(frozen=True)
class Scale:
    """A factor of the equation.

    ``start`` is its published value at initialisation. ``learned`` says what is trained: nothing, one number per
    feature ("vector"), or one number that all sub-layers of the layer share ("layer"). The parameter holds the
    difference from ``start``, so that weight decay pulls towards the published value and not towards 0, and so that
    a start of 1e-6 survives half precision. ``profiled``: the start is measured in the first training forwards
    (Admin). ``scheduled``: the value is ``min(1, t / T)`` of the update t that is being computed, T the named
    option (BranchNorm).
    """

    start: Constant = ONE
    learned: Literal["no", "vector", "layer"] = "no"
    profiled: bool = False
    scheduled: str | None = None


UNIT = Scale()


@dataclass(frozen=True)
class Slots:
    """What stands around (and inside) one sub-layer."""

    in_norm: bool = False
    in_scale: Constant = ONE
    out_norm: bool = False
    add_norm: bool = False
    skip_scale: Scale = UNIT
    branch_scale: Scale = UNIT
    inner_norm: bool = False
    """Before the sub-layer's last matrix: attention's output projection, the feed-forward's second matrix."""
    qkv_norm: Literal["", "head", "width"] = ""
    """On the projected queries, keys and values: over each head's features, by one norm for all heads, or over all."""
    qk_norm: str = ""
    """Beside the method's own norms: on queries and keys, over each head's features; see :mod:`.qk_norm`."""
    qk_scale: float = 0.0
    """Where queries and keys have the length 1: the start of the learned factor of their products."""
    head_scale: bool = False
    """A learned factor for every head, before the output projection; starts at 1."""
    layer_skip: bool = False
    """The input of the whole layer is added too, before add_norm."""
    gate: bool = False
    """After the add: x - SiLU(g) * stop_gradient(x), g one number a layer that starts at 0."""


@dataclass(frozen=True)
class Layer:
    """The slots of the three sub-layers of one layer."""

    self_attention: Slots
    cross_attention: Slots
    feed_forward: Slots

    @classmethod
    def same(cls, slots: Slots) -> Layer:
        """Return a layer with the same slots around each sub-layer."""
        return cls(slots, slots, slots)

    @property
    def slots(self) -> tuple[Slots, Slots, Slots]:
        """The slots in the order of execution."""
        return self.self_attention, self.cross_attention, self.feed_forward


@dataclass(frozen=True)
class Gains:
    """Factors on the base initialisation of the matrices, by role.

    ``cross_attention`` says whether the decoder's cross-attention matrices are scaled too.
    """

    query: Constant = ONE
    key: Constant = ONE
    value: Constant = ONE
    output: Constant = ONE
    fc1: Constant = ONE
    fc2: Constant = ONE
    embedding: Constant = ONE
    cross_attention: bool = True

    @classmethod
    def of_branch(cls, gain: Constant, **others: Any) -> Gains:
        """Return gains on the matrices that set a branch's size: value, output, fc1, fc2."""
        return cls(value=gain, output=gain, fc1=gain, fc2=gain, **others)

    @classmethod
    def of_layer(cls, gain: Constant) -> Gains:
        """Return one gain on every matrix of a layer."""
        return cls(query=gain, key=gain, value=gain, output=gain, fc1=gain, fc2=gain)


@dataclass(frozen=True)
class Placement:
    """One published method.

    Around the slots of the layers stand what a whole stack has: a norm on its input, a norm on its output, a second
    stream that no norm touches until the end, attention scores that are handed from layer to layer, a learned
    combination of all earlier layers.
    """

    name: str
    title: str
    citation: str
    layer: Layer
    lower_layer: Layer | None = None
    """The slots of the layers up to ``lower_layers``, where they differ from those above."""
    lower_layers: Constant = ZERO
    embedding_norm: bool = False
    final_norm: bool = False
    final_norm_eps: float | None = None
    """What the final norm adds to the variance; None for what the others add."""
    second_stream: Constant | None = None
    """r starts as scale * x and collects scale * branch; the stack ends with x + final_norm(r)."""
    residual_scores: bool = False
    mean_scores: Constant = ZERO
    """Non-zero: the handed-on scores are divided by the number of layers summed before the softmax."""
    history: Literal["none", "pre", "post", "dense"] = "none"
    """Each layer reads a learned sum of the outputs of all earlier ones: each normed ("pre"), normed as a sum ("post"),
    or without norms ("dense")."""
    gains: Gains = field(default_factory=Gains)
    options: tuple[str, ...] = ()
    """The options that only this method takes."""
    forms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Other forms of the method: what they change, by the value of the option ``form_option``."""
    form_option: str = ""
    first_form: Mapping[str, Any] = field(default_factory=dict)
    """The options, where there are any, under which the method is what version 0.1.0 called by its name."""
    changed: str = ""
    """What of it has changed since."""
    needs_warmup: bool = False
    paper_differs: str = ""
    """What the paper and the released code disagree on, and which of them is followed."""
    extension: str = ""
    """What is this package's own extension of the published method."""
    results: str = ""
    """The evidence of published results."""

    def resolved(self, options: Options) -> Placement:
        """Return the form of the method that the options ask for."""
        return replace(self, **self.forms.get(str(options.get(self.form_option)), {}))

    def at(self, position: Position, options: Options) -> Layer:
        """Return the slots of the layer at ``position``."""
        if self.lower_layer is not None and position.layer <= self.lower_layers(position, options):
            return self.lower_layer
        return self.layer
