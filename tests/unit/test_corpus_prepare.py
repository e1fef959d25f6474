import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from sacremoses import MosesTokenizer

from fairseq_lnplace.cli import main
from fairseq_lnplace.corpus.encoding import Encoding, read_manifest
from fairseq_lnplace.corpus.lines import read_lines
from fairseq_lnplace.corpus.prepare import Settings, prepare
from fairseq_lnplace.errors import LnplaceError

TOY = Path(__file__).parents[2] / "data" / "toy"


def settings(folder: Path = TOY, vocab_size: int = 200, **other: Any) -> Settings:
    splits = {split: str(folder / split) for split in ("train", "valid", "test")}
    return Settings(**{"source_lang": "de", "target_lang": "en", **splits, **other}, vocab_size=vocab_size)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("prepared") / "toy"
    prepare(settings(), dest)
    return dest


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A small corpus of one's own to spoil."""
    folder = tmp_path / "text"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        for language in ("de", "en"):
            lines = (TOY / f"{split}.{language}").read_text(encoding="utf-8").splitlines(keepends=True)[:20]
            (folder / f"{split}.{language}").write_text("".join(lines), encoding="utf-8")
    return folder


def test_what_fairseq_reads_is_the_text(prepared: Path) -> None:
    from fairseq.data import Dictionary, data_utils

    for language in ("de", "en"):
        dictionary = Dictionary.load(str(prepared / f"dict.{language}.txt"))
        for split in ("train", "valid", "test"):
            dataset = data_utils.load_indexed_dataset(str(prepared / f"{split}.de-en.{language}"), dictionary)
            read = [dictionary.string(dataset[i], bpe_symbol="sentencepiece") for i in range(len(dataset))]
            assert read == (TOY / f"{split}.{language}").read_text(encoding="utf-8").splitlines()


def test_raw_text_dictionary_and_manifest(prepared: Path) -> None:
    for split in ("train", "valid", "test"):
        for language in ("de", "en"):
            assert (prepared / "raw" / f"{split}.{language}").read_bytes() == (TOY / f"{split}.{language}").read_bytes()
    assert (prepared / "dict.de.txt").read_bytes() == (prepared / "dict.en.txt").read_bytes()
    entries = [line.rsplit(" ", 1) for line in (prepared / "dict.de.txt").read_text(encoding="utf-8").splitlines()]
    frequencies = [int(count) for _, count in entries]
    assert frequencies == sorted(frequencies, reverse=True)
    manifest = json.loads((prepared / "prepared.json").read_text())
    assert manifest["vocab_size"] == 200
    assert manifest["dictionary"] == len(entries) + 4
    assert manifest["counts"]["valid"]["pairs"] == 20
    assert manifest["counts"]["train"]["de pieces"] + manifest["counts"]["train"]["en pieces"] == sum(frequencies)
    assert manifest["sha256"]["test.de"] == hashlib.sha256((TOY / "test.de").read_bytes()).hexdigest()
    assert not (prepared / "preprocess.log").exists()


def test_the_same_text_gives_the_same_bytes(prepared: Path, tmp_path: Path) -> None:
    prepare(settings(), tmp_path / "again")
    files = [path.relative_to(prepared) for path in sorted(prepared.rglob("*")) if path.is_file()]
    assert len(files) == 2 + 1 + 12 + 6 + 1
    for file in files:
        assert (tmp_path / "again" / file).read_bytes() == (prepared / file).read_bytes(), file


def spoil(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "train.de",
            b"only one line\n",
            "Both sides must have as many lines, but .*train.de has 1 and .*train.en has 20",
        ),
        ("valid.en", b"", r"valid.en is empty"),
        ("test.de", b"one\n \t\nthree\n", "Every line must hold a sentence, but line 2 of .*test.de is empty"),
        ("train.en", "Grüße\n".encode("latin-1"), "Text must be UTF-8, but .*train.en is not, after line 0"),
        ("train.en", "Grüße\n".encode("utf-16"), "Text must be UTF-8, but .*train.en is not"),
        ("train.en", b"zero\0byte\n", "Text must be UTF-8, but .*train.en has a zero byte in line 1"),
    ],
)
def test_faulty_text_is_refused_and_nothing_written(text: Path, name: str, content: bytes, message: str) -> None:
    spoil(text, name, content)
    with pytest.raises(LnplaceError, match=message):
        prepare(settings(text), text.parent / "out" / "dest")
    assert [path.name for path in text.parent.iterdir()] == ["text"]


def test_a_line_of_invisible_signs_is_refused_and_nothing_written(text: Path) -> None:
    lines = (text / "test.de").read_text(encoding="utf-8").splitlines()
    spoil(text, "test.de", "\n".join(["\N{ZERO WIDTH SPACE}", *lines[1:]]).encode())
    with pytest.raises(LnplaceError, match=r"line 1 of .*test.de has only invisible signs"):
        prepare(settings(text), text.parent / "dest")
    assert [path.name for path in text.parent.iterdir()] == ["text"]


def test_a_missing_file_is_told(text: Path) -> None:
    (text / "valid.de").unlink()
    with pytest.raises(LnplaceError, match=r"valid.de cannot be read: No such file"):
        prepare(settings(text), text.parent / "dest")


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (10**6, "`--vocab-size` must be at most [0-9]+ for so little text, but is 1000000"),
        (20, "`--vocab-size` must be more than the text's [0-9]+ characters, but is 20"),
        (0, "`--vocab-size` must be at least 1, but is 0"),
    ],
)
def test_an_impossible_vocabulary_is_refused_and_nothing_written(tmp_path: Path, size: int, message: str) -> None:
    with pytest.raises(LnplaceError, match=message):
        prepare(settings(vocab_size=size), tmp_path / "dest")
    assert not list(tmp_path.iterdir())


def test_the_largest_vocabulary_named_is_possible(tmp_path: Path, text: Path) -> None:
    with pytest.raises(LnplaceError) as caught:
        prepare(settings(text, vocab_size=10**6), tmp_path / "dest")
    limit = int(str(caught.value).split("at most ")[1].split()[0])
    prepare(settings(text, vocab_size=limit), tmp_path / "dest")


def test_languages_that_fairseq_could_not_tell_apart_are_refused() -> None:
    with pytest.raises(LnplaceError, match="`--source-lang` must be of letters"):
        settings(source_lang="de-DE")
    with pytest.raises(LnplaceError, match="`--target-lang` must be another language"):
        settings(target_lang="de")


def test_odd_white_space_line_ends_and_a_byte_order_mark(text: Path) -> None:
    lines = (text / "train.de").read_text(encoding="utf-8").splitlines()
    lines[1] = "Mit\u2028Zeilentrenner,\x0cSeitenvorschub,\x85NEL und\rWagenrücklauf."
    spoil(text, "train.de", b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert next(read_lines(text / "train.de")) == lines[0]
    dest = text.parent / "dest"
    prepare(settings(text), dest)
    kept = (dest / "raw" / "train.de").read_bytes().decode().split("\n")
    assert kept == [*lines, ""]

    from fairseq.data import Dictionary, data_utils

    dictionary = Dictionary.load(str(dest / "dict.de.txt"))
    dataset = data_utils.load_indexed_dataset(str(dest / "train.de-en.de"), dictionary)
    assert len(dataset) == 20
    read = dictionary.string(dataset[1], bpe_symbol="sentencepiece")
    assert read.split() == ["Mit", "Zeilentrenner,", "Seitenvorschub,NEL", "und", "Wagenrücklauf."]


def test_the_command_prints_counts_and_leaves_an_existing_folder_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "prepare",
        "--source-lang",
        "de",
        "--target-lang",
        "en",
        "--vocab-size",
        "150",
        "--dest",
        str(tmp_path / "d"),
    ]
    argv += [word for split in ("train", "valid", "test") for word in (f"--{split}", str(TOY / split))]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert "train: 460 pairs" in out
    assert err == ""
    before = sorted(tmp_path.rglob("*"))
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert err.startswith("lnplace: `--dest` must be a new or empty folder")
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_words_and_merges_as_in_the_papers(tmp_path: Path) -> None:
    from fairseq.data import Dictionary, data_utils

    words = {"bpe": "subword_nmt", "tokeniser": "moses", "lowercase": True}
    prepare(settings(vocab_size=90, **words), tmp_path / "moses")
    for language in ("de", "en"):
        moses = MosesTokenizer(language)
        dictionary = Dictionary.load(str(tmp_path / "moses" / f"dict.{language}.txt"))
        for split in ("train", "valid", "test"):
            dataset = data_utils.load_indexed_dataset(str(tmp_path / "moses" / f"{split}.de-en.{language}"), dictionary)
            read = [dictionary.string(dataset[i], bpe_symbol="@@ ") for i in range(len(dataset))]
            raw = (TOY / f"{split}.{language}").read_text(encoding="utf-8").splitlines()
            assert read == [moses.tokenize(line, return_str=True).lower() for line in raw]
            assert (tmp_path / "moses" / "raw" / f"{split}.{language}").read_text(encoding="utf-8").splitlines() == raw
            kept = tmp_path / "moses" / "tokenised" / f"{split}.{language}"
            assert kept.exists() == (split != "train")
            assert not kept.exists() or kept.read_text(encoding="utf-8").splitlines() == read
    assert len((tmp_path / "moses" / "bpecodes").read_text(encoding="utf-8").splitlines()) == 91
    manifest = read_manifest(tmp_path / "moses")
    assert manifest["encoding"] == {**words, "split_hyphens": False}
    assert Encoding.of(manifest) == Encoding(vocab_size=90, **words)


def test_a_folder_that_version_0_1_made_is_sentencepiece_on_raw_text() -> None:
    assert Encoding.of({"vocab_size": 7, "note": "x"}) == Encoding(vocab_size=7, bpe="sentencepiece", note="x")
    with pytest.raises(LnplaceError, match=r"toy was not made by lnplace: prepared.json cannot be read"):
        read_manifest(TOY)


def test_limits_drop_training_pairs_by_their_pieces(text: Path) -> None:
    """Words of one letter are one piece each, as nothing can be merged."""
    for split in ("train", "valid", "test"):
        pairs = [("a b", "c d e"), ("a b", "c d e f"), ("a b c d e", "f g h i j"), ("a b c d e f", "a b c d e f")]
        for language, lines in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
            (text / f"{split}.{language}").write_text("\n".join((*lines, "ab ab")) + "\n")
    limits = {"bpe": "subword_nmt", "vocab_size": 1, "max_pieces": 5, "max_ratio": 1.5}
    manifest = prepare(settings(text, **limits), text.parent / "dest")
    assert manifest["counts"]["train"] == {"pairs": 3, "dropped": 2, "de pieces": 2 + 5 + 2, "en pieces": 3 + 5 + 2}
    assert manifest["counts"]["valid"] == {"pairs": 5, "de pieces": 2 + 2 + 5 + 6 + 2, "en pieces": 3 + 4 + 5 + 6 + 2}
    assert (text.parent / "dest/raw/train.de").read_text() == "a b\na b c d e\nab ab\n"
    assert (text.parent / "dest/raw/train.en").read_text() == "c d e\nf g h i j\nab ab\n"
    assert manifest["sha256"]["train.de"] == hashlib.sha256(b"a b\na b c d e\nab ab\n").hexdigest()
    with pytest.raises(LnplaceError, match="No training pair is within --max-pieces and --max-ratio, of 5"):
        prepare(settings(text, **{**limits, "max_pieces": 1}), text.parent / "none")
    assert not (text.parent / "none").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bpe": "fastbpe"}, "`--bpe` must be sentencepiece or subword_nmt, but is fastbpe"),
        ({"tokeniser": "spacy"}, "`--tokeniser` must be none or moses, but is spacy"),
        ({"max_ratio": 0.5}, "`--max-ratio` must be at least 1, but is 0.5"),
        ({"max_ratio": float("nan")}, "`--max-ratio` must be at least 1, but is nan"),
        ({"max_pieces": 0}, "`--max-pieces` must be at least 1, but is 0"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LnplaceError, match=message):
        settings(**options)
