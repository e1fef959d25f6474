"""A checkpoint knows its placement, norm types, depths and constants: another model refuses it by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from every_placement import ALL, built, outputs
from helpers import KINDS, arguments, tiny_task
from torch import Tensor

from fairseq_lnplace import placements
from fairseq_lnplace.averaging import average
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.placements.stock import IDENTITY
from fairseq_lnplace.plugin.models.method import described


def weights(placement: str, kind: str = "translation", **options: Any) -> dict[str, Tensor]:
    state = built(placement, kind, **options).state_dict()
    return {name: tensor.clone() for name, tensor in state.items()}


@pytest.mark.parametrize(("kind", "placement"), ALL)
def test_only_stocks_own_carry_no_name(kind: str, placement: str) -> None:
    state = weights(placement, kind)
    if placement in ("postln", "preln_final"):
        assert IDENTITY not in state
    else:
        assert described(state[IDENTITY]).split()[0] == placement


@pytest.mark.parametrize("kind", KINDS)
def test_every_placement_refuses_every_other(kind: str) -> None:
    states = {name: weights(name, kind) for name in placements.names()}
    for name in placements.names():
        model = built(name, kind)
        before = {each: parameter.clone() for each, parameter in model.named_parameters()}
        for other, state in states.items():
            if other == name:
                continue
            with pytest.raises(LnplaceError) as error:
                model.load_state_dict(dict(state), strict=True)
            told = str(error.value)
            assert told.startswith(f"`checkpoint` must be trained as '{name}")
            assert f"is trained as '{other}" in told
            assert "\n" not in told
        assert all(torch.equal(before[each], parameter) for each, parameter in model.named_parameters())
        model.load_state_dict(dict(states[name]), strict=True)


@pytest.mark.parametrize(
    ("placement", "options", "others", "told"),
    [
        ("deepnorm", {}, {"decoder_layers": 3}, "'deepnorm layernorm layernorm 3+3'"),
        ("deepnorm", {}, {"encoder_layers": 6}, "'deepnorm layernorm layernorm 6+2'"),
        ("postln", {}, {"norm_type": "rmsnorm"}, "'postln rmsnorm rmsnorm 3+2'"),
        ("preln_final", {"norm_type": "batchnorm"}, {}, "'preln_final'"),
        ("preln_final", {}, {"norm_type": "instancenorm"}, "'preln_final instancenorm layernorm 3+2'"),
        ("resi_dual", {}, {"resi_dual_scale": 0.05}, "'resi_dual layernorm layernorm 3+2 resi_dual_scale=0.05'"),
        ("realformer", {}, {"realformer_mean": True}, "'realformer layernorm layernorm 3+2 realformer_mean=True'"),
        ("dlcl", {}, {"dlcl_form": "post"}, "'dlcl layernorm layernorm 3+2 dlcl_form=post'"),
        ("layerscale", {}, {"layerscale_init": 0.5}, "'layerscale layernorm layernorm 3+2 layerscale_init=0.5'"),
    ],
)
def test_other_constants_and_norms_are_refused(
    placement: str, options: dict[str, Any], others: dict[str, Any], told: str
) -> None:
    with pytest.raises(LnplaceError, match="must be trained as") as error:
        built(placement, **options).load_state_dict(weights(placement, **others), strict=True)
    assert str(error.value).endswith(f"but is trained as {told}")


def test_other_depths_of_a_method_without_constants_are_refused_too() -> None:
    with pytest.raises(LnplaceError, match="`checkpoint` must fit the model, but does not: "):
        built("postln").load_state_dict(weights("postln", decoder_layers=3), strict=True)
    with pytest.raises(LnplaceError, match="`checkpoint` must fit the model, but does not: "):
        built("postln", decoder_layers=3).load_state_dict(weights("postln"), strict=True)


def test_other_kinds_of_models_are_refused() -> None:
    for kind, other in (("translation", "lm"), ("lm", "translation"), ("bert", "translation"), ("lm", "bert")):
        with pytest.raises(LnplaceError):
            built("admin", kind).load_state_dict(weights("admin", other), strict=True)


def test_overrides_of_an_architecture_contradict_it() -> None:
    """`--model-overrides "{'placement': 'postln'}"`: the saved architecture says otherwise."""
    args = arguments("transformer_admin")
    args.placement = "postln"
    with pytest.raises(LnplaceError, match="`--placement` must be admin with --arch transformer_admin, but is postln"):
        tiny_task().build_model(args)


@pytest.mark.parametrize("placement", ["deepnorm", "resi_dual"])
def test_averaging_refuses_other_constants(placement: str, tmp_path: Path) -> None:
    """The weights would fit: only the name that the checkpoint carries tells them apart."""
    options = {"resi_dual": {"resi_dual_scale": 0.5}, "deepnorm": {"encoder_layers": 3, "decoder_layers": 2}}
    cfg = {"model": {"_name": f"transformer_{placement}", "placement": placement}}
    states = [weights(placement), weights(placement, seed=2, **options[placement])]
    if placement == "deepnorm":
        text = described(states[1][IDENTITY]).replace("3+2", "9+2")
        states[1][IDENTITY] = torch.tensor(list(text.encode()), dtype=torch.uint8)
    for number, state in enumerate(states):
        torch.save({"cfg": cfg, "model": state}, tmp_path / f"{number}.pt")
    with pytest.raises(LnplaceError, match=r"All checkpoints must be of one model, but .*1\.pt") as error:
        average([tmp_path / "0.pt", tmp_path / "1.pt"], tmp_path / "mean.pt")
    assert f"{placement} layernorm layernorm" in str(error.value)
    assert not (tmp_path / "mean.pt").exists()


def test_an_average_loads_and_says_what_it_is(tmp_path: Path) -> None:
    cfg = {"model": {"_name": "transformer_admin", "placement": "admin"}}
    for number in range(2):
        model = built("admin", seed=number)
        outputs(model)
        torch.save({"cfg": cfg, "model": model.state_dict()}, tmp_path / f"{number}.pt")
    average([tmp_path / "0.pt", tmp_path / "1.pt"], tmp_path / "mean.pt")
    state = torch.load(tmp_path / "mean.pt")["model"]
    model = built("admin", seed=5)
    model.load_state_dict(dict(state), strict=True)
    assert described(state[IDENTITY]).startswith("admin layernorm layernorm 3+2")
    kept = model.state_dict()
    outputs(model.train())  # the measured profile is averaged, not measured again
    name = "encoder.layers.1.fc1.weight"
    assert torch.equal(kept[name], state[name])
    skip = "encoder.layers.1.final_layer_norm.profiled_skip"
    assert torch.equal(model.state_dict()[skip], state[skip])


def test_how_admin_was_measured_is_no_other_method() -> None:
    model = built("admin", "translation", admin_profile_batches=3)
    model.load_state_dict(weights("admin"), strict=True)
