"""BLEU of a trained model without each of its layers, and with each evaluated beside the one before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch import nn

from fairseq_lnplace.corpus.lines import read_lines
from fairseq_lnplace.diagnostics.tables import Row
from fairseq_lnplace.errors import must_be
from fairseq_lnplace.evaluation import Decoding, Translator
from fairseq_lnplace.measure.stacks import stacks_of
from fairseq_lnplace.measure.surgery import merged, removed
from fairseq_lnplace.scoring import score

__all__ = ["bleu_rows"]


def operations(
    stacks: Mapping[str, Sequence[nn.Module]],
) -> Iterator[tuple[str | None, int | None, str, AbstractContextManager[None]]]:
    """Yield the stack, the layer from 1, what is done, and how; at first nothing."""
    yield None, None, "whole", nullcontext()
    for side, layers in stacks.items():
        for index, layer in enumerate(layers):
            yield side, index + 1, "removed", removed(layer)
            if index:
                yield side, index + 1, "merged", merged(layers[index - 1], layer)


def bleu_rows(checkpoint: Path, data: Path, subset: str, decoding: Decoding) -> list[Row]:
    """Return sacreBLEU's score, with its signature, of the whole model and after each operation on a layer.

    Raises:
        LnplaceError: the checkpoint does not translate, or ``data`` holds no such split with its raw text.
    """
    translator = Translator.load(checkpoint, data, decoding.cpu)
    references = data / "raw" / f"{subset}.{translator.task.cfg.target_lang}"
    if not references.is_file():
        raise must_be("--bleu", "a split whose raw text `lnplace prepare` kept", f"{references}, which is not there")
    truth = list(read_lines(references))
    rows: list[Row] = []
    for side, layer, what, operation in operations(stacks_of(translator.model)):
        with operation:
            translations = translator.detokenise(translator.translate(subset, decoding))
        bleu = score(translations, truth, translator.words.lowercase)["bleu"]
        rows.append({"side": side, "layer": layer, "what": what, "bleu": bleu["score"], "signature": bleu["signature"]})
    return rows
