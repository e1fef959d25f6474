"""What `fairseq_lnplace.nn` promises beside its equations: steps, caches, copies, counts, types, and its refusals."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reference as oracle
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import fairseq_lnplace.nn as lnn
from fairseq_lnplace import placements
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.placements.spec import Gains, Layer, Placement, Scale, Slots, constant

WIDTH, HIDDEN, HEADS, LAYERS, WORDS, PAD = 8, 12, 2, 3, 11, 1
SMALL: dict[str, Any] = {"dim_feedforward": HIDDEN, "dropout": 0.0}
MODEL: dict[str, Any] = {"d_model": WIDTH, "nhead": HEADS, "padding_idx": PAD, **SMALL}
EVERY = pytest.mark.parametrize("placement", placements.names())
EXACT: dict[str, float] = {"rtol": 1e-9, "atol": 1e-10}


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def filled(model: Any, seed: int = 1) -> Any:
    """Give every parameter, and Admin's measured starts, a number of its own; turn to float64 and evaluation."""
    model.double().eval()
    draw = seeded(seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            noise = torch.randn(tensor.shape, generator=draw, dtype=torch.float64)
            if isinstance(tensor, nn.Parameter) or name.endswith("profiled_skip"):
                is_norm = "norm" in name and name.endswith(("weight", "profiled_skip"))
                tensor.copy_(0.4 * noise + float(is_norm))
            if name.endswith("profile.done"):
                tensor.fill_(1)
    return model


def language_model(placement: str | Placement = "preln_final", **settings: Any) -> Any:
    return filled(lnn.LanguageModel(WORDS, num_layers=LAYERS, placement=placement, **(MODEL | settings)))


def transformer(placement: str | Placement = "preln_final", **settings: Any) -> Any:
    depths = {"num_encoder_layers": LAYERS, "num_decoder_layers": 2}
    return filled(lnn.Transformer(WORDS, placement=placement, **depths, **(MODEL | settings)))


def tokens(rows: int = 3, length: int = 7, seed: int = 1) -> Tensor:
    return torch.randint(2, WORDS, (rows, length), generator=seeded(seed))


def padded_left() -> Tensor:
    """Return three rows, of which one starts with a padding and another with three."""
    words = tokens()
    words[1, :1] = words[2, :3] = PAD
    return words


def padded_right() -> Tensor:
    words = tokens()
    words[1, 6:] = words[2, 4:] = PAD
    return words


# ------------------------------------------------------------------------------------------------ step by step

PIECES = {"one by one": [1] * 7, "several": [3, 1, 2, 1]}


def in_steps(model: Any, words: Tensor, pieces: list[int], **first: Tensor) -> Tensor:
    """Return the logits of all positions, decoded in pieces of so many."""
    cache, outputs = None, []
    for part in words.split(pieces, 1):
        logits, cache = model.step(part, cache, **({} if outputs else first))
        outputs.append(logits)
    return torch.cat(outputs, 1)


@pytest.mark.parametrize("pieces", PIECES)
@EVERY
def test_steps_of_a_language_model(placement: str, pieces: str) -> None:
    model = language_model(placement)
    with torch.no_grad():
        for words in (tokens(), padded_left(), padded_right()):
            real = words.ne(PAD)
            assert_close(in_steps(model, words, PIECES[pieces])[real], model(words)[real], **EXACT)


@pytest.mark.parametrize("pieces", PIECES)
@EVERY
def test_steps_of_an_encoder_decoder(placement: str, pieces: str) -> None:
    """With a memory, padded and not; the targets padded likewise."""
    model = transformer(placement)
    with torch.no_grad():
        for source in (tokens(length=5, seed=2), padded_right()):
            for words in (tokens(), padded_left()):
                real = words.ne(PAD)
                steps = in_steps(model, words, PIECES[pieces], src=source)
                assert_close(steps[real], model(source, words)[real], **EXACT)


@EVERY
def test_steps_of_a_bare_decoder_in_training(placement: str) -> None:
    """Gradients flow through the cache, as nothing is written over."""
    x = torch.randn(2, 5, WIDTH, generator=seeded(), dtype=torch.float64)
    memory = torch.randn(2, 4, WIDTH, generator=seeded(2), dtype=torch.float64)
    decoder = filled(lnn.Decoder(WIDTH, HEADS, LAYERS, placement=placement, **SMALL)).train()
    gradients = []
    for pieces in ([5], [2, 1, 2]):
        own, of_memory, cache, outputs = x.clone().requires_grad_(), memory.clone().requires_grad_(), None, []
        for part in own.split(pieces, 1):
            output, cache = decoder.step(part, cache, of_memory if cache is None else None)
            outputs.append(output)
        torch.cat(outputs, 1).sin().sum().backward()
        gradients.append((own.grad, of_memory.grad))
    assert_close(gradients[1], gradients[0], **EXACT)
    assert_close(torch.cat(outputs, 1), decoder(x, memory), **EXACT)


@EVERY
def test_a_cache_can_be_continued_twice(placement: str) -> None:
    model = transformer(placement)
    source, words = tokens(length=5), tokens(length=8)
    others = tokens(length=8, seed=7)
    with torch.no_grad():
        _, cache = model.step(words[:, :4], None, source)
        held = copy.deepcopy(cache)
        results = {}
        for name, more in (("these", words), ("others", others), ("these again", words)):
            first, after = model.step(more[:, 4:5], cache)
            second, _ = model.step(more[:, 5:], after)
            results[name] = torch.cat([first, second], 1)
            expected = model(source, torch.cat([words[:, :4], more[:, 4:]], 1))[:, 4:]
            assert_close(results[name], expected, **EXACT)
        assert torch.equal(results["these"], results["these again"])
        assert not torch.allclose(results["these"], results["others"])
    assert cache.length == held.length
    for now, before in zip(cache.layers, held.layers, strict=True):
        assert now.keys() == before.keys()
        assert all(torch.equal(now[name], before[name]) for name in now)


@EVERY
def test_select_continues_the_rows_that_are_asked_for(placement: str) -> None:
    """Fewer, more, another order; with padding on the left and in the memory."""
    model = transformer(placement)
    source, words, more = padded_right(), padded_left(), tokens(length=3, seed=5)
    with torch.no_grad():
        _, cache = model.step(words, None, source)
        for rows in (torch.tensor([2, 0]), torch.tensor([1, 1, 2, 0]), torch.tensor([2])):
            logits, _ = model.step(more[rows], cache.select(rows))
            expected = model(source[rows], torch.cat([words, more], 1)[rows])[:, -3:]
            assert_close(logits, expected, **EXACT)
    assert cache.layers[0]["self.key"].size(0) == 3


def test_many_steps_hold_no_more_memory_than_they_need() -> None:
    """A cache's keys hold its own positions, and not the room that a step writes in."""
    model = language_model()
    cache = None
    with torch.no_grad():
        for word in tokens(1, 40).split(1, 1):
            _, cache = model.step(word, cache)
    assert cache is not None
    key = cache.layers[0]["self.key"]
    assert key is not None
    assert key.size(2) == 40
    assert key.untyped_storage().nbytes() <= 4 * key.numel() * key.element_size()


# ------------------------------------------------------------------------------- padding, batches, long sequences


@EVERY
def test_padding_and_batch_change_nothing(placement: str) -> None:
    """A row alone, among others, and with padding on either side has the same logits and the same gradient."""
    model, row = language_model(placement), tokens(1, 4)
    pad = torch.full((1, 2), PAD)
    layouts = {
        "alone": (row, slice(0, 4)),
        "among others": (torch.cat([row, tokens(2, 4, seed=3)]), slice(0, 4)),
        "before padding": (torch.cat([torch.cat([row, pad], 1), tokens(2, 6, seed=3)]), slice(0, 4)),
        "behind padding": (torch.cat([torch.cat([pad, row], 1), tokens(2, 6, seed=3)]), slice(2, 6)),
    }
    found = {}
    for name, (words, where) in layouts.items():
        model.zero_grad()
        logits = model(words)[0, where]
        logits.sin().sum().backward()
        found[name] = [logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
        assert all(each.isfinite().all() for each in found[name]), name
        assert_close(found[name], [each.clone() for each in found["alone"]], **EXACT, msg=name)


@EVERY
def test_padding_of_the_source_changes_nothing(placement: str) -> None:
    model, source, target = transformer(placement), tokens(2, 4), tokens(2, 3, seed=2)
    pad = torch.full((2, 2), PAD)
    expected = model(source, target)
    assert_close(model(torch.cat([source, pad], 1), target), expected, **EXACT)
    assert_close(model(torch.cat([pad, source], 1), target), expected, **EXACT)


@pytest.mark.parametrize("padding_idx", [None, 0, PAD, WORDS - 1])
def test_any_padding_index(padding_idx: int | None) -> None:
    """It never changes a row without padding but by the positions that fairseq counts from it."""
    model = language_model(padding_idx=padding_idx)
    words = tokens(2, 4)
    words[words.eq(padding_idx if padding_idx is not None else -1)] = 3
    logits = model(words)
    assert_close(in_steps(model, words, [1, 3]), logits, **EXACT)
    if padding_idx is not None:
        more = torch.cat([torch.full((2, 3), padding_idx), words], 1)
        assert_close(model(more)[:, 3:], logits, **EXACT)
    first = 1 + (padding_idx or 0)
    rates = 10000 ** (-torch.arange(4, dtype=torch.float64) / 3)
    angles = torch.arange(first, first + 4, dtype=torch.float64)[:, None] * rates
    expected = torch.cat([angles.sin(), angles.cos()], 1)
    embedded = model.decoder.embed(words) - WIDTH**0.5 * model.decoder.embed_tokens(words)
    assert_close(embedded, expected.expand(2, -1, -1), rtol=1e-5, atol=1e-5)


def test_longer_than_the_table_of_positions() -> None:
    model = language_model("postln").float()
    words = tokens(1, 1100)
    with torch.no_grad():
        whole = model(words)
        fresh = language_model("postln").float()
        assert_close(fresh(words[:, :1000]), whole[:, :1000], rtol=1e-4, atol=1e-4)
        assert_close(in_steps(fresh, words, [1000, 50, 50]), whole, rtol=1e-4, atol=1e-4)


def test_an_odd_width() -> None:
    assert lnn.LanguageModel(WORDS, **{**MODEL, "d_model": 9, "nhead": 3}, num_layers=1)(tokens()).shape == (
        3,
        7,
        WORDS,
    )


# ----------------------------------------------------------------------------------------- saved, loaded, copied


@EVERY
def test_saved_and_loaded(placement: str, tmp_path: Path) -> None:
    model = transformer(placement)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    again = transformer(placement)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.normal_()
    again.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True), strict=True)
    source, target = tokens(), tokens(seed=2)
    assert torch.equal(again(source, target), model(source, target))


@EVERY
def test_a_copy_trains_by_itself(placement: str) -> None:
    """A deep copy made before Admin's measurement measures its own; the first model stays as it was."""
    torch.manual_seed(1)
    model = lnn.Transformer(WORDS, placement=placement, num_encoder_layers=2, num_decoder_layers=2, **MODEL)
    made = copy.deepcopy(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.state_dict().items())
    shared = {tensor.data_ptr() for tensor in model.state_dict().values()}
    assert not shared & {tensor.data_ptr() for tensor in made.state_dict().values()}
    optimizer = torch.optim.SGD(made.parameters(), 0.1)
    lnn.count_updates(made, optimizer)
    for _ in range(3):  # ReZero's encoder, behind scales that start at 0, moves in the third
        optimizer.zero_grad()
        F.cross_entropy(made(tokens(), tokens(seed=2)).flatten(0, 1), tokens(seed=3).flatten()).backward()
        optimizer.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    moved = {name for name, tensor in made.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved >= {"encoder.layers.0.fc1.weight", "decoder.layers.1.fc2.bias"}
    measured = {name for name in before if name.endswith("profiled_skip")}
    assert len(measured & moved) == (0 if placement != "admin" else len(measured) - 2)  # a stack's first stays 1


@EVERY
def test_pickled_whole(placement: str) -> None:
    """As torch.save does with a module, and as processes hand models over."""
    model = language_model(placement)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(tokens()), model(tokens()))
    assert again.decoder.spec.placement == model.decoder.spec.placement


def test_tied_weights_stay_tied_in_a_copy() -> None:
    model = copy.deepcopy(lnn.LanguageModel(WORDS, num_layers=1, **MODEL))
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight
    shared = copy.deepcopy(lnn.Transformer(WORDS, num_encoder_layers=1, share_embeddings=True, **MODEL))
    assert shared.encoder.embed_tokens.weight is shared.decoder.output_projection.weight
    untied = lnn.LanguageModel(WORDS, num_layers=1, tie_output=False, **MODEL)
    assert untied.decoder.output_projection.weight is not untied.decoder.embed_tokens.weight


# ------------------------------------------------------------------------- methods that have more than a layer


def test_admin_measures_in_the_first_training_forward_alone() -> None:
    """By the paper's equation, of real positions; in no evaluation, and not again."""
    model = lnn.Encoder(WIDTH, HEADS, LAYERS, placement="admin", dtype=torch.float64, **SMALL)
    x = torch.randn(3, 5, WIDTH, generator=seeded(), dtype=torch.float64)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [True] + [False] * 4])
    starts = [name for name in model.state_dict() if name.endswith("profiled_skip")]
    model.eval()(x, key_padding_mask=padding)
    assert all(model.state_dict()[name].item() == 1 for name in starts)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = oracle.Config(HEADS, LAYERS, 0)
    expected = oracle.admin_profile(oracle.Stack("encoder", state, config, padding), x)
    model.train()(x, key_padding_mask=padding)
    assert model.profile is not None
    assert model.profile.done.item() == 1
    measured = [model.state_dict()[name].item() for name in starts]
    assert measured == pytest.approx(expected, rel=1e-9)
    model(3 * x)
    assert [model.state_dict()[name].item() for name in starts] == measured


def test_admin_measures_as_many_batches_as_it_is_told() -> None:
    options = {"admin_profile_batches": 2}
    model = lnn.LanguageModel(WORDS, num_layers=2, placement="admin", options=options, **MODEL)
    model(tokens())
    after_one = model.state_dict()["decoder.layers.1.final_layer_norm.profiled_skip"].clone()
    model(tokens(seed=5))
    after_two = model.state_dict()["decoder.layers.1.final_layer_norm.profiled_skip"].clone()
    model(tokens(seed=6))
    assert model.state_dict()["decoder.profile.done"].item() == 2
    assert not torch.equal(after_one, after_two)
    assert torch.equal(model.state_dict()["decoder.layers.1.final_layer_norm.profiled_skip"], after_two)


@pytest.mark.parametrize("side", ["end", "start"])
def test_admin_measures_no_padding(side: str) -> None:
    """Of targets, whose causal mask hides padding at the end from what is real, but not from statistics."""
    words, pad = tokens(2, 4), torch.full((2, 3), PAD)
    results = []
    for each in (words, torch.cat([words, pad] if side == "end" else [pad, words], 1)):
        torch.manual_seed(1)
        model = lnn.LanguageModel(WORDS, num_layers=2, placement="admin", dtype=torch.float64, **MODEL)
        model(each)
        results.append([t.item() for name, t in model.named_buffers() if name.endswith("profiled_skip")])
    assert results[1] == pytest.approx(results[0], rel=1e-9)


def progress(model: nn.Module) -> float:
    found = {tensor.item() for name, tensor in model.named_buffers() if name.endswith("progress")}
    assert len(found) == 1
    return found.pop()


def branchnorm(updates: int = 5, **settings: Any) -> tuple[Any, torch.optim.Optimizer]:
    options = {"branchnorm_updates": updates}
    model = lnn.LanguageModel(WORDS, num_layers=2, placement="branchnorm", options=options, **(MODEL | settings))
    model.requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    return model, optimizer


def test_branchnorm_counts_the_optimizers_steps() -> None:
    model, optimizer = branchnorm()
    handle = lnn.count_updates(model, optimizer)
    for done in range(8):
        assert progress(model) == pytest.approx(min(1, (done + 1) / 5))
        optimizer.step()
    handle.remove()
    lnn.set_num_updates(model, 2)
    assert progress(model) == pytest.approx(3 / 5)
    optimizer.step()
    assert progress(model) == pytest.approx(3 / 5)


@pytest.mark.parametrize("loaded_first", [True, False])
@pytest.mark.parametrize("saved_after", [0, 2, 4, 9])
def test_branchnorm_goes_on_where_it_was_saved(saved_after: int, loaded_first: bool) -> None:
    """Whether the state is loaded before or after the count is asked for."""
    model, optimizer = branchnorm()
    lnn.count_updates(model, optimizer)
    for _ in range(saved_after):
        optimizer.step()
    again, optimizer = branchnorm()
    if loaded_first:
        again.load_state_dict(model.state_dict())
    lnn.count_updates(again, optimizer)
    if not loaded_first:
        again.load_state_dict(model.state_dict())
    for done in range(saved_after, saved_after + 4):
        assert progress(again) == pytest.approx(min(1, (done + 1) / 5))
        optimizer.step()


def test_branchnorm_counts_on_in_half_precision() -> None:
    """In which 1/4000 more than a half is a half."""
    model, optimizer = branchnorm(4000, dtype=torch.bfloat16)
    lnn.count_updates(model, optimizer)
    for _ in range(3000):
        optimizer.step()
    assert progress(model) == pytest.approx(0.75, rel=0.01)


def test_gpas_gates_learn() -> None:
    model = lnn.LanguageModel(WORDS, num_layers=LAYERS, placement="gpas", **MODEL)
    gates = [p for name, p in model.named_parameters() if name.endswith("layer_scale")]
    assert [gate.item() for gate in gates] == [0.0] * LAYERS
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens()).flatten(0, 1), tokens(seed=2).flatten()).backward()
        optimizer.step()
    assert all(gate.item() != 0.0 for gate in gates[:-1])


def single_layers(stack: Any, placement: str, side: str, **options: Any) -> list[nn.Module]:
    """Return layers of their own with the weights of a stack's."""
    cls = lnn.EncoderLayer if side == "encoder" else lnn.DecoderLayer
    made = []
    for number, layer in enumerate(stack.layers):
        own = cls(WIDTH, HEADS, layer=number + 1, layers=LAYERS, placement=placement, **options, **SMALL).double()
        own.load_state_dict(layer.state_dict())
        made.append(own.eval())
    return made


WITHOUT_HISTORY = [name for name in placements.names() if name not in ("dlcl", "denseformer")]


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("placement", WITHOUT_HISTORY)
def test_single_layers_on_streams_are_the_stack(placement: str, side: str) -> None:
    """RealFormer's scores and ResiDual's second stream go along; what a stack has once is put around by hand."""
    cls = lnn.Encoder if side == "encoder" else lnn.Decoder
    stack = filled(cls(WIDTH, HEADS, LAYERS, placement=placement, **SMALL))
    x = torch.randn(2, 5, WIDTH, generator=seeded(), dtype=torch.float64)
    memory = torch.randn(2, 4, WIDTH, generator=seeded(2), dtype=torch.float64)
    given = (x,) if side == "encoder" else (x, memory)
    expected = stack(*given)
    h = x if stack.embedding_norm is None else stack.embedding_norm(x)
    streams = lnn.Streams(h, h if placement == "resi_dual" else None)
    other = {"decoder_layers": 0} if side == "encoder" else {}
    for layer in single_layers(stack, placement, side, **other):
        streams = layer(streams, *given[1:])
    h = streams.x
    if placement == "resi_dual":
        assert streams.second is not None
        h = h + stack.layer_norm(streams.second)
    elif stack.layer_norm is not None:
        h = stack.layer_norm(h)
    assert_close(h, expected, **EXACT)
    assert (streams.self_scores is not None) == (placement == "realformer")
    assert streams.below == LAYERS


def test_a_single_layer_takes_a_tensor_as_a_stream_without_more() -> None:
    layer = filled(lnn.EncoderLayer(WIDTH, HEADS, placement="realformer", **SMALL))
    x = torch.randn(2, 5, WIDTH, generator=seeded(), dtype=torch.float64)
    out = layer(x)
    assert isinstance(out, Tensor)
    assert torch.equal(out, layer(lnn.Streams(x)).x)


@pytest.mark.parametrize("mask", ["bool", "float", "padding"])
def test_realformer_masks_are_no_nan(mask: str) -> None:
    """Its scores are summed and softmaxed by hand: a row that sees nothing stays finite, others see what they may."""
    stack = filled(lnn.Encoder(WIDTH, HEADS, LAYERS, placement="realformer", **SMALL))
    x = torch.randn(2, 4, WIDTH, generator=seeded(), dtype=torch.float64).requires_grad_()
    hides = torch.zeros(4, 4, dtype=torch.bool)
    hides[1] = True
    given: dict[str, Tensor] = {
        "bool": {"attn_mask": hides},
        "float": {"attn_mask": torch.zeros(4, 4, dtype=torch.float64).masked_fill(hides, -torch.inf)},
        "padding": {"key_padding_mask": torch.tensor([[True] * 4, [False] * 3 + [True]])},
    }[mask]
    out = stack(x, **given)
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("form", ["pre", "post"])
def test_dlcls_history_is_the_papers(form: str) -> None:
    stack = filled(lnn.Encoder(WIDTH, HEADS, LAYERS, placement="dlcl", options={"dlcl_form": form}, **SMALL))
    x = torch.randn(2, 5, WIDTH, generator=seeded(), dtype=torch.float64)
    config = oracle.Config(HEADS, LAYERS, 0, dlcl_form=form)
    expected = oracle.encoder_stack("dlcl", stack.state_dict(), x, None, config)
    assert_close(stack(x), expected, **EXACT)


@pytest.mark.parametrize(("dilation", "period"), [(1, 1), (4, 1), (1, 5), (4, 5), (2, 3), (1, 20)])
def test_denseformers_averages_are_the_papers(dilation: int, period: int) -> None:
    """Eleven layers deep, and with a period that no layer reaches, where nothing is learned."""
    options = {"denseformer_dilation": dilation, "denseformer_period": period}
    stack = filled(lnn.Encoder(WIDTH, HEADS, 11, placement="denseformer", options=options, **SMALL))
    x = torch.randn(2, 5, WIDTH, generator=seeded(), dtype=torch.float64)
    config = oracle.Config(HEADS, 11, 0, denseformer_dilation=dilation, denseformer_period=period)
    expected = oracle.encoder_stack("denseformer", stack.state_dict(), x, None, config)
    assert_close(stack(x), expected, **EXACT)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@EVERY
def test_stacks_are_the_papers(placement: str, side: str) -> None:
    """With padding; the oracle's decoder takes the encoder's depth, as ours does from `encoder_layers`."""
    x = torch.randn(3, 5, WIDTH, generator=seeded(), dtype=torch.float64)
    memory = torch.randn(3, 4, WIDTH, generator=seeded(2), dtype=torch.float64)
    padding = torch.arange(5) >= 5 - torch.arange(3)[:, None]
    config = oracle.Config(HEADS, 2 if side == "decoder" else LAYERS, LAYERS if side == "decoder" else 2)
    config = replace(config, updates_done=0)
    if side == "encoder":
        stack = filled(lnn.Encoder(WIDTH, HEADS, LAYERS, decoder_layers=2, placement=placement, **SMALL))
        out = stack(x, key_padding_mask=padding)
        expected = oracle.encoder_stack(placement, stack.state_dict(), x, padding, config)
    else:
        stack = filled(lnn.Decoder(WIDTH, HEADS, LAYERS, encoder_layers=2, placement=placement, **SMALL))
        out = stack(x, memory, key_padding_mask=padding)
        expected = oracle.decoder_stack(placement, stack.state_dict(), x, memory, None, config, padding)
    assert_close(out[~padding], expected[~padding], rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------------- one's own placement, activation, memory

OWN = Placement(
    "half_skip",
    "Half the skip",
    "nobody",
    Layer.same(
        Slots(in_norm=True, out_norm=True, skip_scale=Scale(constant(0.5)), branch_scale=Scale(learned="vector"))
    ),
    final_norm=True,
    gains=Gains.of_branch(constant(0.1)),
)


def test_a_placement_of_ones_own_needs_no_registration() -> None:
    assert "half_skip" not in placements.names()
    model = language_model(OWN)
    words = tokens()
    assert_close(in_steps(model, words, [3, 4]), model(words), **EXACT)
    layer = filled(lnn.EncoderLayer(WIDTH, HEADS, placement=OWN, **SMALL))
    layer.self_attn.forward = lambda *args, **kwargs: (torch.ones(2, 3, WIDTH, dtype=torch.float64), None, None)
    layer.fc2.weight.data.zero_()
    layer.fc2.bias.data.fill_(1.0)
    for residual in (layer.self_attn_layer_norm, layer.final_layer_norm):
        residual.out_norm.bias.data.fill_(2.0)
        residual.out_norm.weight.data.zero_()
        residual.branch_scale.data.fill_(0.5)  # the difference from 1
    x = torch.randn(2, 3, WIDTH, generator=seeded(), dtype=torch.float64)
    assert_close(layer(x), 0.5 * (0.5 * x + 1.5 * 2) + 1.5 * 2, **EXACT)
    torch.manual_seed(1)
    fresh = lnn.EncoderLayer(64, 4, placement=OWN, **SMALL)
    torch.manual_seed(1)
    plain = lnn.EncoderLayer(64, 4, placement="preln_final", **SMALL)
    assert_close(fresh.fc1.weight, 0.1 * plain.fc1.weight)
    assert_close(fresh.self_attn.q_proj.weight, plain.self_attn.q_proj.weight)
    assert "half_skip" not in placements.names()


def test_a_memory_of_another_width() -> None:
    decoder = filled(lnn.Decoder(WIDTH, HEADS, 2, encoder_layers=4, memory_dim=6, **SMALL))
    x, memory = (torch.randn(2, n, w, generator=seeded(n), dtype=torch.float64) for n, w in ((5, WIDTH), (3, 6)))
    steps, cache = decoder.step(x[:, :2], None, memory)
    assert_close(torch.cat([steps, decoder.step(x[:, 2:], cache)[0]], 1), decoder(x, memory), **EXACT)


# ------------------------------------------------------------------------------------- devices, types, compilers


@EVERY
def test_device_and_dtype(placement: str) -> None:
    """Of every tensor: on the meta device nothing is anywhere else, then it is filled from a state; types likewise."""
    sizes: dict[str, Any] = {"num_encoder_layers": 2, "num_decoder_layers": 2, "placement": placement, **MODEL}
    on_meta = lnn.Transformer(WORDS, device="meta", **sizes)
    tensors = [*on_meta.parameters(), *on_meta.buffers()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    real = lnn.Transformer(WORDS, dtype=torch.float64, **sizes)
    assert {tensor.dtype for tensor in [*real.parameters(), *real.buffers()]} == {torch.float64}
    on_meta.load_state_dict(real.state_dict(), assign=True)
    assert real(tokens(), tokens()).dtype == torch.float64
    half = lnn.Transformer(WORDS, dtype=torch.bfloat16, **sizes)
    assert {tensor.dtype for tensor in half.state_dict().values()} == {torch.bfloat16}
    out = half(padded_right(), padded_right())
    assert out.dtype == torch.bfloat16
    assert out.isfinite().all()


@EVERY
def test_autocast(placement: str) -> None:
    """Finite and close, with masks of each kind; gradients too."""
    model = transformer(placement).float()
    source, target = padded_right(), padded_left()
    real = target.ne(PAD)
    expected = model(source, target)[real]
    with torch.autocast("cpu", torch.bfloat16):
        out = model(source, target)[real]
        steps = in_steps(model, target, [3, 4], src=source)[real]
    scale = expected.abs().mean()
    for each in (out, steps):
        assert each.isfinite().all()
        assert (each - expected).abs().mean() < 0.15 * scale
    out.float().square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    encoder = filled(lnn.Encoder(WIDTH, HEADS, 2, placement=placement, **SMALL)).float()
    x = torch.randn(2, 5, WIDTH, generator=seeded())
    with torch.autocast("cpu", torch.bfloat16):
        assert encoder(x, torch.randn(5, 5, generator=seeded())).isfinite().all()


QUICK = ("dlcl", "denseformer")


@pytest.mark.parametrize(
    "placement",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in placements.names()],
)
def test_traced_whole_by_torch_compile(placement: str) -> None:
    """As one graph, without a break, forward and backward; run as it is, as building code takes seconds each."""
    torch.compiler.reset()
    model = language_model(placement).float()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for words in (tokens(), padded_right(), padded_left()):
        real = words.ne(PAD)
        results = []
        for each in (model, compiled):
            model.zero_grad()
            logits = each(words)[real]
            logits.square().mean().backward()
            results.append([logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_admin_measures_compiled() -> None:
    results = []
    for compiled in (False, True):
        torch.compiler.reset()
        torch.manual_seed(1)
        model = lnn.LanguageModel(WORDS, num_layers=2, placement="admin", **MODEL)
        run = torch.compile(model, backend="aot_eager") if compiled else model
        for seed in (1, 2):
            run(padded_right() if seed == 1 else tokens(seed=seed))
        results.append({name: tensor.item() for name, tensor in model.named_buffers() if tensor.numel() == 1})
    assert results[0]["decoder.profile.done"] == 1
    assert results[1] == pytest.approx(results[0], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["realformer", "dlcl"])
def test_compiled(placement: str) -> None:
    """By torch's own compiler, in evaluation and in training."""
    torch.compiler.reset()
    model = language_model(placement).float()
    words = padded_right()
    real = words.ne(PAD)
    compiled = torch.compile(model)
    for training in (False, True):
        model.train(training)
        assert_close(compiled(words)[real], model(words)[real], rtol=1e-5, atol=1e-5)


def test_gradients_by_torch_func() -> None:
    model, words = language_model(), tokens()
    parameters = dict(model.named_parameters())

    def loss(given: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, given, (words,)).square().mean()  # type: ignore[no-any-return]

    found = torch.func.grad(loss)(parameters)
    loss(parameters).backward()
    for name, parameter in parameters.items():
        assert_close(found[name], parameter.grad, **EXACT)


@EVERY
def test_recomputed_layers(placement: str) -> None:
    """Under torch's activation checkpoints, called layer by layer, gradients are the same."""
    from torch.utils.checkpoint import checkpoint

    stack = filled(lnn.Encoder(WIDTH, HEADS, LAYERS, placement=placement, **SMALL)).train()
    x = torch.randn(2, 5, WIDTH, generator=seeded(), dtype=torch.float64)
    results = []
    for recomputed in (False, True):
        stack.zero_grad()
        if recomputed:
            for layer in stack.layers:
                usual = layer.forward
                layer.forward = lambda *a, usual=usual, **k: checkpoint(usual, *a, use_reentrant=False, **k)
        stack(x).sin().sum().backward()
        results.append([p.grad.clone() for p in stack.parameters()])
    assert_close(results[1], results[0], **EXACT)


# ------------------------------------------------------------------------------------------------------ refusals

X, MEMORY = torch.zeros(2, 3, WIDTH), torch.zeros(2, 4, WIDTH)
ENCODER, DECODER = lnn.Encoder(WIDTH, HEADS, 2, **SMALL), lnn.Decoder(WIDTH, HEADS, 2, **SMALL)
LM = lnn.LanguageModel(WORDS, num_layers=2, **MODEL)
BOTH = lnn.Transformer(WORDS, num_encoder_layers=1, num_decoder_layers=1, **MODEL)
DECODER_ONLY = lnn.Decoder(WIDTH, HEADS, 2, encoder_layers=0, **SMALL)


def layer(**settings: Any) -> nn.Module:
    return lnn.EncoderLayer(WIDTH, HEADS, **settings)


def lm(**settings: Any) -> nn.Module:
    return lnn.LanguageModel(WORDS, **({"d_model": WIDTH, "nhead": HEADS, "num_layers": 2} | settings))


def later(**given: Any) -> Any:
    _, cache = DECODER.step(X, None, MEMORY)
    return DECODER.step(given.pop("tgt", X), cache, **given)


def source_again() -> Any:
    _, cache = BOTH.step(tokens(2, 1), None, tokens(2, 3))
    return BOTH.step(tokens(2, 1), cache, tokens(2, 3))


REFUSALS: list[tuple[str, Callable[[], Any]]] = [
    # settings
    ("`placement` must be one of postln, preln,", lambda: layer(placement="postnl")),
    (
        "`norm_type` must be layernorm or rmsnorm or scalenorm or dyt or derf or batchnorm or instancenorm, but is x",
        lambda: layer(norm_type="x"),
    ),
    (
        "`norm_type` must be layernorm or rmsnorm or scalenorm or dyt or derf (a decoder must not see the future), but",
        lambda: lm(norm_type="batchnorm"),
    ),
    ("`activation` must be relu or gelu or a function, but is swish", lambda: layer(activation="swish")),
    ("`init` must be xavier or xavier_normal or fairseq, but is kaiming", lambda: lm(init="kaiming")),
    ("`layer_norm_eps` must be at least 0, but is -1", lambda: layer(layer_norm_eps=-1.0)),
    ("`layer_norm_eps` must be at least 0, but is nan", lambda: layer(layer_norm_eps=float("nan"))),
    ("`dropout` must be between 0 and 1, but is 1.5", lambda: layer(dropout=1.5)),
    ("`attention_dropout` must be between 0 and 1, but is -0.1", lambda: layer(attention_dropout=-0.1)),
    ("`activation_dropout` must be between 0 and 1, but is nan", lambda: layer(activation_dropout=float("nan"))),
    ("`dmodel` must be left out, as the settings are placement, dim_feedforward,", lambda: lm(dmodel=8)),
    ("`dim_feedforward` must be at least 1, but is 0", lambda: layer(dim_feedforward=0)),
    ("`nhead` must be a divisor of d_model 8, but is 3", lambda: lm(nhead=3)),
    ("`nhead` must be at least 1, but is 0", lambda: lm(nhead=0)),
    ("`d_model` must be at least 1, but is 0", lambda: lm(d_model=0)),
    ("`memory_dim` must be at least 1, but is -1", lambda: lnn.DecoderLayer(WIDTH, HEADS, memory_dim=-1)),
    # a placement's own options
    ("`options` must be of admin_profile_batches, realformer_mean,", lambda: layer(options={"mean": True})),
    (
        "`branchnorm_updates` must be at least 1, but is 0",
        lambda: layer(placement="branchnorm", options={"branchnorm_updates": 0}),
    ),
    (
        "`branchnorm_updates` must be a int, but is '9'",
        lambda: layer(placement="branchnorm", options={"branchnorm_updates": "9"}),
    ),
    (
        "`branchnorm_updates` must go with the method that takes it, but the placement is postln",
        lambda: layer(placement="postln", options={"branchnorm_updates": 9}),
    ),
    ("`dlcl_form` must be pre or post, but is mid", lambda: lm(placement="dlcl", options={"dlcl_form": "mid"})),
    # depths and vocabularies
    ("`layer` must be from 1 to layers, 3, but is 4", lambda: layer(layer=4, layers=3)),
    ("`layer` must be from 1 to layers, 3, but is 0", lambda: layer(layer=0, layers=3)),
    ("`decoder layers` must be at least 1, but is 0", lambda: lm(num_layers=0)),
    ("`encoder layers` must be at least 1, but is 0", lambda: lnn.Encoder(WIDTH, HEADS, 0, decoder_layers=2)),
    ("`decoder layers` must be at least 0, but is -1", lambda: lnn.Encoder(WIDTH, HEADS, 1, decoder_layers=-1)),
    ("`vocab_size` must be at least 1, but is 0", lambda: lnn.LanguageModel(0)),
    ("`padding_idx` must be from 0 to 10, but is 11", lambda: lm(padding_idx=WORDS)),
    ("`padding_idx` must be from 0 to 10, but is -1", lambda: lm(padding_idx=-1)),
    (
        "`tgt_vocab_size` must be 11 to share embeddings, but is 12",
        lambda: lnn.Transformer(WORDS, 12, share_embeddings=True, **MODEL),
    ),
    # inputs
    ("`input` must be of shape (B, T, 8), but is of (3, 8)", lambda: ENCODER(X[0])),
    ("`input` must be of shape (B, T, 8), but is of (2, 3, 6)", lambda: ENCODER(X[..., :6])),
    ("`tokens` must be of shape (B, T), but is of (3,)", lambda: LM(tokens()[:, 0])),
    ("`attn_mask` must be of shape (3, 3) or (4, 3, 3), but is of (3, 4)", lambda: ENCODER(X, torch.zeros(3, 4))),
    ("`attn_mask` must be of shape (3, 3) or (4, 3, 3), but is of (2, 3, 3)", lambda: ENCODER(X, torch.zeros(2, 3, 3))),
    ("`attn_mask` must be of shape (3, 3) or (4, 3, 3), but is of (6, 3, 3)", lambda: ENCODER(X, torch.zeros(6, 3, 3))),
    (
        "`attn_mask` must be of torch.bool, True where hidden, or of floats, but is of torch.int64",
        lambda: ENCODER(X, torch.zeros(3, 3).long()),
    ),
    (
        "`key_padding_mask` must be of shape (2, 3), but is of (2, 4)",
        lambda: ENCODER(X, key_padding_mask=torch.zeros(2, 4).bool()),
    ),
    (
        "`key_padding_mask` must be of torch.bool, True at padding, but is of torch.float32",
        lambda: ENCODER(X, key_padding_mask=torch.zeros(2, 3)),
    ),
    ("`memory` must be given, but is missing", lambda: DECODER(X)),
    ("`memory` must be given, but is missing", lambda: lnn.DecoderLayer(WIDTH, HEADS)(X)),
    ("`memory` must be given, but is missing", lambda: DECODER.step(X)),
    ("`memory` must be left out of a decoder without encoder, but is given", lambda: DECODER_ONLY(X, MEMORY)),
    ("`memory` must be of shape (2, S, 8), but is of (1, 4, 8)", lambda: DECODER(X, MEMORY[:1])),
    ("`memory` must be of shape (2, S, 8), but is of (2, 4, 7)", lambda: DECODER.step(X, None, MEMORY[..., 1:])),
    (
        "`memory_mask` must be of shape (3, 4) or (4, 3, 4), but is of (3, 3)",
        lambda: DECODER(X, MEMORY, memory_mask=torch.zeros(3, 3)),
    ),
    (
        "`memory_key_padding_mask` must be of shape (2, 4), but is of (2, 3)",
        lambda: DECODER(X, MEMORY, memory_key_padding_mask=torch.zeros(2, 3).bool()),
    ),
    (
        "`memory_key_padding` must be one of memory_mask, memory_key_padding_mask, but is no mask of",
        lambda: DECODER(X, MEMORY, memory_key_padding=torch.zeros(2, 4).bool()),
    ),
    # steps
    (
        "`key_padding_mask` must be of shape (2, 3), but is of (2, 5)",
        lambda: DECODER.step(X, None, MEMORY, torch.zeros(2, 5).bool()),
    ),
    (
        "`memory_key_padding_mask` must be of shape (2, 4), but is of (2, 5)",
        lambda: DECODER.step(X, None, MEMORY, memory_key_padding_mask=torch.zeros(2, 5).bool()),
    ),
    (
        "`memory` must be given at the first step alone, whose cache holds it, but is given again",
        lambda: later(memory=MEMORY),
    ),
    ("`input` must be of 2 rows, as the cache, but is of 1", lambda: later(tgt=X[:1])),
    ("`src` must be given at the first step, but is missing", lambda: BOTH.step(tokens(2, 1))),
    ("`src` must be given at the first step alone, but is given again", source_again),
]


@pytest.mark.parametrize(("sentence", "refused"), REFUSALS, ids=range(len(REFUSALS)))
def test_refusals_are_a_sentence(sentence: str, refused: Callable[[], Any]) -> None:
    with pytest.raises(LnplaceError) as caught:
        refused()
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_forms_options_are_checked_before_any_weight_is_made() -> None:
    """False and None are not given, as on the command line."""
    assert isinstance(layer(placement="postln", options={"realformer_mean": False, "layerscale_init": None}), nn.Module)
    assert isinstance(layer(placement="layerscale", options={"layerscale_init": 1}), nn.Module)
