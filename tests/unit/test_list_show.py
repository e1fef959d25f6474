"""What `lnplace list` and `lnplace show` say is what the layers do.

The equations are run as they are printed and compared with the layers, the parameters with a tiny model's.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny_model as fresh_model
from torch import Tensor, nn

from fairseq_lnplace import placements
from fairseq_lnplace.cli import main
from fairseq_lnplace.commands import list_
from fairseq_lnplace.descriptions.describe import describe, short_citation, summary
from fairseq_lnplace.descriptions.diagram.drawing import draw_columns
from fairseq_lnplace.descriptions.diagram.pen import Pen
from fairseq_lnplace.descriptions.parameters import extra_parameters
from fairseq_lnplace.layers.dropout import Dropout
from fairseq_lnplace.layers.residual import Residual
from fairseq_lnplace.layers.spec import LayerSpec
from fairseq_lnplace.layers.streams import Streams
from fairseq_lnplace.placements import equation
from fairseq_lnplace.placements.at_depth import Depth, slots_of
from fairseq_lnplace.placements.options import method_options
from fairseq_lnplace.placements.spec import Placement, Position, Slots

METHODS = pytest.mark.parametrize("name", placements.names())
OTHER_FORMS: list[tuple[str, dict[str, Any]]] = [
    ("resi_dual", {"resi_dual_scale": 0.3}),
    ("mixln", {"mixln_post_fraction": 0.5}),
    ("dlcl", {"dlcl_form": "post"}),
    ("denseformer", {"denseformer_dilation": 2, "denseformer_period": 2}),
    ("normformer", {"normformer_resscale": True}),
    ("periln", {"periln_form": "plain_embedding"}),
    ("hybridnorm", {"hybridnorm_form": "star"}),
    ("hybridnorm", {"hybridnorm_form": "full_width"}),
    ("keel", {"keel_form": "uniform"}),
]
FORMS = pytest.mark.parametrize(
    ("name", "given"),
    [pytest.param(name, {}, id=name) for name in placements.names()]
    + [pytest.param(*form, id=f"{form[0]}-{next(iter(form[1].values()))}") for form in OTHER_FORMS],
)
SIDES = pytest.mark.parametrize("side", ["encoder", "decoder"])
PYTHON = str.maketrans({"←": "=", "·": "*", "⊙": "*", "−": "-"})
# Built once for all tests, none of which minds the values of the parameters, or the depth.
tiny_model = cache(fresh_model)
at_base_depth = cache(lambda name, **given: describe(name, given=given))
README = Path(__file__).parents[2] / "README.md"


def form_of(name: str, **given: Any) -> tuple[Placement, dict[str, Any]]:
    method = placements.get(name)
    options = method_options(name, method.options, given)
    return method.resolved(options), options


def layer_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def run(lines: list[str], names: dict[str, Any]) -> dict[str, Any]:
    """Run assignments as they are printed."""
    for line in lines:
        exec(line.translate(PYTHON), names)
    return names


# ---------------------------------------------------------------------------------------------------- the equations


def residual_of(placement: Placement, options: dict[str, Any], slots: Slots, position: Position) -> Residual:
    residual = Residual(LayerSpec(placement, options, position, "layernorm"), 4, slots, Dropout(0.0))
    for parameter in (residual.skip_scale, residual.branch_scale):
        if parameter is not None:
            nn.init.normal_(parameter)
    if residual.profiled_skip is not None:
        residual.profiled_skip.fill_(1.7)
    return residual.double()


@FORMS
@SIDES
def test_the_printed_update_is_what_the_residual_connection_does(name: str, given: dict[str, Any], side: Any) -> None:
    placement, options = form_of(name, **given)
    torch.manual_seed(1)
    for layer in (1, 5):
        position = Position(side, layer, 6, 6)
        for branch, slots in zip(equation.BRANCHES, placement.at(position, options).slots, strict=True):
            residual = residual_of(placement, options, slots, position)
            x, layer_input, r = torch.randn(3, 2, 3, 4, dtype=torch.float64)
            matrix = torch.randn(4, 4, dtype=torch.float64)
            shared = torch.randn(1, dtype=torch.float64)
            start = residual.profiled_skip if slots.skip_scale.profiled else slots.skip_scale.start(position, options)
            learned = slots.branch_scale.learned
            own = {"no": 0.0, "layer": shared, "vector": residual.branch_scale}[learned]
            values = run(
                equation.update(placement, slots, branch),
                {
                    **{
                        "x": x,
                        "x_in": layer_input,
                        "r": r,
                        "LN": layer_norm,
                        branch: lambda h, w=matrix: (h @ w).tanh(),
                    },
                    **{"SiLU": nn.functional.silu, "stop": Tensor.detach, "g": shared},
                    "c": slots.in_scale(position, options),
                    "α": slots.skip_scale.start(position, options),
                    "ω": 0.0 if residual.skip_scale is None else start + residual.skip_scale,
                    "λ": slots.branch_scale.start(position, options) + own,
                    "λt": residual.progress,
                    "s": residual.second_scale,
                },
            )
            h = (residual.enter(x, None) @ matrix).tanh()
            second = r if placement.second_stream is not None else None
            actual = residual.leave(Streams(x, second), h, padding=None, layer_input=layer_input, scale=shared)
            torch.testing.assert_close(values["x"], actual.x)
            if actual.second is not None:
                torch.testing.assert_close(values["r"], actual.second)


class Matrix:
    """W in "W·h": a matrix that multiplies from the left."""

    def __init__(self, linear: nn.Linear) -> None:
        self.weight = linear.weight

    def __mul__(self, h: Tensor) -> Tensor:
        return h @ self.weight.T


def heads_of(causal: bool) -> Callable[..., Tensor]:
    """Return two heads of 4 features each, side by side."""

    def heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        hidden = torch.ones(q.size(1), k.size(1), dtype=torch.bool).triu(1) & causal
        out = []
        for columns in (slice(0, 4), slice(4, 8)):
            scores = q[..., columns] @ k[..., columns].transpose(1, 2) / 2
            out.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[..., columns])
        return torch.cat(out, -1)

    return heads


USUAL = {
    "SA": "SA(h) = W_o·heads(W_q·h, W_k·h, W_v·h)",
    "CA": "CA(h) = W_o·heads(W_q·h, W_k·m, W_v·m)",
    "FFN": "FFN(h) = W_2·φ(W_1·h)",
}


@FORMS
@SIDES
def test_the_printed_sublayers_are_what_the_layers_compute(name: str, given: dict[str, Any], side: str) -> None:
    """In the first layer of each kind."""
    placement, options = form_of(name, **given)
    top = getattr(tiny_model(name, **given), side).layers[-1].spec.position
    for first, _ in equation.layer_ranges(placement, options, top):
        printed_sublayers_are_computed(placement, options, fresh_model(name, **given).double(), side, first - 1)


def printed_sublayers_are_computed(
    placement: Placement, options: dict[str, Any], model: Any, side: str, number: int
) -> None:
    layer = getattr(model, side).layers[number]
    modules = {"SA": layer.self_attn, "CA": getattr(layer, "encoder_attn", None), "fc1": layer.fc1, "fc2": layer.fc2}
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Any] = {}

    def note(key: str, module: nn.Module, args: Any, output: Any) -> None:
        inputs[key], outputs[key] = args[0], output

    for key, module in modules.items():
        if getattr(module, "head_scale", None) is not None:
            nn.init.normal_(module.head_scale)
        if module is not None:
            module.register_forward_hook(partial(note, key))
    tokens = torch.arange(4, 10).view(2, 3)
    memory = model.encoder(tokens, torch.tensor([3, 3]))["encoder_out"][0].transpose(0, 1)
    model(tokens, torch.tensor([3, 3]), tokens)
    inputs["FFN"], outputs["FFN"] = inputs["fc1"], [outputs["fc2"]]

    slots = placement.at(layer.spec.position, options)
    for branch, each in slots_of(slots, Depth().branches(side)):
        names: dict[str, Any] = {"h": inputs[branch], "m": memory, "LN": layer_norm, "φ": torch.relu}
        names["LN_h"] = lambda x: layer_norm(x.unflatten(-1, (2, 4))).flatten(-2)
        names["heads"] = heads_of(causal=branch == "SA" and side == "decoder")
        if branch == "FFN":
            names |= {"W_1": Matrix(layer.fc1), "W_2": Matrix(layer.fc2)}
        else:
            names |= {f"W_{role}": Matrix(getattr(modules[branch], f"{role}_proj")) for role in "qkv"}
            names["W_o"] = Matrix(modules[branch].out_proj)
            if each.head_scale:
                names["γ"] = (1 + modules[branch].head_scale).repeat_interleave(4)
        formula = [*equation.inside(placement, each, branch), USUAL[branch]][0].split(" = ")[1]
        torch.testing.assert_close(eval(formula.translate(PYTHON), names), outputs[branch][0])


@FORMS
def test_the_stack_is_described_as_it_is_built(name: str, given: dict[str, Any]) -> None:
    stack = tiny_model(name, **given).encoder
    parts = {part["part"]: part["lines"] for part in at_base_depth(name, **given)["equations"]["encoder"]}
    assert ("LN(e)" in parts["start"][0]) == (stack.embedding_norm is not None)
    assert ("LN(" in parts["end"][0]) == (stack.layer_norm is not None)
    assert ("r ← s·x" in parts["start"]) == (stack.second_scale != 0) == ("LN(r)" in parts["end"][0])
    assert ("inputs" in parts) == (stack.history is not None)
    chained = any("+ S" in line for line in parts.get("where", []))
    assert chained == stack.layers[0].self_attn.residual_scores


def test_layers_that_differ_are_told_apart() -> None:
    parts = describe("mixln", Depth(8, 3), {"mixln_post_fraction": 0.5})["equations"]
    assert [part["part"] for part in parts["encoder"]] == ["start", "layers 1–4", "layers 5–8", "end"]
    assert [part["part"] for part in parts["decoder"]] == ["start", "layer 1", "layers 2–3", "end"]
    assert "CA" not in str(describe("mixln", Depth(0, 3))["equations"])
    keel = describe("keel", Depth(6, 1))["equations"]
    assert [part["part"] for part in keel["encoder"]] == ["start", "layer 1", "layers 2–6", "end"]
    assert [part["part"] for part in keel["decoder"]] == ["start", "layer 1", "end"]
    assert keel["decoder"][1]["lines"] == [f"x ← x + {branch}(LN(x))" for branch in ("SA", "CA", "FFN")]
    assert keel["encoder"][2]["lines"] == [f"x ← LN(α·x + {branch}(LN(x)))" for branch in ("SA", "FFN")]


def test_forms_and_variants_are_shown_as_they_are_chosen() -> None:
    assert "LNₗ(Σₖ W[l,k]·yₖ)" in str(describe("dlcl", given={"dlcl_form": "post"})["equations"])
    assert "softmax(S/l)" in str(describe("realformer", given={"realformer_mean": True})["equations"])
    assert "softmax(S)" in str(describe("realformer")["equations"])


# ------------------------------------------------------------------------------------- constants, parameters, sources


def values(name: str, depth: Depth, kind: str = "constants", **given: Any) -> dict[str, list[float]]:
    (row,) = describe(name, depth, given)[kind]
    return row["values"]


@pytest.mark.parametrize(
    ("name", "depth", "kind", "encoder", "decoder"),
    [
        ("deepnorm", Depth(12, 6), "constants", 1.6862, 2.0598),
        ("deepnorm", Depth(12, 6), "initialisation", 0.4179, 0.3433),
        ("admin_analytic", Depth(6, 12), "constants", 2.0170, 3.0408),
        ("subln", Depth(12, 6), "initialisation", 1.7498, 1.7001),
    ],
)
def test_constants_are_the_papers(name: str, depth: Depth, kind: str, encoder: float, decoder: float) -> None:
    by_side = values(name, depth, kind)
    assert by_side["encoder"] == pytest.approx([encoder] * depth.encoder_layers, abs=6e-5)
    assert by_side["decoder"] == pytest.approx([decoder] * depth.decoder_layers, abs=6e-5)


def test_constants_of_one_stack_and_by_layer() -> None:
    # KEEL's first layer has no constant, and its sub-layers count
    assert values("keel", Depth(6, 6)) == {"encoder": [12] * 5, "decoder": [18] * 5}
    assert values("keel", Depth(6, 1)) == {"encoder": [12] * 5}
    assert values("keel", Depth(6, 6), keel_form="uniform") == {"encoder": [12] * 6, "decoder": [18] * 6}
    assert values("deepnorm", Depth(0, 12)) == {"decoder": pytest.approx([2.2134] * 12, abs=6e-5)}
    assert values("lnscaling", Depth(4, 1))["encoder"] == pytest.approx([1, 0.7071, 0.57735, 0.5], abs=6e-5)
    assert values("layerscale", Depth(2, 30)) == {"encoder": [0.1] * 2, "decoder": [1e-6] * 30}
    assert values("layerscale", Depth(1, 1), layerscale_init=0.5)["encoder"] == [0.5]
    assert values("rezero", Depth(1, 1)) == {"encoder": [0.0], "decoder": [0.0]}
    assert describe("postln")["constants"] == []


@METHODS
def test_every_constant_has_a_name_a_meaning_and_a_source(name: str) -> None:
    about = at_base_depth(name)
    text = str(about["equations"])
    for row in about["constants"]:
        assert row["symbol"] in text
        assert row["meaning"]
    by_depth = [row for row in about["constants"] if len({v for each in row["values"].values() for v in each}) > 1]
    assert all(row["source"] for row in [*by_depth, *about["initialisation"]])


USUAL_NAMES = r"(_proj|\.fc\d)\.(weight|bias)$|\.(embed_\w+\.\w+|version)$|output_projection"


@FORMS
@pytest.mark.parametrize(("kind", "depth"), [("translation", Depth(3, 2)), ("lm", Depth(0, 3))])
def test_parameter_names_and_shapes_are_the_models(name: str, given: dict[str, Any], kind: str, depth: Depth) -> None:
    sizes = {"H": 2, "d": 8, "f": 12, "d/H": 4}
    expected = {
        re.sub(r"\.\d+\.", ".*.", key): tuple(tensor.shape)
        for key, tensor in tiny_model(name, kind, **given).state_dict().items()
        if not re.search(USUAL_NAMES, key)
    }
    shown = describe(name, depth, given)["parameters"]
    (identity,) = [key for key in shown if key.startswith("placement")] or [None]
    assert (identity is None) == (name in ("postln", "preln_final"))
    assert (shown.pop(identity, None) is None) == (expected.pop(identity, None) is None)
    assert {key: tuple(sizes.get(n) or int(n) for n in shape.split(" × ")) for key, shape in shown.items()} == expected


def count(formula: str, layers: int) -> int:
    sizes = {"": 1, "d": 8, "f": 12, "H": 2, "d/H": 4, "(L+1)²": (layers + 1) ** 2}
    sizes["L(L+3)/2"] = layers * (layers + 3) // 2
    sizes["Σ(⌊l/k⌋+1)"] = sum(row // 2 + 1 for row in range(2, layers + 1, 2))  # k = p = 2
    terms = re.findall(r"([+−])(\d*)(\(L\+1\)²|L\(L\+3\)/2|Σ\(⌊l/k⌋\+1\)|d/H|[dfH]?)(?: |$)", formula)
    assert formula == "0" or len(terms) == len(formula.split()), formula
    return sum((1 if sign == "+" else -1) * int(number or 1) * sizes[size] for sign, number, size in terms)


@FORMS
def test_extra_parameters_add_up(name: str, given: dict[str, Any]) -> None:
    extra = extra_parameters(*form_of(name, **given))
    total = sum(parameter.numel() for parameter in tiny_model(name, **given).parameters())
    postln = sum(parameter.numel() for parameter in tiny_model("postln").parameters())
    layers = 0
    for side, depth in (("encoder", 3), ("decoder", 2)):
        usual = extra[f"{side}_layer"]
        layers += count(extra.get(f"{side}_first_layer", usual), depth) + (depth - 1) * count(usual, depth)
    assert total - postln == layers + count(extra["stack"], 3) + count(extra["stack"], 2)


def test_a_first_layer_of_its_own_is_counted_by_itself() -> None:
    by_itself = {name for name in placements.names() if "encoder_first_layer" in extra_parameters(placements.get(name))}
    assert by_itself == {"keel"}
    keel = {"encoder_layer": "+4d", "encoder_first_layer": "0", "decoder_layer": "+6d", "decoder_first_layer": "0"}
    assert extra_parameters(placements.get("keel")) == {**keel, "stack": "0"}
    star = extra_parameters(form_of("hybridnorm", hybridnorm_form="star")[0])
    assert (star["encoder_first_layer"], star["encoder_layer"]) == ("+6d/H", "−2d +6d/H")
    assert (star["decoder_first_layer"], star["decoder_layer"]) == ("+12d/H", "−2d +12d/H")


def test_stock_equivalents() -> None:
    folded = ", once its factors are folded into the neighbouring weights (lnplace export)"
    apart = ", the initialisation apart"
    post, before = "--arch transformer", " --encoder-normalize-before --decoder-normalize-before"
    equivalents = {name: at_base_depth(name)["stock_equivalent"] for name in placements.names()}
    assert equivalents == {
        **dict.fromkeys(placements.names()),
        "postln": post,
        "preln_final": post + before,
        "admin": post + folded,
        "admin_analytic": post + folded,
        "deepnorm": post + apart + folded,
        "dsinit": post + apart,
        "branchnorm": post + folded,
        "layerscale": post + before + folded,
        "lnscaling": post + before + folded,
    }
    assert {name for name in equivalents if at_base_depth(name)["stock_obstacle"]} == {
        name for name, flags in equivalents.items() if flags is None
    }


def test_stock_equivalents_depend_on_the_model_and_the_depth() -> None:
    def at(name: str, *depth: int) -> tuple[str | None, str | None]:
        about = describe(name, Depth(*depth))
        return about["stock_equivalent"], about["stock_obstacle"]

    before = " --encoder-normalize-before --decoder-normalize-before"
    assert at("preln", 6, 6) == (None, "stock's Pre-LN encoder always ends with a norm")
    flags = "--arch transformer_lm --decoder-normalize-before --no-decoder-final-norm"
    assert at("preln", 0, 6) == (flags, None)
    assert at("postln", 6, 0) == ("--arch roberta", None)
    assert at("mixln", 6, 6) == (None, "some of its sub-layers are Post-LN and some Pre-LN")
    assert at("mixln", 3, 3) == ("--arch transformer" + before, None)  # a quarter of three layers is none


def test_short_citations() -> None:
    assert short_citation("Xie et al. 2023, ResiDual, with a comma, 2304.14802") == "Xie et al. 2023, 2304.14802"
    assert short_citation("admin-torch, Liu et al. 2020, 2004.08249") == "Liu et al. 2020, 2004.08249"
    for name in placements.names():
        assert re.fullmatch(r".+ \d{4}, (\d{4}\.\d{5}|ICML 2020)", short_citation(placements.get(name).citation)), name


@pytest.mark.parametrize(
    ("name", "norms"),
    [
        ("postln", "add"),
        ("preln", "in"),
        ("preln_final", "in, final"),
        ("keel", "first layer in, others in+add"),
        ("subln", "SA/FFN in+inner, CA in, final"),
        ("hybridnorm", "SA/CA qkv+add, FFN none, final"),
        ("mixln", "lower layers add, upper layers in, final"),
        ("periln", "in+out, embedding, final"),
        ("dlcl", "in, layers, final"),
        ("denseformer", "in, final"),
        ("tfixup", "none"),
    ],
)
def test_where_norms_stand(name: str, norms: str) -> None:
    assert summary(placements.get(name))["norms"] == norms


def test_models_options_and_words() -> None:
    about = describe("mixln")
    assert about["models"] == ["encoder-decoder", "decoder-only", "encoder-only"]
    assert [option["flag"] for option in about["options"]] == ["--mixln-post-fraction"]
    assert about["options"][0]["default"] == 0.25
    assert about["our_extension"] == placements.get("mixln").extension


# --------------------------------------------------------------------------------------------------------- the diagram


class RecordingPen(Pen):
    """Notes what is drawn instead of drawing."""

    def __init__(self) -> None:
        self.__dict__.update(boxes=[], adds=0, lines=[], texts=[])

    def box(self, x: float, y: float, kind: str, text: str, width: float = 0) -> None:
        self.boxes.append((kind, text, x, y))

    def add(self, x: float, y: float) -> None:
        self.__dict__["adds"] += 1

    def line(self, *points: Any, **style: Any) -> None:
        self.lines.append(points)

    def frame(self, *edges: float, faint: bool = False) -> None:
        pass

    def text(self, x: float, y: float, text: str, **style: Any) -> None:
        self.texts.append(text)


@FORMS
def test_the_diagram_shows_what_the_equations_say(name: str, given: dict[str, Any]) -> None:
    placement, options = form_of(name, **given)
    pen = RecordingPen()
    draw_columns(pen, placement, options, Depth())
    text = "\n".join(
        line
        for parts in at_base_depth(name, **given)["equations"].values()
        for part in parts
        if part["part"] != "inputs"
        for line in part["lines"]
    )
    inputs = 2 * 2 if placement.history in ("pre", "post") else 0  # before a layer and at the end, of two stacks
    on_qkv = text.count("heads(LN(") + text.count("heads(LN_h(")  # three norms each, in one box
    norm_boxes = sum(kind == "norm" for kind, *_ in pen.boxes)
    assert norm_boxes == len(re.findall(r"LN(?:_h)?\(", text)) - 2 * on_qkv + inputs
    by_head = sum("each head" in said for kind, said, *_ in pen.boxes if kind == "norm")
    assert by_head == text.count("heads(LN_h(")
    for symbol in ("α·", "ω ⊙", "c·", "λ ⊙", "λ·", "λₜ·", "γ ⊙", "s·", "SiLU(g)"):
        drawn = symbol.removeprefix("SiLU(").strip("·⊙ )")
        if symbol in text:
            assert sum(box[:2] == ("scale", drawn) for box in pen.boxes) == text.count(symbol), symbol
    assert pen.adds == len(re.findall(r"\bx \+ |\br \+ ", text))


def test_what_is_drawn_does_not_overlap() -> None:
    for name, given in [*((name, {}) for name in placements.names()), *OTHER_FORMS]:
        pen = RecordingPen()
        draw_columns(pen, *form_of(name, **given), Depth())
        places = [(x, y) for _, _, x, y in pen.boxes]
        for index, (x, y) in enumerate(places):
            for other_x, other_y in places[:index]:
                assert abs(x - other_x) > 1 or abs(y - other_y) >= 0.55, name


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_draw_writes_the_same_picture_twice(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / f"1.{kind}", tmp_path / f"2.{kind}"
    for path in (first, second):
        assert main(["show", "mixln", "--draw", str(path)]) == 0
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(b"\x89PNG" if kind == "png" else b"<?xml")
    assert sorted(tmp_path.iterdir()) == [first, second]


# -------------------------------------------------------------------------------------------------------- the commands


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 0
    return capsys.readouterr().out


def test_list_json_has_every_placement(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(printed(capsys, "list", "--json"))
    assert [row["name"] for row in rows] == list(placements.names())
    assert all(row["results"] and row["norms"] and row["citation"] for row in rows)


@pytest.mark.parametrize("columns", [80, 120])
def test_list_fits_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = printed(capsys, "list")
    assert max(map(len, text.splitlines())) <= columns
    for name in placements.names():
        assert re.search(rf"^ *{name} ", text, re.M), name
    assert ("Published results" in text) == (columns == 120)


def test_list_markdown_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in printed(capsys, "list", "--markdown").splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(placements.names())
    assert {line.count("|") for line in lines} == {len(list_.HEADS) + 1}


def test_the_readme_has_the_table() -> None:
    if not README.exists():
        pytest.skip("no README yet")
    table = list_.markdown([summary(placements.get(name)) for name in placements.names()])
    assert f"<!-- lnplace list -->\n{table}\n<!-- /lnplace list -->" in README.read_text("utf-8")


@METHODS
def test_show_prints_everything(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "show", name)
    about = at_base_depth(name)
    assert about["citation"] in re.sub(r"\s+", " ", text)
    for part in about["equations"]["decoder"]:
        for line in part["lines"]:
            assert line.split(";")[0] in text
    for parameter in about["parameters"]:
        assert parameter.removesuffix(".bias") in text


def test_show_json_is_the_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed(capsys, "show", "b2t", "--json")) == at_base_depth("b2t")


def test_show_takes_depths_and_the_methods_options(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "show", "lnscaling", "--encoder-layers", "100", "--decoder-layers", "0")
    assert "encoder: 1, 0.707107, 0.57735, 0.5, 0.447214, 0.408248, 0.377964, …, 0.1" in text
    assert "decoder: " not in text
    about = json.loads(printed(capsys, "show", "resi_dual", "--resi-dual-scale", "0.05", "--json"))
    assert about["constants"][0]["values"]["encoder"] == [0.05] * 6


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["nothing"], "`what` must be schedule or one of postln, preln, "),
        (["postln", "--encoder-layers", "-1"], "`--encoder-layers` must be at least 0, but is -1"),
        (["postln", "--encoder-layers", "0", "--decoder-layers", "0"], "`--encoder-layers` must be at least 1 where"),
        (["postln", "--draw", "x.pdf"], "`--draw` must be a file that ends in svg or png, but is x.pdf"),
        (["mixln", "--mixln-post-fraction", "2"], "`--mixln-post-fraction` must be between 0.0 and 1.0, but is 2.0"),
        (["mixln", "--mixln-post-fraction", "nan"], "`--mixln-post-fraction` must be between 0.0 and 1.0, but is nan"),
    ],
)
def test_mistakes_are_told_in_one_sentence(argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", *argv]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"lnplace: {sentence}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_an_interruption_ends_it_without_a_word() -> None:
    script = """
from fairseq_lnplace import cli
from fairseq_lnplace.commands import list_

def run(args):
    raise KeyboardInterrupt

list_.run = run
cli.main(["list"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
