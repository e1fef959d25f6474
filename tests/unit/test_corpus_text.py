"""Data for masked language models and their fine-tuning: documents, applications, what fairseq's own tasks read."""

import json
from argparse import Namespace
from itertools import chain
from pathlib import Path

import pytest
from fairseq import options, tasks
from fairseq.data import Dictionary, data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from test_corpus_libreoffice import page

from fairseq_lnplace.cli import main
from fairseq_lnplace.corpus.applications import Texts, english, write_texts
from fairseq_lnplace.corpus.documents import write_documents
from fairseq_lnplace.corpus.libreoffice import split_of
from fairseq_lnplace.corpus.pairs import Filter
from fairseq_lnplace.corpus.prepare_classes import ClassSettings, prepare_classes
from fairseq_lnplace.corpus.prepare_text import TextSettings, prepare_text
from fairseq_lnplace.errors import LnplaceError

TOY = Path(__file__).parents[2] / "data" / "toy"


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_every_so_many_documents_are_held_out(tmp_path: Path) -> None:
    first = write(tmp_path / "a", "", "One.", "Two.", "", "", "Three.", " \t")
    second = write(tmp_path / "b", "Four.", "", "Five.", "Six.")
    counts = write_documents(tmp_path / "split", [first, second], every=2)
    assert (tmp_path / "split/train.txt").read_text() == "One.\nTwo.\n\nFour.\n\n"
    assert (tmp_path / "split/valid.txt").read_text() == "Three.\n\nFive.\nSix.\n\n"
    assert counts == {"train": {"documents": 2, "sentences": 3}, "valid": {"documents": 2, "sentences": 3}}
    with pytest.raises(LnplaceError, match="`--text` must be at least 200 documents with blank lines between them"):
        write_documents(tmp_path / "none", [first, second])
    assert not (tmp_path / "none").exists()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Toy English as text of two-sentence documents, prepared for a masked language model."""
    folder = tmp_path_factory.mktemp("text")
    for split in ("train", "valid"):
        lines = (TOY / f"{split}.en").read_text(encoding="utf-8").splitlines()
        write(
            folder / f"{split}.txt",
            *(each for number, line in enumerate(lines) for each in [line, ""][: 1 + number % 2]),
        )
    words = {"bpe": "subword_nmt", "tokeniser": "moses", "lowercase": True}
    train, valid = str(folder / "train.txt"), str(folder / "valid.txt")
    prepare_text(TextSettings(train=train, valid=valid, vocab_size=80, note="toy", **words), folder / "data")
    return folder


def test_text_is_read_back_with_its_documents(text: Path) -> None:
    dictionary = Dictionary.load(str(text / "data/dict.txt"))
    for split in ("train", "valid"):
        dataset = data_utils.load_indexed_dataset(str(text / "data" / split), dictionary)
        read = [dictionary.string(dataset[i], bpe_symbol="@@ ") for i in range(len(dataset))]
        written = (text / f"{split}.txt").read_text(encoding="utf-8").splitlines()
        assert [line.replace(" ", "") for line in read] == [line.replace(" ", "").lower() for line in written]
        assert "" in read
    manifest = json.loads((text / "data/prepared.json").read_text())
    assert manifest["counts"]["train"]["sentences"] == 460
    assert manifest["counts"]["train"]["pieces"] == sum(
        int(line.split()[1]) for line in (text / "data/dict.txt").read_text(encoding="utf-8").splitlines()
    )
    assert manifest["dictionary"] == len(dictionary)
    assert {path.name for path in (text / "data").iterdir()} == {
        "bpecodes", "dict.txt", "prepared.json", "train.bin", "train.idx", "valid.bin", "valid.idx",
    }  # fmt: skip


def examples(folder: Path, split: str, *rows: tuple[str, ...]) -> str:
    names = ("input0", "input1", "label") if len(rows[0]) == 3 else ("input0", "label")
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        write(folder / f"{split}.{name}", *column)
    return str(folder / split)


def test_pairs_with_labels_as_fairseq_reads_them(text: Path, tmp_path: Path) -> None:
    rows = [("The man.", "A house.", "no"), ("She is here.", "The old man.", "yes"), ("A house.", "The man.", "no")]
    given = ClassSettings(
        train=examples(tmp_path, "train", *rows), valid=examples(tmp_path, "valid", *rows[1:]), model_data=text / "data"
    )
    manifest = prepare_classes(given, tmp_path / "dest")
    assert manifest["counts"] == {"train": {"no": 2, "yes": 1}, "valid": {"no": 1, "yes": 1}}
    assert manifest["majority"] == {"train": 2 / 3, "valid": 1 / 2}
    argv = [str(tmp_path / "dest"), "--task", "sentence_prediction", "--num-classes", "2", "--init-token", "0"]
    argv += ["--separator-token", "2", "--arch", "roberta", "--no-shuffle", "--criterion", "sentence_prediction"]
    args = options.parse_args_and_arch(options.get_training_parser(), argv)
    task = tasks.setup_task(convert_namespace_to_omegaconf(Namespace(**vars(args))).task)
    task.load_dataset("train")
    symbols, dataset = task.source_dictionary, task.dataset("train")
    read = [symbols.string(dataset[i]["net_input.src_tokens"][1:], bpe_symbol="@@ ") for i in range(3)]
    assert read == ["the man . a house .", "she is here . the old man .", "a house . the man ."]
    labels = [task.label_dictionary[dataset[i]["target"].item() + task.label_dictionary.nspecial] for i in range(3)]
    assert labels == ["no", "yes", "no"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("One.", "maybe"), r"`--valid` must be of labels that --train has, but is .*valid.label with 'maybe'"),
        (("One.", "yes or no"), r"`--valid` must be of labels"),
    ],
)
def test_labels_that_do_not_fit_are_refused(text: Path, tmp_path: Path, row: tuple[str, str], message: str) -> None:
    train = examples(tmp_path, "train", ("One.", "yes"), ("Two.", "no"))
    given = ClassSettings(train=train, valid=examples(tmp_path, "valid", row), model_data=text / "data")
    with pytest.raises(LnplaceError, match=message):
        prepare_classes(given, tmp_path / "dest")
    write(tmp_path / "valid.label", "yes", "yes")
    with pytest.raises(LnplaceError, match=r"Every sentence must have a label, but .*input0 has 1 lines and .* 2"):
        prepare_classes(given, tmp_path / "dest")
    assert not (tmp_path / "dest").exists()


def help_pages(folder: Path) -> Path:
    """Pages of every application in every split; a sentence names its page, but for one that is on all pages.

    The first page of all, by its name, is one of the test set, and has that sentence alone.
    """
    first = next(name for number in range(999) if split_of(name := f"aaa/{number}.html") == "test")
    page(folder / "en-US/text" / first, '<p id="par_id1">Choose it from the menu.</p>')
    for application in ("swriter", "scalc", "sbasic", "simpress", "sdraw", "shared"):
        for number in range(60):
            name = f"{application}/{number}.html"
            words = f"{application} {'o' * (number + 2)}"
            text = f'<p id="par_id1">This page is about {words}. Choose it from the menu.</p><p id="par_id2">Short.</p>'
            page(folder / "en-US/text" / name, text)
    return folder


def test_no_sentence_and_no_page_stands_in_two_splits(tmp_path: Path) -> None:
    splits = english(help_pages(tmp_path), Filter())
    sentences = {split: [each for document in found.documents for each in document] for split, found in splits.items()}
    assert sorted(chain.from_iterable(sentences.values())) == sorted(
        ["Choose it from the menu."]
        + [
            f"This page is about {application} {'o' * (number + 2)}."
            for application in ("swriter", "scalc", "sbasic", "simpress", "sdraw", "shared")
            for number in range(60)
        ]
    )
    assert "Choose it from the menu." in sentences["train"]
    for application, label in (("swriter", "writer"), ("sdraw", "impress_draw"), ("shared", None)):
        for number in range(60):
            sentence = f"This page is about {application} {'o' * (number + 2)}."
            split = split_of(f"{application}/{number}.html")
            assert sentence in sentences[split]
            where = {name for name, found in splits[split].by_application.items() if sentence in found}
            assert where == ({label} if label else set())


def test_the_task_has_as_many_of_each_application_in_training(tmp_path: Path) -> None:
    def texts(**numbers: int) -> Texts:
        found = {name: [f"{name} {number}" for number in range(count)] for name, count in numbers.items()}
        return Texts([["One.", "Two."], ["Three."]], found)

    splits = {"train": texts(writer=5, calc=3), "valid": texts(writer=2, calc=4), "test": texts(writer=1, calc=1)}
    counts = write_texts(tmp_path / "dest", splits, {"source": "here"})
    assert counts["train"] == {"documents": 2, "sentences": 3, "writer": 3, "calc": 3}
    assert counts["valid"] == {"documents": 2, "sentences": 3, "writer": 2, "calc": 4}
    assert (tmp_path / "dest/train.txt").read_text() == "One.\nTwo.\n\nThree.\n\n"
    sentences = (tmp_path / "dest/train.input0").read_text().splitlines()
    assert [line.split()[0] for line in sentences] == (tmp_path / "dest/train.label").read_text().splitlines()
    assert len(set(sentences)) == 6
    with pytest.raises(LnplaceError, match="`test` must be of pages about calc, too"):
        write_texts(tmp_path / "none", {**splits, "test": texts(writer=1, calc=0)}, {})


def test_the_commands_work_on_the_toy_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["prepare-text", "--train", str(TOY / "train.en"), "--valid", str(TOY / "valid.en"), "--vocab-size", "150"]
    assert main([*argv, "--dest", str(tmp_path / "text")]) == 0
    assert "train: 460 sentences" in capsys.readouterr().out
    train = examples(tmp_path, "train", ("She is here.", "yes"), ("The old man.", "no"))
    argv = ["prepare-classes", "--train", train, "--valid", train, "--model-data", str(tmp_path / "text")]
    assert main([*argv, "--dest", str(tmp_path / "classes")]) == 0
    assert "always the same answer is right in 50.0%" in capsys.readouterr().out
    assert main([*argv[:-1], str(tmp_path), "--dest", str(tmp_path / "no")]) == 1
    assert "was not made by lnplace" in capsys.readouterr().err
    assert main([*argv[:-1], str(tmp_path / "classes"), "--dest", str(tmp_path / "no")]) == 1
    assert "`--model-data` must be a folder that `lnplace prepare-text` made" in capsys.readouterr().err
