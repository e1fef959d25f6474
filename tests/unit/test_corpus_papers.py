"""IWSLT14, WMT14 and GLUE out of small files whose pairs are counted by hand."""

from pathlib import Path

import pytest

from fairseq_lnplace.corpus import glue, iwslt14, wmt14
from fairseq_lnplace.corpus.pairs import Pair
from fairseq_lnplace.errors import LnplaceError


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def segment_file(path: Path, *lines: str) -> None:
    segments = (f'<seg id="{number}"> {line} </seg>' for number, line in enumerate(lines, 1))
    write(path, '<?xml version="1.0" encoding="UTF-8"?>', "<mteval>", "<title>no</title>", *segments, "</mteval>")


def iwslt(folder: Path, german: list[str], english: list[str]) -> Path:
    write(folder / "de-en/train.tags.de-en.de", *german)
    write(folder / "de-en/train.tags.de-en.en", *english)
    for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"):
        for language in ("de", "en"):
            segment_file(folder / f"de-en/IWSLT14.{name}.de-en.{language}.xml", f"{language} 1 {name}", f"{language} 2")
    return folder


def test_iwslt14_tags_and_test_sets(tmp_path: Path) -> None:
    folder = iwslt(
        tmp_path,
        ["<url>u</url>", "<keywords>k</keywords>", "<talkid>1</talkid>", "<title>Der Titel</title>", " Guten Tag. "],
        ["<url>u</url>", "<keywords>k</keywords>", "<talkid>1</talkid>", "<title>The title</title>", "Good day."],
    )
    splits = iwslt14.corpus(folder)
    assert splits["train"] == [Pair("Der Titel", "The title"), Pair("Guten Tag.", "Good day.")]
    assert splits["valid"] == []
    assert splits["test"][:3] == [
        Pair("de 1 TED.dev2010", "en 1 TED.dev2010"),
        Pair("de 2", "en 2"),
        Pair("de 1 TEDX.dev2012", "en 1 TEDX.dev2012"),
    ]
    assert [pair.german for pair in splits["test"][4::2]] == [
        "de 1 TED.tst2010",
        "de 1 TED.tst2011",
        "de 1 TED.tst2012",
    ]


def test_iwslt14_is_cleaned_by_words_and_split_afterwards(tmp_path: Path) -> None:
    """Moses' words are counted, and a full stop is one. 3 to 2 is even enough, 4 to 2 is not; 175 are not too many."""
    pairs = [("eins zwei.", "one two"), ("eins zwei drei.", "one two"), ("", "one"), ("eins", ""), ("", "")]
    pairs += [("w " * 175, "w " * 117), ("w " * 176, "w " * 170), ("w " * 175, "w " * 116)]
    pairs += [(f"Satz {number}", f"sentence {number}") for number in range(50)]
    folder = iwslt(tmp_path, [german for german, _ in pairs], [english for _, english in pairs])
    splits = iwslt14.corpus(folder)
    kept = [Pair("eins zwei.", "one two"), Pair(("w " * 175).strip(), ("w " * 117).strip())]
    kept += [Pair(f"Satz {number}", f"sentence {number}") for number in range(50)]
    assert splits["valid"] == [Pair("Satz 20", "sentence 20"), Pair("Satz 43", "sentence 43")]
    assert splits["train"] == [pair for pair in kept if pair not in splits["valid"]]


def wmt(folder: Path, commentary: str = "v9") -> Path:
    for name, lines in (
        ("training/europarl-v7", [("„Ja“ ,  sagte er…", "“Yes”, he said…"), ("", "Nothing."), ("Zwei", "Two\u200b2")]),
        ("commoncrawl", [(f"Satz {number}", f"sentence {number}") for number in range(96)]),
        (f"training/news-commentary-{commentary}", [("Hundert", "Hundred"), ("Letzter", "Last")]),
    ):
        for language, column in (("de", 0), ("en", 1)):
            write(folder / f"{name}.de-en.{language}", *(line[column] for line in lines))
    for language, kind in (("de", "ref"), ("en", "src")):
        write(folder / f"dev/newstest2013.{language}", f"{language} ‚roh’")
        segment_file(
            folder / f"test-full/newstest2014-deen-{kind}.{language}.sgm", f"{language} „roh“", f"{language} 2"
        )
    return folder


def test_wmt14_normalises_the_training_text_alone(tmp_path: Path) -> None:
    splits = {split: list(pairs) for split, pairs in wmt14.corpus(wmt(tmp_path)).items()}
    assert splits["train"][:3] == [
        Pair('"Ja" , sagte er...', '"Yes," he said...'),
        Pair("Zwei", "Two 2"),
        Pair("Satz 0", "sentence 0"),
    ]
    assert splits["train"][-2:] == [Pair("Hundert", "Hundred"), Pair("Letzter", "Last")]
    assert len(splits["train"]) == 100
    assert splits["valid"] == [Pair("de ‚roh’", "en ‚roh’")]
    assert splits["test"] == [Pair("de „roh“", "en „roh“"), Pair("de 2", "en 2")]


def test_wmt14_every_hundredth_pair_and_the_other_commentary(tmp_path: Path) -> None:
    splits = {split: list(pairs) for split, pairs in wmt14.corpus(wmt(tmp_path, "v12"), "v12", "split").items()}
    assert splits["valid"] == [Pair("Hundert", "Hundred")]  # the 100th with the empty one counted, as the script does
    assert len(splits["train"]) == 99
    with pytest.raises(LnplaceError, match=r"news-commentary-v9.de-en.de is missing among the files of"):
        list(wmt14.corpus(tmp_path, "v9")["train"])


def test_files_that_do_not_match_are_told(tmp_path: Path) -> None:
    folder = iwslt(tmp_path / "a", ["eins", "zwei"], ["one"])
    with pytest.raises(LnplaceError, match=r"as many sentences, but .*train.tags.de-en.en has only 1$"):
        iwslt14.corpus(folder)
    (folder / "de-en/IWSLT14.TED.tst2010.de-en.de.xml").unlink()
    write(folder / "de-en/train.tags.de-en.en", "one", "two")
    with pytest.raises(LnplaceError, match=r"IWSLT14.TED.tst2010.de-en.de.xml is missing"):
        iwslt14.corpus(folder)


def test_rte_and_mrpc(tmp_path: Path) -> None:
    header = "index\tsentence1\tsentence2\tlabel"
    write(tmp_path / "RTE/train.tsv", header, '0\tA "quoted, one.\tA second.\tentailment', "1\tC.\tD.\tnot_entailment")
    write(tmp_path / "RTE/dev.tsv", header, "0\tE.\tF.\tnot_entailment")
    assert glue.TASKS["RTE"](tmp_path) == {
        "train": [('A "quoted, one.', "A second.", "entailment"), ("C.", "D.", "not_entailment")],
        "valid": [("E.", "F.", "not_entailment")],
    }
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    write(tmp_path / "msr_paraphrase_train.txt", f"\ufeff{header}", "1\t7\t8\tG.\tH.", "0\t8\t7\tI.\tJ.")
    write(tmp_path / "mrpc_dev_ids.tsv", "8\t7")
    assert glue.TASKS["MRPC"](tmp_path) == {"train": [("G.", "H.", "1")], "valid": [("I.", "J.", "0")]}
    write(tmp_path / "RTE/dev.tsv", "index\tsentence1\tlabel", "0\tE.\tnot_entailment")
    with pytest.raises(LnplaceError, match=r"must have the column sentence2, but line 2 of .*dev.tsv has not"):
        glue.TASKS["RTE"](tmp_path)
