from pathlib import Path

import pytest

from fairseq_lnplace.corpus.pairs import Filter, Pair, write_corpus
from fairseq_lnplace.errors import LnplaceError

GOOD = Pair("Das ist ein guter Satz.", "This is a good sentence.")


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (Pair("Zu kurz.", "Too short."), "length"),
        (Pair("Das Wort " * 30, "The word " * 30), "length"),
        (Pair("Das sind drei", "These are many more words than three"), "ratio"),
        (Pair("Die Zahlen 123456 und 7890123", "The numbers 123456 and 7890123"), "letters"),
        (Pair("Der Aufruf von summe() hilft", "The call of summe() helps"), "code"),
        (Pair("Die Adresse ftp://ort ist richtig", "The address ftp://place is right"), "code"),
        (Pair("Writer Calc Impress", "Writer Calc Impress"), "identical"),
        (Pair("This is not the German side", "This is the English side"), "not German"),
        (Pair("DAS IST EIN GUTER SATZ.", "Here is something else."), "seen before"),
        (Pair("Hier steht etwas anderes.", "this is a good sentence."), "seen before"),
    ],
)
def test_each_fault_is_found_and_counted(pair: Pair, reason: str) -> None:
    keep = Filter()
    assert list(keep([GOOD, pair])) == [GOOD]
    assert keep.dropped == {reason: 1}


def test_the_limits_themselves_are_kept() -> None:
    six, three = "Wort da Wort da Wort da", "word there word"
    assert list(Filter(max_words=6)([Pair(six, three)])) == [Pair(six, three)]
    assert not list(Filter(max_words=5)([Pair(six, three)]))
    assert not list(Filter(min_words=4)([Pair(six, three)]))


def test_limits_that_contradict_are_refused() -> None:
    with pytest.raises(LnplaceError, match="`--min-words` must be between 1 and --max-words"):
        Filter(min_words=9, max_words=8)


def test_a_corpus_is_written_line_by_line(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c", {"train": [GOOD, GOOD], "valid": [GOOD], "test": [GOOD]}, {"source": "here"})
    assert (tmp_path / "c" / "train.de").read_bytes() == (GOOD.german + "\n").encode() * 2
    assert (tmp_path / "c" / "test.en").read_bytes() == (GOOD.english + "\n").encode()
    with pytest.raises(LnplaceError, match="`valid` must be"):
        write_corpus(tmp_path / "d", {"train": [GOOD], "valid": [], "test": [GOOD]}, {})
    assert not (tmp_path / "d").exists()
