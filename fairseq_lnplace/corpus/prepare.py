"""Parallel text made ready for fairseq: a joint sentencepiece model, binarised data, raw references beside it.

What a prepared folder holds:

    dict.{de,en}.txt  {train,valid,test}.de-en.{de,en}.{bin,idx}    as ``fairseq-preprocess`` writes them
    sentencepiece.bpe.model                                         the name that ``from_pretrained`` looks for
    raw/{train,valid,test}.{de,en}                                  the text as it was, to score against
    prepared.json                                                   the settings, counts, check sums and versions
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import sentencepiece

from fairseq_lnplace.corpus.pairs import SPLITS
from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.files import new_folder, write_json
from fairseq_lnplace.versions import versions

__all__ = ["MANIFEST", "SENTENCEPIECE", "Settings", "prepare", "read_lines"]

MANIFEST = "prepared.json"
SENTENCEPIECE = "sentencepiece.bpe.model"


@dataclass(frozen=True)
class Settings:
    """What ``prepare`` is asked for; ``train``, ``valid`` and ``test`` are paths without their ``.LANGUAGE``."""

    source_lang: str
    target_lang: str
    train: str
    valid: str
    test: str
    vocab_size: int
    note: str = ""

    def __post_init__(self) -> None:
        for option, language in (("--source-lang", self.source_lang), ("--target-lang", self.target_lang)):
            if not re.fullmatch(r"\w+", language):  # fairseq cuts its file names at "-" and "."
                raise must_be(option, "of letters, digits and underscores only", repr(language))
        if self.source_lang == self.target_lang:
            raise must_be("--target-lang", "another language than --source-lang", repr(self.target_lang))
        if self.vocab_size < 1:
            raise must_be("--vocab-size", "at least 1", self.vocab_size)

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.source_lang, self.target_lang

    def path(self, split: str, language: str) -> Path:
        """Return the text file of a split's side."""
        return Path(f"{getattr(self, split)}.{language}")


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, without their ends.

    Raises:
        LnplaceError: the file is not there, not UTF-8 or empty, or one of its lines is.
    """
    number = 0
    try:
        # Lines end at "\n" alone, as for wc and fairseq; a form feed or U+2028 inside one is white space.
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, 1):
                if "\0" in line:
                    raise LnplaceError(f"Text must be UTF-8, but {path} has a zero byte in line {number}")
                if not (text := line.strip()):
                    raise LnplaceError(f"Every line must hold a sentence, but line {number} of {path} is empty")
                yield text
    except UnicodeDecodeError as error:
        raise LnplaceError(f"Text must be UTF-8, but {path} is not, after line {number}: {error.reason}") from error
    except OSError as error:
        raise LnplaceError(f"{path} cannot be read: {error.strerror}") from error
    if not number:
        raise LnplaceError(f"{path} is empty")


def _count_pairs(settings: Settings, split: str) -> int:
    """Return the number of pairs of a split after looking at every line of both its files."""
    source, target = (sum(1 for _ in read_lines(settings.path(split, language))) for language in settings.languages)
    if source != target:
        raise LnplaceError(
            f"Both sides must have as many lines, but {settings.path(split, settings.source_lang)} has {source} and "
            f"{settings.path(split, settings.target_lang)} has {target}"
        )
    return source


def _train_sentencepiece(lines: Iterator[str], vocab_size: int) -> sentencepiece.SentencePieceProcessor:
    """Train a byte-pair model; the same text gives the same model."""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=1.0,
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        if limit := re.search(r"value <= (\d+)", str(error)):
            raise must_be("--vocab-size", f"at most {limit[1]} for so little text", vocab_size) from error
        if required := re.search(r"required_chars[^\d]*\d+ vs (\d+)", str(error)):
            raise must_be("--vocab-size", f"more than the text's {required[1]} characters", vocab_size) from error
        raise LnplaceError(f"sentencepiece cannot be trained on this text: {str(error).splitlines()[-1]}") from error
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def _encode(model: sentencepiece.SentencePieceProcessor, text: Path, dest: Path) -> Counter[str]:
    """Write a text as pieces with spaces between them, line by line, and return how often each piece occurs."""
    counts: Counter[str] = Counter()
    with dest.open("w", encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(read_lines(text), 1):
            pieces = model.encode(line, out_type=str)
            if not pieces:
                raise LnplaceError(
                    f"Every line must hold a sentence, but line {number} of {text} has only invisible signs"
                )
            counts.update(pieces)
            file.write(" ".join(pieces) + "\n")
    return counts


def _copy(text: Path, dest: Path) -> str:
    """Write the text's lines with plain ends and return the SHA-256 of what was written."""
    sha256 = hashlib.sha256()
    with dest.open("wb") as file:
        for line in read_lines(text):
            encoded = f"{line}\n".encode()
            sha256.update(encoded)
            file.write(encoded)
    return sha256.hexdigest()


def _write_dictionary(path: Path, pieces: Sequence[str], counts: Counter[str]) -> None:
    """Write fairseq's dictionary: every piece that can occur, the most frequent first, as adaptive softmax wants it."""
    ranked = sorted(pieces, key=lambda piece: -counts[piece])
    path.write_text("".join(f"{piece} {counts[piece]}\n" for piece in ranked), encoding="utf-8", newline="\n")


def _binarise(settings: Settings, pieces: Path, dictionary: Path, dest: Path, workers: int) -> None:
    """Run ``fairseq-preprocess`` in this process, and leave neither its log file nor its log handler behind."""
    from fairseq import options
    from fairseq_cli import preprocess

    argv = ["--source-lang", settings.source_lang, "--target-lang", settings.target_lang, "--joined-dictionary"]
    argv += ["--srcdict", str(dictionary), "--destdir", str(dest), "--workers", str(workers)]
    for split in SPLITS:
        argv += [f"--{split}pref", str(pieces / split)]
    logger = logging.getLogger("fairseq_cli.preprocess")
    handlers, level = list(logger.handlers), logger.level
    logger.setLevel(logging.WARNING)
    try:
        preprocess.main(options.get_preprocessing_parser().parse_args(argv))
    finally:
        logger.setLevel(level)
        for handler in set(logger.handlers) - set(handlers):
            logger.removeHandler(handler)
            handler.close()
        (dest / "preprocess.log").unlink(missing_ok=True)  # it would name the temporary folders


def prepare(settings: Settings, dest: Path, workers: int = 1) -> dict[str, Any]:
    """Make ``dest`` out of parallel text and return what its ``prepared.json`` says.

    Raises:
        LnplaceError: something is wrong with the text, the vocabulary's size or ``dest``; nothing is written then.
    """
    pairs = {split: _count_pairs(settings, split) for split in SPLITS}
    with new_folder("--dest", dest) as folder, tempfile.TemporaryDirectory() as scratch:
        texts = chain.from_iterable(read_lines(settings.path("train", language)) for language in settings.languages)
        model = _train_sentencepiece(texts, settings.vocab_size)
        (folder / SENTENCEPIECE).write_bytes(model.serialized_model_proto())

        (folder / "raw").mkdir()
        frequencies: Counter[str] = Counter()
        counts: dict[str, dict[str, int]] = {}
        sums: dict[str, str] = {}
        for split in SPLITS:
            counts[split] = {"pairs": pairs[split]}
            for language in settings.languages:
                name, path = f"{split}.{language}", settings.path(split, language)
                pieces = _encode(model, path, Path(scratch, name))
                counts[split][f"{language} pieces"] = pieces.total()
                if split == "train":
                    frequencies += pieces
                sums[name] = _copy(path, folder / "raw" / name)

        symbols = [model.id_to_piece(i) for i in range(len(model)) if not (model.is_control(i) or model.is_unknown(i))]
        dictionary = Path(scratch, "dict.txt")
        _write_dictionary(dictionary, symbols, frequencies)
        _binarise(settings, Path(scratch), dictionary, folder, workers)
        manifest = {
            "source_lang": settings.source_lang,
            "target_lang": settings.target_lang,
            "vocab_size": settings.vocab_size,
            "note": settings.note,
            "dictionary": len(symbols) + 4,  # fairseq's own <s> <pad> </s> <unk>
            "counts": counts,
            "sha256": sums,
            "versions": versions("fairseq", "sentencepiece"),
        }
        write_json(folder / MANIFEST, manifest)
    return manifest
