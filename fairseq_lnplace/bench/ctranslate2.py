"""``lnplace bench ctranslate2``: the same weights and batches in stock fairseq, here and in CTranslate2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from fairseq import utils
from fairseq.dataclass.configs import GenerationConfig

from fairseq_lnplace.bench.data import batches
from fairseq_lnplace.bench.generate import Hypotheses, same_text
from fairseq_lnplace.bench.processes import apart
from fairseq_lnplace.bench.setting import Setting
from fairseq_lnplace.bench.sides import STOCK
from fairseq_lnplace.bench.timing import compared, in_turn
from fairseq_lnplace.errors import must_be
from fairseq_lnplace.evaluation import Translator
from fairseq_lnplace.export.ctranslate2 import ctranslate2, to_ctranslate2
from fairseq_lnplace.export.stock import to_fairseq

__all__ = ["bench_ctranslate2"]

Search = Callable[[], list[Hypotheses]]

MAX_LEN_A, MAX_LEN_B = 1.2, 10  # a translation has at most A times the batch's longest source and B pieces


def bench_ctranslate2(setting: Setting, checkpoint: Path | None, beam: int = 5) -> list[dict[str, Any]]:
    """Return a row for each side, stock first: see :func:`.compared`, and :func:`.same_text`.

    Args:
        setting: what all benchmarks share; ``data`` is needed.
        checkpoint: of a model of ours that stock fairseq and CTranslate2 have, too.
        beam: the hypotheses that are kept.

    Raises:
        LnplaceError: the checkpoint has no such equal, or does not fit the data.
    """
    if checkpoint is None:
        raise must_be("--checkpoint", "given, to compare with CTranslate2", "left out")
    if (data := setting.data) is None:
        raise must_be("--data", "given, to compare with CTranslate2", "left out")
    with TemporaryDirectory() as scratch:
        stock, folder = Path(scratch, "stock.pt"), Path(scratch, "ctranslate2")
        to_fairseq(checkpoint, stock)
        to_ctranslate2(checkpoint, folder, data)
        builds = {
            STOCK: partial(by_fairseq, stock, data, setting, beam),
            "fairseq_lnplace": partial(by_fairseq, checkpoint, data, setting, beam),
            "CTranslate2": partial(by_ctranslate2, folder, stock, data, setting, beam),
        }
        found = {name: build()() for name, build in builds.items()}
        with apart(builds, setting.clock) as works:
            seconds = in_turn(works, setting.rounds)
    return [
        {
            "side": name,
            **figures,
            "sentences_per_second": len(found[name]) / figures["seconds"],
            **same_text(found[STOCK], found[name]),
        }
        for name, figures in compared(seconds, STOCK).items()
    ]


def by_fairseq(checkpoint: Path, data: Path, setting: Setting, beam: int) -> Search:
    """Return the search that ``fairseq-generate`` would make."""
    model = Translator.load(checkpoint, data, cpu=setting.clock.device.type == "cpu")
    options = GenerationConfig(beam=beam, max_len_a=MAX_LEN_A, max_len_b=MAX_LEN_B)
    generator = model.task.build_generator([model.model], options)
    samples = batches(model.task, "test", setting.max_tokens, setting.batches)
    samples = [utils.move_to_cuda(sample) for sample in samples] if model.device != "cpu" else samples

    def search() -> list[Hypotheses]:
        return [each for sample in samples for each in model.task.inference_step(generator, [model.model], sample)]

    return search


def by_ctranslate2(folder: Path, stock: Path, data: Path, setting: Setting, beam: int) -> Search:
    """Return CTranslate2's search, with the model in ``folder``, of the same batches and longest translations.

    ``stock`` is read for its task; a model of ours would set up the heap.

    Its scores are a little higher: where no translation may end, it shares the end's probability out among the pieces.
    """
    threads = {"inter_threads": 1, "intra_threads": setting.threads}
    device = setting.clock.device.type
    translator = ctranslate2().Translator(str(folder), device=device, compute_type="float32", **threads)
    task = Translator.load(stock, data, cpu=True).task
    source, target = task.source_dictionary, task.target_dictionary
    left_out = {source.pad(), source.eos()}  # CTranslate2 adds them by itself
    work = []
    for sample in batches(task, "test", setting.max_tokens, setting.batches):
        tokens = sample["net_input"]["src_tokens"]
        pieces = [[source[index] for index in row if index not in left_out] for row in tokens.tolist()]
        options = {"max_decoding_length": int(MAX_LEN_A * tokens.size(1) + MAX_LEN_B), "beam_size": beam}
        work.append((pieces, options))

    def best(result: Any) -> Hypotheses:
        tokens = torch.tensor([*map(target.index, result.hypotheses[0]), target.eos()])
        return [{"tokens": tokens, "score": result.scores[0]}]

    def search() -> list[Hypotheses]:
        return [
            best(result)
            for pieces, options in work
            for result in translator.translate_batch(pieces, return_scores=True, **options)
        ]

    return search
