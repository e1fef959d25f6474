"""What the sides work on: batches of a prepared folder, or of one made up with the demo corpus' lengths."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary, indexed_dataset

from fairseq_lnplace.errors import LnplaceError, must_be

__all__ = ["batches", "made_up"]

Sample = dict[str, Any]

SENTENCES = {"train": 4000, "test": 400}
# The demo corpus' training sentences in pieces of a vocabulary of 4,000, end symbol included: log-normal lengths.
LOG_LENGTH, LOG_LENGTH_DEVIATION = 2.91, 0.53
LOG_RATIO, LOG_RATIO_DEVIATION = -0.10, 0.2  # target to source
LONGEST = 120


def made_up(folder: Path, words: int = 4000) -> Path:
    """Fill an empty folder with a binarised German-English corpus of random words, and return it."""
    dictionary = Dictionary()
    for number in range(words - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    draw = torch.Generator().manual_seed(1)
    for language in ("de", "en"):
        dictionary.save(str(folder / f"dict.{language}.txt"))
    for split, count in SENTENCES.items():
        source = torch.normal(LOG_LENGTH, LOG_LENGTH_DEVIATION, (count,), generator=draw)
        target = source + torch.normal(LOG_RATIO, LOG_RATIO_DEVIATION, (count,), generator=draw)
        for language, log_lengths in (("de", source), ("en", target)):
            path = str(folder / f"{split}.de-en.{language}")
            builder = indexed_dataset.make_builder(path + ".bin", impl="mmap", vocab_size=len(dictionary))
            for length in log_lengths.exp().round().clamp(2, LONGEST).int().tolist():
                sentence = torch.randint(dictionary.nspecial, len(dictionary), (length,), generator=draw)
                sentence[-1] = dictionary.eos()
                builder.add_item(sentence)
            builder.finalize(path + ".idx")
    return folder


def batches(task: Any, split: str, max_tokens: int, count: int) -> list[Sample]:
    """Return the first ``count`` batches of an epoch over a split, as fairseq-train shuffles them.

    Sentences of more than ``max_tokens`` pieces are left out.

    Raises:
        LnplaceError: the folder has no such split, or every sentence is too long.
    """
    try:
        task.load_dataset(split)
    except FileNotFoundError as error:
        raise LnplaceError(
            f"`--data` must be a folder that `lnplace prepare` made, but has no split {split}"
        ) from error
    epoch = task.get_batch_iterator(
        task.dataset(split),
        max_tokens=max_tokens,
        max_positions=utils.resolve_max_positions(task.max_positions(), max_tokens),
        ignore_invalid_inputs=True,
        required_batch_size_multiple=8,
        seed=1,
    ).next_epoch_itr(shuffle=True)
    found = list(islice(epoch, count))
    if not found:
        raise must_be("--max-tokens", f"at least the length of one sentence of {split}", max_tokens)
    return found
