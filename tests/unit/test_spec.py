"""The descriptions: every slot has a use, every option an owner, and a method from outside works like ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options as fairseq_options
from helpers import dictionary, task_of, tiny_model
from torch.nn.functional import layer_norm

from fairseq_lnplace import placements
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.layers.streams import Batch, Streams
from fairseq_lnplace.placements.methods import METHODS
from fairseq_lnplace.placements.options import METHOD_OPTIONS, method_options
from fairseq_lnplace.placements.qk_norm import with_qk_norm
from fairseq_lnplace.placements.spec import Gains, Layer, Placement, Position, Scale, Slots
from fairseq_lnplace.plugin.models.architectures import TRANSFORMER_SIZES

NAMES = """postln preln preln_final admin admin_analytic deepnorm realformer resi_dual b2t sandwich subln normformer
rezero tfixup periln mixln lnscaling hybridnorm branchnorm dsinit layerscale dlcl denseformer gpas keel
respostnorm"""
README = Path(__file__).parents[2] / "README.md"

# As the README's section "Add your own placement" has it.
OWN = '''\
from fairseq_lnplace import placements
from fairseq_lnplace.placements.spec import Layer, Placement, Scale, Slots


def inverse_sqrt_sublayers(position, options):
    """One over the square root of the number of sub-layers of the stack."""
    return position.sublayers**-0.5


placements.add(
    Placement(
        name="calm",
        title="Calm Pre-LN",
        citation="You 2026, a note, unpublished",
        layer=Layer.same(Slots(in_norm=True, branch_scale=Scale(inverse_sqrt_sublayers))),
        final_norm=True,
        results="none published",
    )
)
'''


def test_the_names_are_the_designs() -> None:
    assert list(placements.names()) == NAMES.split()


def forms() -> Iterator[Placement]:
    """Yield every method in each of its forms."""
    for method in METHODS:
        yield method
        yield from (method.resolved({method.form_option: form}) for form in method.forms)


def layers() -> Iterator[Layer]:
    for form in forms():
        yield form.layer
        if form.lower_layer is not None:
            yield form.lower_layer


def scales() -> Iterator[Scale]:
    for layer in layers():
        for slots in layer.slots:
            yield from (slots.skip_scale, slots.branch_scale)


@pytest.mark.parametrize("kind", [Slots, Scale, Gains, Placement])
def test_no_slot_stands_unused(kind: type) -> None:
    used: dict[type, list[Any]] = {
        Slots: [slots for layer in (*layers(), with_qk_norm(METHODS[0], "l2").layer) for slots in layer.slots],
        Scale: list(scales()),
        Gains: [form.gains for form in forms()],
        Placement: list(forms()),
    }
    for slot in fields(kind):
        assert len({str(getattr(each, slot.name)) for each in used[kind]}) > 1, slot.name


def test_every_kind_of_scale_is_used_on_skip_or_branch() -> None:
    assert {scale.learned for scale in scales()} == {"no", "vector", "layer"}


def test_every_option_belongs_to_one_method() -> None:
    taken = [name for method in METHODS for name in method.options]
    assert sorted(taken) == sorted(METHOD_OPTIONS)
    for method in METHODS:
        assert not method.form_option or method.form_option in method.options
        scheduled = {s.scheduled for slots in method.layer.slots for s in (slots.skip_scale, slots.branch_scale)}
        assert scheduled - {None} <= set(method.options)


@pytest.mark.parametrize("name", METHOD_OPTIONS)
def test_an_option_without_its_method_is_refused(name: str) -> None:
    flag = "--" + name.replace("_", "-")
    given = {name: METHOD_OPTIONS[name].default or True}
    with pytest.raises(LnplaceError, match=f"`{flag}` must go with the method that takes it"):
        method_options("postln", (), given)
    assert method_options("its own", (name,), given)[name] == given[name]


def test_every_option_reaches_its_method() -> None:
    """A value of an option, and each form, changes a constant, or what a stack or a layer is built from."""
    position = Position("encoder", 2, 6, 6)

    def numbers(method: Placement, **given: Any) -> str:
        options = method_options(method.name, method.options, given)
        form = method.resolved(options)
        gains = (getattr(form.gains, gain.name) for gain in fields(Gains) if gain.name != "cross_attention")
        of_stack = (form.lower_layers, form.mean_scores, form.second_stream, *gains)
        of_layer = [s.start for slots in form.layer.slots for s in (slots.skip_scale, slots.branch_scale)]
        constants = [constant(position, options) for constant in (*of_stack, *of_layer) if constant is not None]
        scheduled = [options[s.scheduled] for slots in form.layer.slots for s in (slots.branch_scale,) if s.scheduled]
        built = [form.at(replace(position, layer=layer), options) for layer in (1, 2)]
        return f"{constants} {scheduled} {form.history} {form.embedding_norm} {built}"

    def others(name: str) -> list[Any]:
        option = METHOD_OPTIONS[name]
        if option.choices:
            return [choice for choice in option.choices if choice != option.default]
        return [True if option.kind is bool else 7 if option.kind is int else 0.9]

    for method in METHODS:
        for name in method.options:
            if name not in ("admin_profile_batches", "denseformer_dilation", "denseformer_period"):  # the stack's own
                found = {numbers(method), *(numbers(method, **{name: value}) for value in others(name))}
                assert len(found) == 1 + len(others(name)), name


def test_an_unknown_placement_is_told_the_names() -> None:
    with pytest.raises(LnplaceError, match=r"`--placement` must be one of postln, .*, but is sideways"):
        placements.get("sideways")


def test_architectures_exist_for_every_placement_and_size() -> None:
    from fairseq.models import ARCH_MODEL_REGISTRY

    for name in placements.names():
        assert {f"transformer_{name}{suffix}" for suffix in TRANSFORMER_SIZES} <= ARCH_MODEL_REGISTRY.keys()


# ----------------------------------------------------------------------------------------------- a method from outside


@pytest.fixture
def _own_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placements, "_PLACEMENTS", dict(placements._PLACEMENTS))
    exec(OWN, {})


COMMAND = """data --task translation --arch transformer_lnplace --placement calm --encoder-embed-dim 8
--encoder-ffn-embed-dim 12 --encoder-attention-heads 2 --decoder-attention-heads 2 --encoder-layers 3
--decoder-layers 2 --dropout 0"""


@pytest.mark.usefixtures("_own_placement")
def test_a_method_from_outside_is_built_and_computes_its_equation() -> None:
    args = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), COMMAND.split())
    model = task_of("translation", args, dictionary()).build_model(args).double()
    layer = model.encoder.layers[1]
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    seen: list[torch.Tensor] = []
    layer.self_attn.register_forward_hook(lambda module, args, output: seen.extend([args[0], output[0]]))
    actual = layer(Streams(x), Batch()).x
    attention_input, attended = seen
    h = x + attended / 6**0.5
    torch.testing.assert_close(attention_input, layer_norm(x, [8]))
    torch.testing.assert_close(actual, h + layer.fc2(layer.fc1(layer_norm(h, [8])).relu()) / 6**0.5)
    assert model.decoder.layer_norm is not None
    (identity,) = (tensor for name, tensor in model.state_dict().items() if name.startswith("placement"))
    assert bytes(identity.tolist()).startswith(b"calm ")


@pytest.mark.usefixtures("_own_placement")
def test_a_name_is_given_once() -> None:
    with pytest.raises(LnplaceError, match="`calm` must be a new name, but is a placement already"):
        exec(OWN, {})


@pytest.mark.usefixtures("_own_placement")
def test_a_method_from_outside_is_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from fairseq_lnplace.cli import main

    assert main(["list", "--json"]) == main(["show", "calm", "--decoder-layers", "2", "--json"]) == 0
    out = capsys.readouterr().out
    assert len(re.findall('"name": "calm"', out)) == 2
    assert "x ← x + λ·CA(LN(x))" in out
    assert "One over the square root of the number of sub-layers of the stack" in out
    assert "0.40824829" in out


def test_fairseq_finds_a_method_in_a_user_dir(tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "calm" / "__init__.py").write_text(OWN, "utf-8")
    program = f"""
import json
from argparse import Namespace
from fairseq import options
argv = {COMMAND.split()!r} + ["--user-dir", {str(tmp_path / "calm")!r}]
args = options.parse_args_and_arch(options.get_training_parser(), argv)
print(json.dumps([args.arch, args.placement]))
"""
    environment = os.environ | {"PYTHONPATH": str(README.parent), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(result.stdout.splitlines()[-1]) == ["transformer_lnplace", "calm"]


def test_the_readme_shows_the_method_that_is_tested_here() -> None:
    if not README.exists():
        pytest.skip("no README yet")
    assert f"```python\n{OWN}```" in README.read_text("utf-8")


@pytest.mark.parametrize("placement", ["admin", "tfixup"])
def test_the_authors_gains_go_on_an_xavier_start(placement: str) -> None:
    """fairseq's own start has the gain of 1/sqrt(2) by itself."""
    with pytest.raises(LnplaceError, match=f"`--init` must be xavier with --{placement}-form authors"):
        tiny_model(placement, init="fairseq", **{f"{placement}_form": "authors"})
