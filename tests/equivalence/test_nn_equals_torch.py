"""With equal weights, Post-LN and Pre-LN of `fairseq_lnplace.nn` are torch's own layers and stacks, gradients too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import fairseq_lnplace.nn as lnn

WIDTH, HIDDEN, HEADS, LAYERS = 8, 12, 2, 3
ROWS, LENGTH, MEMORY = 3, 5, 4
PLACEMENTS = {"postln": False, "preln_final": True}  # and whether norm_first
PRECISIONS = {torch.float32: 1e-6, torch.float64: 1e-12}
EVERY_PLACEMENT = pytest.mark.parametrize("placement", PLACEMENTS)
EVERY_PRECISION = pytest.mark.parametrize("dtype", PRECISIONS, ids=str)


def random(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def padded(rows: int, length: int, *, left: bool = False) -> Tensor:
    """Return a padding mask that hides one position of the second row and two of the third."""
    hidden = torch.arange(length) >= length - torch.arange(rows)[:, None]
    return hidden.flip(1) if left else hidden


def hiding(queries: int, keys: int, rows: int = 0, seed: int = 2) -> Tensor:
    """Return a mask that hides a third of the keys, never the first; for each of ``rows`` another one."""
    shape = (rows, queries, keys) if rows else (queries, keys)
    hidden = random(*shape, seed=seed) > 0.4
    hidden[..., 0] = False
    return hidden


# What an encoder's forward is given; torch's wants its own mask in place of `is_causal` alone.
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
SELF_MASKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}),
    "bool": ({"mask": hiding(LENGTH, LENGTH)},) * 2,
    "float": ({"mask": random(LENGTH, LENGTH)},) * 2,
    "float, hiding": ({"mask": torch.zeros(LENGTH, LENGTH).masked_fill(CAUSAL, -torch.inf)},) * 2,
    "of each head": ({"mask": hiding(LENGTH, LENGTH, ROWS * HEADS)},) * 2,
    "of each head, float": ({"mask": random(ROWS * HEADS, LENGTH, LENGTH)},) * 2,
    "padding": ({"padding": padded(ROWS, LENGTH)},) * 2,
    "padding on the left": ({"padding": padded(ROWS, LENGTH, left=True)},) * 2,
    "bool and padding": ({"mask": hiding(LENGTH, LENGTH), "padding": padded(ROWS, LENGTH)},) * 2,
    "float and padding": (
        {"mask": random(LENGTH, LENGTH), "padding": padded(ROWS, LENGTH)},
        {"mask": random(LENGTH, LENGTH), "padding": padded(ROWS, LENGTH)},
    ),
    "causal": ({"is_causal": True}, {"mask": CAUSAL, "is_causal": True}),
    "causal and padding": (
        {"is_causal": True, "padding": padded(ROWS, LENGTH)},
        {"mask": CAUSAL, "padding": padded(ROWS, LENGTH)},
    ),
    "causal and bool": (
        {"is_causal": True, "mask": hiding(LENGTH, LENGTH)},
        {"mask": CAUSAL | hiding(LENGTH, LENGTH)},
    ),
    "causal and float": (
        {"is_causal": True, "mask": random(LENGTH, LENGTH)},
        {"mask": random(LENGTH, LENGTH).masked_fill(CAUSAL, -torch.inf)},
    ),
}
MEMORY_MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "bool": {"memory_mask": hiding(LENGTH, MEMORY)},
    "float": {"memory_mask": random(LENGTH, MEMORY)},
    "of each head": {"memory_mask": hiding(LENGTH, MEMORY, ROWS * HEADS)},
    "padding": {"memory_key_padding_mask": padded(ROWS, MEMORY)},
    "padding and bool": {
        "memory_key_padding_mask": padded(ROWS, MEMORY),
        "memory_mask": hiding(LENGTH, MEMORY),
    },
}


def in_type(masks: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {
        name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in masks.items()
    }


def ours_of(masks: dict[str, Any]) -> dict[str, Any]:
    names = {"mask": "attn_mask", "padding": "key_padding_mask"}
    return {names.get(name, name): value for name, value in masks.items()}


def theirs_of(masks: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return torch's names, which are those of layers or of stacks, encoders or decoders."""
    encoder = kind.startswith("encoder")
    names = {"padding": "src_key_padding_mask" if encoder else "tgt_key_padding_mask"}
    names["mask"] = {"encoder layer": "src_mask", "encoder": "mask"}.get(kind, "tgt_mask")
    names["is_causal"] = "is_causal" if encoder else "tgt_is_causal"
    if "padding" in masks and "mask" in masks and masks["mask"].dtype != torch.bool:  # torch wants both of one kind
        padding = torch.zeros(masks["padding"].shape, dtype=masks["mask"].dtype)
        masks = {**masks, "padding": padding.masked_fill(masks["padding"], -torch.inf)}
    return {names.get(name, name): value for name, value in masks.items()}


def filled(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Give every parameter, norms and biases too, a value that is not its start."""
    with torch.no_grad():
        for seed, (name, parameter) in enumerate(module.named_parameters()):
            noise = 0.4 * random(*parameter.shape, seed=seed)
            parameter.copy_(noise + float("norm" in name and name.endswith("weight")))
    return module.to(dtype)


def torchs(kind: str, placement: str, dtype: torch.dtype, **options: Any) -> nn.Module:
    """Return torch's layer or stack, filled."""
    norm_first = PLACEMENTS[placement]
    cls = nn.TransformerEncoderLayer if kind.startswith("encoder") else nn.TransformerDecoderLayer
    layer = cls(WIDTH, HEADS, HIDDEN, 0.0, batch_first=True, norm_first=norm_first, **options)
    if kind.endswith("layer"):
        return filled(layer, dtype)
    norm = nn.LayerNorm(WIDTH) if norm_first else None
    stack = (
        nn.TransformerEncoder(layer, LAYERS, norm, enable_nested_tensor=False)
        if kind == "encoder"
        else nn.TransformerDecoder(layer, LAYERS, norm)
    )
    return filled(stack, dtype)


MAKERS: dict[str, Callable[..., nn.Module]] = {
    "encoder layer": lnn.EncoderLayer,
    "decoder layer": lnn.DecoderLayer,
    "encoder": lambda *sizes, **settings: lnn.Encoder(*sizes, LAYERS, **settings),
    "decoder": lambda *sizes, **settings: lnn.Decoder(*sizes, LAYERS, **settings),
}


def pair(kind: str, placement: str, dtype: torch.dtype, **options: Any) -> tuple[nn.Module, nn.Module]:
    """Return ours and torch's with equal weights."""
    theirs = torchs(kind, placement, dtype, **options)
    settings = {"placement": placement, "dim_feedforward": HIDDEN, "dropout": 0.0, "dtype": dtype, **options}
    ours = MAKERS[kind](WIDTH, HEADS, **settings)
    lnn.load_weights(ours, theirs)
    return ours, theirs


def gradients_by_our_names(theirs: nn.Module, ours: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of torch's parameters; matrices that torch joins are cut, by hand, not by load_weights."""
    cross = any("multihead_attn" in name for name, _ in theirs.named_parameters())
    norms = {"norm1": "self_attn_layer_norm", "norm2": "final_layer_norm", "norm": "layer_norm"}
    if cross:
        norms |= {"norm2": "encoder_attn_layer_norm", "norm3": "final_layer_norm"}
    plain = {"linear1": "fc1", "linear2": "fc2", "multihead_attn": "encoder_attn"} | norms
    found = {}
    for name, parameter in theirs.named_parameters():
        assert parameter.grad is not None, name
        parts = [plain.get(part, part) for part in name.split(".")]
        if parts[-1].startswith("in_proj_"):
            for row, letter in enumerate("qkv"):
                rows = parameter.grad[row * WIDTH : (row + 1) * WIDTH]
                found[".".join([*parts[:-1], f"{letter}_proj", parts[-1].removeprefix("in_proj_")])] = rows
        else:
            found[".".join(parts)] = parameter.grad
    assert found.keys() == dict(ours.named_parameters()).keys()
    return found


def assert_equal(
    ours: nn.Module, theirs: nn.Module, inputs: dict[str, Tensor], masks: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    """Assert equal outputs, and equal gradients of the inputs and of every parameter."""
    dtype = next(ours.parameters()).dtype
    tolerance: dict[str, float] = {"rtol": PRECISIONS[dtype], "atol": PRECISIONS[dtype]}
    outputs, of_inputs = [], []
    for module, given in ((ours, masks[0]), (theirs, masks[1])):
        own = {name: value.clone().requires_grad_() for name, value in inputs.items()}
        output = module(*own.values(), **in_type(given, dtype))
        # the mean, so that gradients are of the size of the numbers that they are rounded with
        (output * random(*output.shape, seed=9, dtype=dtype)).mean().backward()
        outputs.append(output)
        of_inputs.append({name: value.grad for name, value in own.items()})
    assert outputs[0].dtype == dtype
    assert_close(*outputs, **tolerance)
    for name, gradient in of_inputs[0].items():
        assert_close(gradient, of_inputs[1][name], **tolerance, msg=lambda text, name=name: f"{name}: {text}")
    expected = gradients_by_our_names(theirs, ours)
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        assert_close(parameter.grad, expected[name], **tolerance, msg=lambda text, name=name: f"{name}: {text}")


def encoder_inputs(dtype: torch.dtype) -> dict[str, Tensor]:
    return {"src": random(ROWS, LENGTH, WIDTH, seed=3, dtype=dtype)}


def decoder_inputs(dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        "tgt": random(ROWS, LENGTH, WIDTH, seed=3, dtype=dtype),
        "memory": random(ROWS, MEMORY, WIDTH, seed=4, dtype=dtype),
    }


@EVERY_PRECISION
@EVERY_PLACEMENT
@pytest.mark.parametrize("kind", ["encoder layer", "encoder"])
@pytest.mark.parametrize("masks", SELF_MASKS)
def test_encoder(masks: str, kind: str, placement: str, dtype: torch.dtype) -> None:
    ours, theirs = pair(kind, placement, dtype)
    given, expected = SELF_MASKS[masks]
    assert_equal(ours, theirs, encoder_inputs(dtype), (ours_of(given), theirs_of(expected, kind)))


@EVERY_PRECISION
@EVERY_PLACEMENT
@pytest.mark.parametrize("kind", ["decoder layer", "decoder"])
@pytest.mark.parametrize("masks", SELF_MASKS)
def test_decoder(masks: str, kind: str, placement: str, dtype: torch.dtype) -> None:
    """Ours is causal unless it is told otherwise, torch's is not."""
    ours, theirs = pair(kind, placement, dtype)
    given, expected = SELF_MASKS[masks]
    given = {"is_causal": False, **given}
    assert_equal(ours, theirs, decoder_inputs(dtype), (ours_of(given), theirs_of(expected, kind)))


@EVERY_PRECISION
@EVERY_PLACEMENT
@pytest.mark.parametrize("kind", ["decoder layer", "decoder"])
@pytest.mark.parametrize("masks", MEMORY_MASKS)
def test_memory(masks: str, kind: str, placement: str, dtype: torch.dtype) -> None:
    """The decoder is causal without a word."""
    ours, theirs = pair(kind, placement, dtype)
    given = MEMORY_MASKS[masks]
    assert_equal(ours, theirs, decoder_inputs(dtype), (given, {"tgt_mask": CAUSAL, **given}))


@EVERY_PLACEMENT
@pytest.mark.parametrize("kind", ["encoder layer", "decoder layer"])
@pytest.mark.parametrize("options", [{"activation": "gelu"}, {"layer_norm_eps": 1e-3}, {"activation": torch.tanh}])
def test_settings(options: dict[str, Any], kind: str, placement: str) -> None:
    ours, theirs = pair(kind, placement, torch.float64, **options)
    inputs = (encoder_inputs if kind == "encoder layer" else decoder_inputs)(torch.float64)
    masks: tuple[dict[str, Any], dict[str, Any]] = ({}, {} if kind == "encoder layer" else {"tgt_mask": CAUSAL})
    assert_equal(ours, theirs, inputs, masks)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_stacks_epsilon_is_its_final_norms_too(kind: str) -> None:
    theirs = torchs(kind, "preln_final", torch.float64, layer_norm_eps=1e-3)
    theirs.norm.eps = 1e-3
    settings: dict[str, Any] = {"dim_feedforward": HIDDEN, "dropout": 0.0, "dtype": torch.float64}
    ours = MAKERS[kind](WIDTH, HEADS, layer_norm_eps=1e-3, **settings)
    lnn.load_weights(ours, theirs)
    inputs = (encoder_inputs if kind == "encoder" else decoder_inputs)(torch.float64)
    assert_equal(ours, theirs, inputs, ({}, {} if kind == "encoder" else {"tgt_mask": CAUSAL}))


@EVERY_PLACEMENT
def test_a_query_that_may_attend_to_nothing_spreads_no_nan(placement: str) -> None:
    """A row of padding alone, by each kind of mask: what is real is torch's, the gradients are numbers."""
    ours, theirs = pair("encoder", placement, torch.float64)
    src, padding = encoder_inputs(torch.float64)["src"], padded(ROWS, LENGTH)
    padding[0] = True
    expected = theirs(src[1:], src_key_padding_mask=padding[1:])
    for given in ({}, {"is_causal": True}, {"attn_mask": torch.zeros(LENGTH, LENGTH, dtype=torch.float64)}):
        output = ours(src, key_padding_mask=padding, **given)
        output.sum().backward()
        assert output.isfinite().all()
        assert all(parameter.grad.isfinite().all() for parameter in ours.parameters() if parameter.grad is not None)
        if "is_causal" not in given:
            assert_close(output[1:], expected, rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------------------- what does not fit


def refused(ours: nn.Module, theirs: nn.Module) -> str:
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    with pytest.raises(ValueError, match="must be") as caught:
        lnn.load_weights(ours, theirs)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in ours.state_dict().items())
    return str(caught.value)


def test_what_does_not_fit_is_refused_in_a_sentence_and_leaves_the_target_as_it_was() -> None:
    settings: dict[str, Any] = {"dim_feedforward": HIDDEN, "dropout": 0.0}
    post, pre = (torchs("encoder layer", placement, torch.float32) for placement in PLACEMENTS)
    layer = lnn.EncoderLayer(WIDTH, HEADS, placement="postln", **settings)
    assert "`placement` must be preln_final or preln for torch.nn's layers, but is postln" in refused(layer, pre)
    deep = lnn.EncoderLayer(WIDTH, HEADS, placement="deepnorm", **settings)
    assert "`placement` must be postln for torch.nn's layers, but is deepnorm" in refused(deep, post)
    for norm_type in "rmsnorm", "dyt", "derf":
        another = lnn.EncoderLayer(WIDTH, HEADS, placement="postln", norm_type=norm_type, **settings)
        assert f"`norm_type` must be layernorm for torch.nn's layers, but is {norm_type}" in refused(another, post)
    other = lnn.EncoderLayer(WIDTH, HEADS, placement="postln", layer_norm_eps=1e-3, **settings)
    assert "`layer_norm_eps` must be 1e-05, as the source's, but is 0.001" in refused(other, post)
    assert "`source` must be a layer of torch.nn" in refused(layer, nn.Linear(2, 2))
    assert "must be left out, but is of shape" in refused(layer, torchs("decoder layer", "postln", torch.float32))
    wide = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN + 1, batch_first=True)
    assert "`source's fc1.weight` must be of shape (12, 8), but is of shape (13, 8)" in refused(layer, wide)
    stack = lnn.Encoder(WIDTH, HEADS, LAYERS, placement="preln_final", **settings)
    of_two = nn.TransformerEncoder(pre, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
    assert "`source` must be a stack of 3 layers" in refused(stack, of_two)
    without = nn.TransformerEncoder(pre, 3, enable_nested_tensor=False)
    assert "final norm" in refused(stack, without)
    other_eps = nn.TransformerEncoder(pre, 3, nn.LayerNorm(WIDTH, 1e-3), enable_nested_tensor=False)
    assert "layer_norm_eps" in refused(stack, other_eps)
    mixed = nn.TransformerEncoder(pre, 3, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
    mixed.layers[2] = post
    assert "placement" in refused(stack, mixed)
    assert "`target` must be" in refused(nn.Linear(2, 2), post)
