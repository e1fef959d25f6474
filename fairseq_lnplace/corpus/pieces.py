"""From words to pieces: byte-pair encoding, learnt from the text, by the two libraries that fairseq reads.

* ``sentencepiece`` works on raw text and marks where a word begins; ``--remove-bpe sentencepiece`` undoes it.
* ``subword_nmt`` (Sennrich et al. 2016) is what the papers used, on tokenised text; it marks with ``@@`` that a word
  goes on, and ``--remove-bpe`` alone undoes it. sentencepiece learns the same faster, but from another count (pieces,
  not merges) and in a form that fairseq's ``--bpe subword_nmt`` does not read.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import TypeAlias

import sentencepiece
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from fairseq_lnplace.errors import LnplaceError, must_be

__all__ = ["PIECES", "Pieces", "Sentencepiece", "SubwordNMT"]


class Sentencepiece:
    """A sentencepiece model of type ``bpe``; its size counts pieces, single characters included."""

    FILE = "sentencepiece.bpe.model"

    def __init__(self, model: bytes) -> None:
        self._model = sentencepiece.SentencePieceProcessor(model_proto=model)

    @classmethod
    def learn(cls, lines: Iterable[str], size: int) -> Sentencepiece:
        """Train on raw text.

        Raises:
            LnplaceError: the size is impossible for this text.
        """
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=model,
                model_type="bpe",
                vocab_size=size,
                character_coverage=1.0,
                num_threads=1,
                minloglevel=2,
            )
        except (RuntimeError, OSError) as error:
            if limit := re.search(r"value <= (\d+)", str(error)):
                raise must_be("--vocab-size", f"at most {limit[1]} for so little text", size) from error
            if required := re.search(r"required_chars[^\d]*\d+ vs (\d+)", str(error)):
                raise must_be("--vocab-size", f"more than the text's {required[1]} characters", size) from error
            why = str(error).splitlines()[-1]
            raise LnplaceError(f"sentencepiece cannot be trained on this text: {why}") from error
        return cls(model.getvalue())

    @classmethod
    def load(cls, folder: Path) -> Sentencepiece:
        """Read the model of a prepared folder."""
        return cls((folder / cls.FILE).read_bytes())

    def save(self, folder: Path) -> None:
        """Write the model file."""
        (folder / self.FILE).write_bytes(self._model.serialized_model_proto())

    def encode(self, line: str) -> list[str]:
        """Return the pieces of a line of raw text."""
        return list(self._model.encode(line, out_type=str))

    def symbols(self, counts: Counter[str]) -> list[str]:
        """Return every piece of the model, seen in the training text or not."""
        model = self._model
        return [model.id_to_piece(i) for i in range(len(model)) if not (model.is_control(i) or model.is_unknown(i))]


class SubwordNMT:
    """subword-nmt's merge operations; its size counts merges, as in the papers' "10K"."""

    FILE = "bpecodes"

    def __init__(self, codes: str) -> None:
        self._codes = codes
        self._bpe = BPE(io.StringIO(codes))

    @classmethod
    def learn(cls, lines: Iterable[str], size: int) -> SubwordNMT:
        """Learn merges from words, those of pairs that occur at least twice.

        Raises:
            LnplaceError: the text has fewer merges than asked for.
        """
        codes = io.StringIO()
        counted = Counter(word for line in lines for word in line.split())
        rows = (f"{word} {count}" for word, count in counted.items())
        # A text without two letters side by side is a ValueError; what goes to stderr is a progress bar.
        with suppress(ValueError), redirect_stderr(io.StringIO()):
            learn_bpe(rows, codes, size, is_dict=True)
        found = codes.getvalue().count("\n") - 1  # the first line names the version
        if found < size:
            raise must_be("--vocab-size", f"at most {found} for so little text", size)
        return cls(codes.getvalue())

    @classmethod
    def load(cls, folder: Path) -> SubwordNMT:
        """Read the merges of a prepared folder."""
        return cls((folder / cls.FILE).read_text(encoding="utf-8"))

    def save(self, folder: Path) -> None:
        """Write the merges."""
        (folder / self.FILE).write_text(self._codes, encoding="utf-8", newline="\n")

    def encode(self, line: str) -> list[str]:
        """Return the pieces of a line of words."""
        return str(self._bpe.process_line(line)).split()

    def symbols(self, counts: Counter[str]) -> list[str]:
        """Return the pieces of the training text, as ``fairseq-preprocess`` does; others are unknown."""
        return sorted(counts)


Pieces: TypeAlias = Sentencepiece | SubwordNMT

PIECES: dict[str, type[Pieces]] = {"sentencepiece": Sentencepiece, "subword_nmt": SubwordNMT}
