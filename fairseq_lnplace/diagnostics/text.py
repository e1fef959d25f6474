"""The text that is measured on, and batches of it as each kind of model reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import collate_tokens, load_indexed_dataset
from fairseq.data.language_pair_dataset import collate
from torch import Tensor

from fairseq_lnplace.errors import must_be

__all__ = ["Kind", "Text", "batches", "read_text", "synthetic_text"]

Kind = Literal["translation", "lm", "bert"]
MASKED = 0.15  # of BERT's tokens, all of them replaced by the mask
SHORTEST, LONGEST = 5, 25  # words of a synthetic sentence


@dataclass(frozen=True)
class Text:
    """Pairs of sentences as indices, each with the end symbol; monolingual text has the same on both sides."""

    name: str
    source: Dictionary
    target: Dictionary
    pairs: Sequence[tuple[Tensor, Tensor]]


class _Pairs(Sequence[tuple[Tensor, Tensor]]):
    """Two of fairseq's indexed data sets, read as they are asked for."""

    def __init__(self, sources: Any, targets: Any) -> None:
        self.sources, self.targets = sources, targets

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: Any) -> Any:
        return self.sources[index].long(), self.targets[index].long()


def read_text(folder: Path, subset: str = "train") -> Text:
    """Return a split of the folder that ``lnplace prepare`` or ``fairseq-preprocess`` made.

    Raises:
        LnplaceError: the folder holds no such split.
    """
    found = [re.fullmatch(rf"{re.escape(subset)}\.(\w+)-(\w+)\.\1", path.stem) for path in folder.glob("*.idx")]
    if languages := next((match for match in found if match), None):
        source, target = (Dictionary.load(str(folder / f"dict.{language}.txt")) for language in languages.groups())
        prefix = str(folder / languages[0]).removesuffix(languages[1])
        sides = [load_indexed_dataset(prefix + lang, None, None) for lang in languages.groups()]
        return Text(folder.name, source, target, _Pairs(*sides))
    if (folder / "dict.txt").is_file() and (folder / f"{subset}.idx").is_file():
        dictionary = Dictionary.load(str(folder / "dict.txt"))
        sentences = load_indexed_dataset(str(folder / subset), None, None)
        return Text(folder.name, dictionary, dictionary, _Pairs(sentences, sentences))
    raise must_be("--data", f"a folder that `lnplace prepare` made, with a split {subset}", folder)


def synthetic_text(words: int = 2000, sentences: int = 2000, seed: int = 1) -> Text:
    """Return random text: word frequencies by Zipf's law; a target is its source, reversed and renamed."""
    dictionary = Dictionary()
    for number in range(words):
        dictionary.add_symbol(f"word{number}")
    draw = torch.Generator().manual_seed(seed)
    frequency = 1 / torch.arange(1, words + 1)
    renamed = torch.randperm(words, generator=draw) + dictionary.nspecial
    end = torch.tensor([dictionary.eos()])
    pairs = []
    for length in torch.randint(SHORTEST, LONGEST + 1, (sentences,), generator=draw).tolist():
        drawn = torch.multinomial(frequency, length, replacement=True, generator=draw)
        pairs.append((torch.cat([drawn + dictionary.nspecial, end]), torch.cat([renamed[drawn.flip(0)], end])))
    return Text("synthetic text", dictionary, dictionary, pairs)


def batches(text: Text, kind: Kind, count: int, tokens: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield ``count`` batches of random sentences, each of at least ``tokens`` target tokens, as fairseq collates them.

    Text that is too short is gone through again.
    """
    draw = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for _ in range(count):
        drawn: list[tuple[Tensor, Tensor]] = []
        while sum(len(target) for _, target in drawn) < tokens:
            order = order or torch.randperm(len(text.pairs), generator=draw).tolist()
            drawn.append(text.pairs[order.pop()])
        yield _collated(text, kind, drawn, draw)


def _collated(text: Text, kind: Kind, drawn: list[tuple[Tensor, Tensor]], draw: torch.Generator) -> dict[str, Any]:
    """Return a batch in the form that the kind's task gives it."""
    pad, end = text.target.pad(), text.target.eos()
    if kind == "translation":
        samples = [{"id": i, "source": source, "target": target} for i, (source, target) in enumerate(drawn)]
        return collate(samples, pad, end)  # type: ignore[no-any-return]
    sentences = [target for _, target in drawn]
    words = collate_tokens(sentences, pad)
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    if kind == "lm":
        shifted = collate_tokens(sentences, pad, end, move_eos_to_beginning=True)
        inputs, target = {"src_tokens": shifted, "src_lengths": lengths}, words
    else:
        masked = (torch.rand(words.shape, generator=draw) < MASKED) & words.ne(pad)
        masked[0, 0] = True
        inputs = {"src_tokens": words.masked_fill(masked, text.target.index("<mask>")), "src_lengths": lengths}
        target = words.masked_fill(~masked, pad)
    return {"nsentences": len(drawn), "ntokens": int(lengths.sum()), "net_input": inputs, "target": target}
