"""From Hydra an architecture is the model that `--arch` builds, and what is given explicitly wins either way."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options as fairseq_options
from fairseq.dataclass.initialize import add_defaults, hydra_init
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.models.roberta import model as roberta
from helpers import KINDS, dictionary, task_of
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import nn

import fairseq_lnplace
from fairseq_lnplace.plugin.models.architectures import TRANSFORMER_SIZES

MODELS = {"translation": "transformer_lnplace", "lm": "transformer_lm_lnplace", "bert": "bert_lnplace"}
KIND_OF = {model: kind for kind, model in MODELS.items()}
ARCHITECTURES = sorted(arch for arch, model in ARCH_MODEL_NAME_REGISTRY.items() if model in KIND_OF)
QUICK = {"transformer_deepnorm_tiny", "bert_postln_tiny", "transformer_lm_postln_tiny"} | {
    f"transformer_postln{suffix}" for suffix in TRANSFORMER_SIZES
}


@pytest.fixture(autouse=True)
def a_clean_hydra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # RoBERTa's initialisation cannot run on the meta device
    monkeypatch.setattr(roberta, "init_bert_params", lambda module: None)
    GlobalHydra.instance().clear()
    yield
    GlobalHydra.instance().clear()


def composed(kind: str, *overrides: str) -> DictConfig:
    """Return what `fairseq-hydra-train` composes of its command line."""
    hydra_init()
    with initialize_config_module("fairseq.config", version_base="1.1"):
        return compose("config", overrides=["task.data=data", f"task={KINDS[kind][0]}", *overrides])


def from_hydra(cfg: DictConfig, kind: str, imported: bool) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model without memory, and the resolved options.

    ``imported``: whether the package is there when fairseq fills in defaults; with `common.user_dir` it comes after.
    """
    if imported:
        add_defaults(cfg)
    cfg = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))
    OmegaConf.set_struct(cfg, True)
    task = task_of(kind, cfg.task, dictionary())
    with torch.device("meta"):
        model = task.build_model(cfg.model)
    return model, resolved(cfg.model, kind)


def from_command_line(kind: str, *argv: str) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model of a `fairseq-train` command, without memory, and the resolved options."""
    parser = fairseq_options.get_training_parser()
    args = fairseq_options.parse_args_and_arch(parser, ["data", "--task", KINDS[kind][0], *argv])
    task = task_of(kind, Namespace(**vars(args)), dictionary())
    with torch.device("meta"):
        return task.build_model(args), resolved(args, kind)


def resolved(cfg: Any, kind: str) -> dict[str, Any]:
    """Return the options that decide the model, but for those that fairseq takes over from the task.

    (None of a model by its own name, which fairseq builds from a copy.)
    """
    if (getattr(cfg, "_name", None) or getattr(cfg, "arch", None)) in MODELS.values():
        return {}
    taken_over = {"_name", "data", "tokens_per_sample", "max_target_positions", "max_source_positions", "tpu"}
    names = [each.name for each in fields(MODEL_DATACLASS_REGISTRY[MODELS[kind]]) if each.name not in taken_over]
    return {name: getattr(cfg, name, None) for name in names}


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def assert_same(one: tuple[nn.Module, dict[str, Any]], other: tuple[nn.Module, dict[str, Any]]) -> None:
    assert shapes(one[0]) == shapes(other[0])
    assert one[0].method == other[0].method
    if hasattr(one[0], "cfg"):
        assert asdict(one[0].cfg) == asdict(other[0].cfg)
    assert plain(one[1]) == plain(other[1])


def plain(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without what differs in kind alone: a list is a list, and False is as good as not given."""
    listed = {n: list(v) if OmegaConf.is_list(v) else v for n, v in options.items()}
    return {name: value or None for name, value in listed.items()}


@pytest.mark.parametrize(
    ("arch", "imported"),
    [(arch, imported) for arch in sorted(QUICK) for imported in (True, False)]
    + [pytest.param(arch, False, marks=pytest.mark.slow) for arch in ARCHITECTURES if arch not in QUICK],
)
def test_every_architecture(arch: str, imported: bool) -> None:
    kind = KIND_OF[ARCH_MODEL_NAME_REGISTRY[arch]]
    cfg = copy.deepcopy(without_model(kind))
    with open_dict(cfg):
        cfg.model = {"_name": arch}
    assert_same(from_hydra(cfg, kind, imported), from_command_line(kind, "--arch", arch))


@cache
def without_model(kind: str) -> DictConfig:
    return composed(kind)


GIVEN = ["encoder_layers=2", "decoder_embed_dim=64", "dropout=0.25", "share_decoder_input_output_embed=true"]


@pytest.mark.parametrize("imported", [True, False], ids=["imported before", "imported after"])
@pytest.mark.parametrize(
    ("overrides", "argv"),
    [
        (["+model._name=transformer_deepnorm_iwslt_de_en"], ["--arch", "transformer_deepnorm_iwslt_de_en"]),
        (
            ["+model._name=transformer_deepnorm_wmt_en_de_big", *(f"+model.{each}" for each in GIVEN)],
            [
                *("--arch", "transformer_deepnorm_wmt_en_de_big", "--encoder-layers", "2", "--decoder-embed-dim", "64"),
                *("--dropout", "0.25", "--share-decoder-input-output-embed"),
            ],
        ),
        (
            ["+model._name=transformer_lnplace", "+model.placement=mixln", "+model.mixln_post_fraction=0.5"],
            ["--arch", "transformer_lnplace", "--placement", "mixln", "--mixln-post-fraction", "0.5"],
        ),
        (
            ["+model._name=transformer_realformer_tiny", "+model.realformer_mean=true", "+model.activation_fn=gelu"],
            ["--arch", "transformer_realformer_tiny", "--realformer-mean", "--activation-fn", "gelu"],
        ),
        (
            [
                "+model._name=transformer_postln_tiny",
                "+model.adaptive_softmax_cutoff=[4,8]",
                "+model.norm_type=rmsnorm",
            ],
            ["--arch", "transformer_postln_tiny", "--adaptive-softmax-cutoff", "4,8", "--norm-type", "rmsnorm"],
        ),
        (
            ["+model._name=transformer_deepnorm_tiny", "+model.encoder_layers_to_keep='0,2'", "+model.init=fairseq"],
            ["--arch", "transformer_deepnorm_tiny", "--encoder-layers-to-keep", "0,2", "--init", "fairseq"],
        ),
        (["+model._name=transformer_lnplace"], ["--arch", "transformer_lnplace"]),
    ],
    ids=lambda value: value[0] if value[0].startswith("+") else "",
)
def test_hydra_and_command_line(overrides: list[str], argv: list[str], imported: bool) -> None:
    hydra = from_hydra(composed("translation", *overrides), "translation", imported)
    assert_same(hydra, from_command_line("translation", *argv))


def test_what_fairseq_train_makes_of_the_command_line() -> None:
    """`fairseq-train` turns its arguments into a Hydra configuration, which fills in a dataclass's defaults."""
    argv = ["--arch", "transformer_deepnorm_wmt_en_de_big", "--encoder-layers", "3", "--dropout", "0.1"]
    parser = fairseq_options.get_training_parser()
    args = fairseq_options.parse_args_and_arch(parser, ["data", "--task", "translation", *argv])
    cfg = convert_namespace_to_omegaconf(args)
    with torch.device("meta"):
        model = task_of("translation", cfg.task, dictionary()).build_model(cfg.model)
    assert_same((model, resolved(cfg.model, "translation")), from_command_line("translation", *argv))
    assert len(model.encoder.layers) == 3
    assert model.encoder.layers[0].fc1.weight.shape == (4096, 1024)
    assert model.encoder.layers[0].dropout_module.p == 0.1


@pytest.mark.slow
def test_fairseq_hydra_train(tmp_path: Path) -> None:
    """Two updates on the toy corpus, by a relative user directory; then `fairseq-generate` reads the checkpoint."""
    toy = Path(__file__).parents[2] / "data" / "toy"
    bin_folder, user_dir = Path(sys.executable).parent, Path(fairseq_lnplace.__file__).parent

    def call(*words: object) -> str:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [str(bin_folder / str(words[0])), *map(str, words[1:])]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout + done.stderr

    for side in ("de", "en"):
        for split in ("train", "valid"):
            lines = (toy / f"{split}.{side}").read_text("utf-8").splitlines()[:40]
            (tmp_path / f"{split}.{side}").write_text("\n".join(lines) + "\n", "utf-8")
    call("fairseq-preprocess", "-s", "de", "-t", "en", "--trainpref=train", "--validpref=valid", "--destdir=bin")
    size = ["encoder_embed_dim=16", "encoder_ffn_embed_dim=24", "encoder_attention_heads=2", "encoder_layers=1"]
    call(
        *("fairseq-hydra-train", f"common.user_dir={os.path.relpath(user_dir, tmp_path)}", "hydra.run.dir=run"),
        *("common.cpu=true", f"task.data={tmp_path}/bin"),
        *("task=translation", "+task.source_lang=de", "+task.target_lang=en", "+model._name=transformer_deepnorm_tiny"),
        *(f"+model.{each}" for each in size),
        *("+lr_scheduler._name=inverse_sqrt_nowarmup", "+optimizer._name=adam", "optimization.lr=[0.001]"),
        *("dataset.max_tokens=800", "optimization.max_update=2", f"checkpoint.save_dir={tmp_path}/checkpoints"),
        *("criterion._name=label_smoothed_cross_entropy", "+criterion.label_smoothing=0.1", "dataset.num_workers=0"),
    )
    state = torch.load(tmp_path / "checkpoints" / "checkpoint_last.pt", weights_only=False)
    assert state["optimizer_history"][-1]["num_updates"] == 2
    weights = state["model"]
    assert weights["encoder.layers.0.fc1.weight"].shape == (24, 16)
    assert weights["decoder.layers.2.fc1.weight"].shape == (24, 16)  # follows the encoder; the preset's three layers
    assert state["cfg"]["model"]["placement"] == "deepnorm"
    out = call(
        *("fairseq-generate", "bin", "--user-dir", user_dir, "--path", "checkpoints/checkpoint_last.pt"),
        *("--gen-subset", "valid", "--cpu", "--max-len-b", "5", "--max-tokens", "800"),
    )
    assert "H-19" in out
