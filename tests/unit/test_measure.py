"""`fairseq_lnplace.measure` on any model: against loops over the layers that are written out, without hooks."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
import torch
from pandas import DataFrame
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, layer_norm

from fairseq_lnplace import measure
from fairseq_lnplace.diagnostics.subjects import Subject, from_architecture, settle
from fairseq_lnplace.diagnostics.text import batches, synthetic_text
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.layers.streams import Batch, Streams
from fairseq_lnplace.measure.activation_rows import activation_rows
from fairseq_lnplace.measure.depth_tables import depth_tables
from fairseq_lnplace.measure.gradient_rows import gradient_rows
from fairseq_lnplace.nn import Encoder, LanguageModel

WORDS, DIM, LAYERS = 11, 8, 3
PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
TOKENS = torch.randint(WORDS, (2, 5), generator=torch.Generator().manual_seed(1))


class Words(nn.Module):
    """Embedded words, torch's encoder and logits; padding as TransformerEncoder takes it."""

    def __init__(self, norm_first: bool, batch_first: bool = True) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(WORDS, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 2, 12, 0.1, norm_first=norm_first, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(DIM), enable_nested_tensor=not norm_first)
        self.out = nn.Linear(DIM, WORDS)
        for parameter in self.parameters():  # TransformerEncoder has copies of one layer
            parameter.data += 0.2 * torch.randn_like(parameter)
        self.double()

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        x: Tensor = self.encoder(self.embed(tokens), src_key_padding_mask=padding)
        return self.out(x)


def loss_on(model: nn.Module, tokens: Tensor) -> Tensor:
    return cross_entropy(model(tokens).transpose(1, 2), tokens)


def square(x: Tensor) -> float:
    return float(x.square().mean())


class Loop:
    """A stack run layer by layer.

    Args:
        start: the embedded words, B x T x C.
        layers: functions of the stream alone.
        end: from the last stream to the model's output, B x T x ...
        real: positions that count.
    """

    def __init__(self, start: Tensor, layers: list[Any], end: Any, real: Tensor) -> None:
        self.start, self.layers, self.end, self.real = start, layers, end, real

    def states(self) -> list[Tensor]:
        states = [self.start]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return states

    def without(self, index: int) -> Tensor:
        x = self.start
        for number, layer in enumerate(self.layers):
            x = x if number == index else layer(x)
        return self.end(x)

    def beside(self, index: int) -> Tensor:
        """The output with a layer beside the one below it."""
        x, number = self.start, 0
        while number < len(self.layers):
            if number == index - 1:
                x = self.layers[number](x) + self.layers[number + 1](x) - x
                number += 1
            else:
                x = self.layers[number](x)
            number += 1
        return self.end(x)

    def check_activations(self, frame: DataFrame, epsilon: float = 0.1) -> None:
        assert list(frame.columns) == ["side", "layer", "stream", "growth", "variance", "inner", "delta"]
        assert list(frame["layer"]) == list(range(len(self.layers) + 1))
        before = None
        for row, state in zip(frame.to_dict("records"), self.states(), strict=True):
            x = state[self.real]
            assert row["stream"] == pytest.approx(square(x), rel=1e-12)
            squares = x.square().sum(-1)
            far = [bool(abs(each - squares.mean()) > epsilon * squares.mean()) for each in squares]
            assert row["delta"] == sum(far) / len(far)
            assert row["variance"] == pytest.approx(float((x - x.mean(-1, keepdim=True)).square().mean()), rel=1e-12)
            if before is not None:
                assert row["growth"] == pytest.approx(square(x) / before, rel=1e-12)
                assert row["inner"] == pytest.approx(square(x), rel=1e-12)
            before = square(x)

    def check_depth(self, tables: dict[str, DataFrame], loss: Any = None) -> None:
        states = self.states()
        errors = []
        for index, row in enumerate(tables["layers"].to_dict("records")):
            x, y = states[index][self.real], states[index + 1][self.real]
            assert row["layer"] == index + 1
            assert row["step"] == pytest.approx(float(((y - x).norm(dim=-1) / x.norm(dim=-1)).mean()), rel=1e-10)
            cosine = float(((x * y).sum(-1) / x.norm(dim=-1) / y.norm(dim=-1)).mean())
            assert row["cosine"] == pytest.approx(cosine, rel=1e-10)
            assert row["influence"] == pytest.approx(1 - cosine, rel=1e-9)
            if loss is None:
                assert row["loss_removed"] is None
                assert row["loss_merged"] is None
            else:
                bits = float(loss(self.without(index))) / math.log(2)
                assert row["loss_removed"] == pytest.approx(bits, rel=1e-10)
            if index:
                below = states[index - 1]
                instead = (self.layers[index](below) - below)[self.real]
                errors.append(float((instead - (y - x)).norm() / (y - x).norm()))
                assert row["merge_error"] == pytest.approx(errors[-1], rel=1e-10)
            if index and loss is not None:
                bits = float(loss(self.beside(index))) / math.log(2)
                assert row["loss_merged"] == pytest.approx(bits, rel=1e-10)
        (stack,) = tables["stacks"].to_dict("records")
        assert stack["depth"] == len(self.layers)
        assert stack["effective_depth"] == pytest.approx(1 + sum(min(1, error) for error in errors), rel=1e-10)
        for row, (x, y) in zip(tables["sublayers"].to_dict("records"), pairwise(states), strict=True):
            added, skip = square((y - x)[self.real]), square(x[self.real])
            assert row["branch"] == "layer"
            assert row["dependency"] == pytest.approx(added / (added + skip), rel=1e-10)
            normed = [layer_norm(each[self.real], [each.size(-1)]) for each in (x, y)]
            change = (normed[1] - normed[0]).var(-1, correction=0).mean()
            assert row["collapse"] == pytest.approx(float(change), rel=1e-10)
        for row in tables["distances"].to_dict("records"):
            low, high = (states[number][self.real] for number in (row["layer"] - 1, row["layer"] + row["n"] - 1))
            angles = ((low * high).sum(-1) / low.norm(dim=-1) / high.norm(dim=-1)).arccos()
            assert row["distance"] == pytest.approx(float(angles.mean()) / math.pi, rel=1e-8)


def torch_loop(model: Words, padding: Tensor) -> Loop:
    layers = [lambda x, layer=layer: layer(x, src_key_padding_mask=padding) for layer in model.encoder.layers]
    return Loop(model.embed(TOKENS), layers, lambda x: model.out(model.encoder.norm(x)), ~padding)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("as_keywords", [False, True])
def test_torchs_encoder(norm_first: bool, as_keywords: bool) -> None:
    model = Words(norm_first)
    batch = {"tokens": TOKENS, "padding": PADDING} if as_keywords else (TOKENS, PADDING)
    given = {"layers": "encoder.layers.*", "padding": PADDING}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        logits = model(**batch) if as_keywords else model(*batch)
        return cross_entropy(logits[~PADDING], TOKENS[~PADDING])

    sizes = measure.activations(model, batch, **given, epsilon=0.2)
    tables = measure.depth(model, [batch], loss, **given)
    assert set(sizes["side"]) == {"encoder.layers"}
    assert model.training
    model.eval()
    with torch.no_grad():
        loop = torch_loop(model, PADDING)
        loop.check_activations(sizes, 0.2)
        loop.check_depth(tables, lambda logits: cross_entropy(logits[~PADDING], TOKENS[~PADDING]))


@pytest.mark.parametrize("norm_first", [False, True])
def test_gradients_of_torchs_encoder(norm_first: bool) -> None:
    model = Words(norm_first).eval()
    model.out.weight.requires_grad_(False)
    several = [TOKENS, TOKENS[:1]]
    frame = measure.gradients(model, several, loss_on, "encoder.layers.*")
    assert list(frame.columns) == ["side", "layer", "matrix", "norm_of_mean", "mean_of_norms"]
    names = [name for name, each in model.named_parameters() if each.dim() > 1]
    assert len(frame) == len(names)
    for row, name in zip(frame.to_dict("records"), names, strict=True):
        weight = model.get_parameter(name)
        if name == "out.weight":
            assert math.isnan(row["norm_of_mean"])
            continue
        found = [torch.autograd.grad(loss_on(model, tokens), weight)[0] for tokens in several]
        assert row["norm_of_mean"] == pytest.approx(float(sum(found).norm()) / 2, rel=1e-10)
        assert row["mean_of_norms"] == pytest.approx(float(sum(each.norm() for each in found)) / 2, rel=1e-10)
    inside = frame[frame["side"] == "encoder.layers"]
    assert list(inside["layer"].unique()) == [1, 2, 3]
    assert list(inside["matrix"][:4]) == ["self_attn.in_proj_weight", "self_attn.out_proj", "linear1", "linear2"]
    assert frame["layer"].isna().sum() == 2


def test_output_and_update_by_hand() -> None:
    """Noise on the layers' matrices drawn as documented, and Adam's first step, which is lr * sign of the gradient."""
    model = Words(norm_first=True)
    (stack,) = measure.depth(model, TOKENS, loss_on, "encoder.layers.*", lr=1e-3)["stacks"].to_dict("records")
    assert stack["loss"] == pytest.approx(float(loss_on(model.eval(), TOKENS).detach()) / math.log(2), rel=1e-12)
    noisy, moved = Words(norm_first=True).eval(), Words(norm_first=True).eval()
    loss_on(moved, TOKENS).backward()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for matrix in noisy.encoder.layers.parameters():
            if matrix.dim() > 1:
                noise = torch.randn(matrix.shape, generator=draw).double()
                matrix += noise * 0.01 * matrix.square().mean().sqrt()
        for parameter in moved.parameters():
            parameter -= 1e-3 * parameter.grad / (parameter.grad.abs() + 1e-8)
        one, other, after = (each(TOKENS) for each in (model, noisy, moved))
    change = square(layer_norm(other, [WORDS]) - layer_norm(one, [WORDS])) / 0.01**2
    assert stack["output_change"] == pytest.approx(change, rel=1e-6)
    assert stack["model_update"] == pytest.approx(square(after - one) ** 0.5, rel=1e-6)


def test_layers_that_are_not_batch_first_have_masks_that_are_not() -> None:
    model = Words(norm_first=False, batch_first=False)
    frame = measure.activations(model, TOKENS, "encoder.layers.*", ~torch.eye(2, 5).bool())
    assert frame["stream"][0] == pytest.approx(square(model.embed(TOKENS)[torch.eye(2, 5).bool()]))


@pytest.mark.parametrize("kind", ["GPT2Model", "GPT2LMHeadModel"])
def test_hugging_faces_gpt2(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=WORDS, n_embd=DIM, n_layer=LAYERS, n_head=2, n_positions=8)
    model = getattr(transformers, kind)(config).double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    body, pattern = (model.transformer, "transformer.h.*") if kind == "GPT2LMHeadModel" else (model, "h.*")
    batch = {"input_ids": TOKENS}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return model(**batch)[0][:, -1].square().mean()

    sizes = measure.activations(model, batch, pattern)
    tables = measure.depth(model, batch, loss, pattern)
    gradients = measure.gradients(model.eval(), batch, loss, pattern)
    head = model.lm_head if kind == "GPT2LMHeadModel" else nn.Identity()
    with torch.no_grad():
        start = body.wte(TOKENS) + body.wpe(torch.arange(5))

        def layer(block: nn.Module) -> Any:
            def run(x: Tensor) -> Tensor:
                result = block(x)  # causal by itself
                return result if isinstance(result, Tensor) else result[0]

            return run

        loop = Loop(start, [layer(block) for block in body.h], lambda x: head(body.ln_f(x)), torch.ones(2, 5).bool())
        torch.testing.assert_close(loop.end(loop.states()[-1]), model(**batch)[0])
        loop.check_activations(sizes)
        loop.check_depth(tables, lambda output: output[:, -1].square().mean())
    weight = body.h[1].mlp.c_fc.weight
    (expected,) = torch.autograd.grad(loss(model, batch), weight)
    (row,) = gradients[(gradients["layer"] == 2) & (gradients["matrix"] == "mlp.c_fc")].to_dict("records")
    assert row["norm_of_mean"] == pytest.approx(float(expected.norm()), rel=1e-10)
    assert row["side"] == pattern.removesuffix(".*")


@pytest.mark.parametrize("placement", ["postln", "preln_final", "deepnorm", "resi_dual", "realformer", "b2t", "dlcl"])
def test_our_own_stacks(placement: str) -> None:
    """Layer by layer, with the streams that they hand on, and nothing said about what the layers are called."""
    torch.manual_seed(1)
    model = LanguageModel(WORDS, d_model=DIM, nhead=2, num_layers=LAYERS, dropout=0.1, placement=placement).double()
    tables = measure.depth(model, TOKENS)
    sizes = measure.activations(model, TOKENS)
    decoder = model.eval().decoder
    read: list[Tensor] = []
    with torch.no_grad():
        batch, outputs = Batch(causal=True), []
        streams = decoder.remember(outputs, decoder.begin(decoder.embed(TOKENS), batch), batch)
        for layer in decoder.layers:
            read.append(streams.x)
            streams = layer(streams, batch)
            left = streams.x
            streams = decoder.remember(outputs, streams, batch)
        torch.testing.assert_close(decoder.output_projection(decoder.end(streams, batch).x), model(TOKENS))
    assert list(sizes["side"]) == ["decoder"] * (LAYERS + 1)
    assert list(sizes["stream"]) == pytest.approx([square(x) for x in [*read, left]], rel=1e-12)
    assert list(tables["sublayers"]["branch"]) == ["SA", "FF"] * LAYERS
    assert tables["stacks"]["model_update"][0] is None
    assert tables["stacks"]["output_change"][0] > 0


def test_a_users_own_module_with_our_stack() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Encoder(DIM, 2, 2, placement="postln")

        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            return self.body(x, key_padding_mask=padding).sum()

    torch.manual_seed(1)
    model, x = Mine().double(), torch.randn(2, 5, DIM).double()
    batch = {"x": x, "padding": PADDING}
    frame = measure.activations(model, batch, padding=lambda batch, stack: {"encoder": batch["padding"]}[stack])
    states = [x]
    for layer in model.eval().body.layers:
        states.append(run_alone(layer, states[-1]))
    assert list(frame["stream"]) == pytest.approx([square(state[~PADDING]) for state in states], rel=1e-10)


def run_alone(layer: Any, x: Tensor) -> Tensor:
    """Run each sentence by itself, without its padding."""
    y = torch.zeros_like(x)
    with torch.no_grad():
        for row, length in enumerate((~PADDING).sum(1)):
            y[row, :length] = layer(Streams(x[row : row + 1, :length]), Batch()).x[0]
    return y


ARCHITECTURES = ["transformer_postln", "transformer_resi_dual", "transformer_realformer"]
ARCHITECTURES += ["transformer_lm_dlcl", "bert_preln_final"]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_fairseqs_models_have_the_commands_numbers(arch: str) -> None:
    text = synthetic_text(words=40, sentences=60)
    size = ["--dropout=0", "--attention-dropout=0"]
    subject: Subject = from_architecture(f"{arch}_tiny", size, text, 1, layers=2)
    samples = list(batches(text, subject.kind, 2, 40, 1))
    settle(subject, samples)
    inputs = [sample["net_input"] for sample in samples]
    sample_of = {id(each): sample for each, sample in zip(inputs, samples, strict=True)}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        total, tokens, _ = subject.criterion(model, sample_of[id(batch)])
        return total / tokens

    def padding(batch: Any, stack: str) -> Tensor:
        tokens = batch.get("prev_output_tokens", batch["src_tokens"]) if stack == "decoder" else batch["src_tokens"]
        return tokens.eq(1)

    def same(frame: DataFrame, rows: list[dict[str, Any]]) -> None:
        assert frame.astype(object).where(frame.notna(), None).to_dict("records") == rows

    same(measure.gradients(subject.model, inputs, loss), gradient_rows(subject, samples))
    same(measure.activations(subject.model, inputs, padding=padding), activation_rows(subject, samples, 0.1))
    tables = measure.depth(subject.model, inputs, loss, padding=padding)
    for name, rows in depth_tables(subject, samples, 1e-4).items():
        same(tables[name], rows)


def test_a_model_is_left_as_it_was() -> None:
    model = Words(norm_first=False)
    model.encoder.layers[1].eval()
    loss_on(model, TOKENS).backward()
    modes = [module.training for module in model.modules()]
    gradients = [parameter.grad for parameter in model.parameters()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    measure.gradients(model, TOKENS, loss_on, "encoder.layers.*")
    measure.activations(model, TOKENS, "encoder.layers.*")
    measure.depth(model, TOKENS, loss_on, "encoder.layers.*")
    assert [module.training for module in model.modules()] == modes
    assert all(one is other for one, other in zip([p.grad for p in model.parameters()], gradients, strict=True))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.backends.mha.get_fastpath_enabled()


def test_several_stacks_by_their_patterns() -> None:
    model = nn.Transformer(DIM, 2, 2, 3, 12, batch_first=True).double()
    x = torch.randn(2, 5, DIM).double()
    frame = measure.activations(model, (x, x), ["encoder.layers.*", "decoder.layers.*"])
    expected = [("encoder.layers", n) for n in range(3)] + [("decoder.layers", n) for n in range(4)]
    assert list(zip(frame["side"], frame["layer"], strict=True)) == expected


def shared() -> nn.Module:
    model = Words(norm_first=True)
    model.encoder.layers = nn.ModuleList([model.encoder.layers[0]] * 2)
    return model


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        (Words(True), {}, r"`layers` must be given where .*, as encoder.layers.\*, but is None"),
        (Words(True), {"layers": "encoder.layer.*"}, r"as encoder.layers.\*, but is encoder.layer.\*"),
        (Words(True), {"layers": "encoder.layers"}, r"as encoder.layers.\*, but is encoder.layers"),
        (nn.Linear(2, 2), {}, "has no ModuleList"),
        (Words(True), {"layers": "encoder.layers.*", "padding": PADDING[:, :4]}, r"`padding` must be .*\(2, 5\)"),
        (Words(True), {"layers": "encoder.layers.*", "batches": []}, "`batches` must be one batch or more"),
        (shared(), {"layers": "encoder.layers.*"}, "`layers` must be run once each"),
        (nn.ModuleList([LanguageModel(9, d_model=8, nhead=2) for _ in "ab"]), {}, "one encoder and one decoder"),
    ],
)
def test_a_mistake_is_one_sentence(model: nn.Module, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LnplaceError, match=sentence) as raised:
        measure.activations(model, options.pop("batches", TOKENS), **options)
    assert "\n" not in str(raised.value)


def test_neither_fairseq_nor_pandas_is_imported() -> None:
    code = "import sys, fairseq_lnplace.measure as m; print({'fairseq', 'pandas', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
