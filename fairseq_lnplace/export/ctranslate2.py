"""A checkpoint of this package's as a model of CTranslate2's, by CTranslate2's own converter of stock fairseq's."""

from __future__ import annotations

import os
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import torch

from fairseq_lnplace.checkpoints import options
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.export.stock import StockModel, stock_model
from fairseq_lnplace.files import new_folder

__all__ = ["ctranslate2", "to_ctranslate2"]

# stock's kind of model -> CTranslate2's class that runs it
READERS = {"transformer": "Translator", "transformer_lm": "Generator"}
# What stock has and the converter passes over in silence, or stumbles over: an option, or part of a weight's name.
MISSING = {
    "cross_self_attention": "its decoder's self-attention reads the encoder's output, too",
    "no_cross_attention": "its decoder reads no encoder",
    ".quant_noise.": "quantisation noise put a matrix after its embeddings",
    ".adaptive_softmax.": "its output is an adaptive softmax",
}


def ctranslate2() -> ModuleType:
    """Return the package.

    Raises:
        LnplaceError: it is not installed.
    """
    try:
        return import_module("ctranslate2")
    except ImportError as error:
        raise LnplaceError("CTranslate2 is not installed; `pip install ctranslate2` brings it") from error


def to_ctranslate2(checkpoint: Path, output: Path, data: Path | None = None, quantization: str | None = None) -> str:
    """Write the folder of a model of CTranslate2's with the same outputs; return what it is, in words.

    Args:
        checkpoint: of a translation or language model of ours.
        output: the folder; must not exist yet, or be empty.
        data: the folder of the dictionaries; by default the one that the model was trained on.
        quantization: what CTranslate2 calls so (int8, float16, …), for the weights; by default float32.

    Raises:
        LnplaceError: stock fairseq or CTranslate2 has no such model, or CTranslate2 is not installed.
    """
    package = ctranslate2()
    types = package.specs.model_spec.ACCEPTED_MODEL_TYPES
    if quantization not in (None, *types):
        raise must_be("--quantization", f"one of {', '.join(types)}", quantization)
    with new_folder("--output", output) as partial, TemporaryDirectory() as scratch:
        stock = stock_model(checkpoint)
        check(stock)
        args = arguments(stock)
        folder = data or Path(str(args.data).split(os.pathsep)[0])  # of several folders fairseq's is the first, too
        if not any(folder.glob("dict*.txt")):
            raise must_be("--data", "the folder with the model's dictionaries", folder)
        path = Path(scratch, "stock.pt")
        torch.save({"args": args, "model": stock.weights}, path)
        converter = package.converters.FairseqConverter(str(path), str(folder))
        try:
            with torch.serialization.safe_globals([Namespace]):  # the converter lets torch load plain containers only
                converter.convert(str(partial), quantization=quantization, force=True)
        except (ValueError, RuntimeError, OSError) as error:
            reason = " ".join(str(error).split())[:300]
            raise LnplaceError(f"CTranslate2 cannot convert {checkpoint}: {reason}") from error
    return f"a model for CTranslate2's `{READERS[stock.kind.stock]}`, in {quantization or 'float32'}"


def check(stock: StockModel) -> None:
    """Check what the converter does not check by itself.

    Raises:
        LnplaceError: CTranslate2 has no such model.
    """
    name = stock.kind.stock
    if name not in READERS:
        raise must_be("checkpoint", "of a translation or language model for CTranslate2", f"of stock's `{name}`")
    for part, reason in MISSING.items():
        if stock.options.get(part) or any(part in weight for weight in stock.weights):
            raise LnplaceError(f"CTranslate2 has no equivalent of this checkpoint: {reason}")
    projected = [f"decoder.project_{way}_dim.weight" in stock.weights for way in ("in", "out")]
    if any(projected) and not all(projected):
        raise LnplaceError("CTranslate2 has no equivalent of this checkpoint: it projects its decoder's one end only")


def arguments(stock: StockModel) -> Namespace:
    """Return the options of the model and its task as one command line's: all that the converter reads."""
    task, name = options(stock.state, "task"), stock.kind.stock
    return Namespace(
        **{**stock.options, **task, "_name": name, "arch": name, "task": task.get("task") or task["_name"]}
    )
