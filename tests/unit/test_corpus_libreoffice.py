from pathlib import Path

import pytest

from fairseq_lnplace.corpus.libreoffice import corpus, page_pairs, paragraphs, sentences, split_of
from fairseq_lnplace.corpus.pairs import Filter, Pair
from fairseq_lnplace.errors import LnplaceError

PAGE = """<!DOCTYPE html><html><head><title>No</title></head><body>
<p id="par_id0">Outside of the display area</p>
<div id="DisplayArea">{body}</div><footer><p>footer</p></footer></body></html>"""


def page(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PAGE.format(body=body), encoding="utf-8")
    return path


def test_paragraphs_and_headings_by_id(tmp_path: Path) -> None:
    found = paragraphs(
        page(
            tmp_path / "a.html",
            '<h2 id="hd_id1">Über\N{NO-BREAK SPACE}die <a href="x">Schal\N{SOFT HYPHEN}ter</a></h2>'
            '<div><p id="par_id2" class="paragraph">„Anfang“ – und\n   <b>Ende</b>…</p></div>'
            '<p id="par_id3" class="code">print("x")</p><p id="par_id4" class="bascode">Sub</p>'
            '<p id="other5">no</p><p>no id</p><p id="par_id6">u\N{COMBINING DIAERESIS}ber</p>',
        )
    )
    assert found == {"hd_id1": "Über die Schalter", "par_id2": '"Anfang" - und Ende...', "par_id6": "über"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ein Satz. Noch einer! Und der? Ja.", ["Ein Satz.", "Noch einer!", "Und der?", "Ja."]),
        ("Zahlen, z. B. Eins, bzw. Zwei usw. Drei.", ["Zahlen, z. B. Eins, bzw. Zwei usw. Drei."]),
        ("Use it, e.g. Calc. 3 pages follow.", ["Use it, e.g. Calc.", "3 pages follow."]),
        ("Version 7.4 ist da. klein geht es weiter", ["Version 7.4 ist da. klein geht es weiter"]),
        ("Am 3. Mai kam er.", ["Am 3. Mai kam er."]),
        ("", [""]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_pairs_by_id_and_by_sentence_where_the_counts_agree(tmp_path: Path) -> None:
    german = page(
        tmp_path / "de.html",
        '<p id="par_id1">Eins. Zwei.</p><p id="par_id2">A. Eins. Zwei.</p><p id="par_id3">Nur.</p>',
    )
    english = page(
        tmp_path / "en.html", '<p id="par_id2">All in one.</p><p id="par_id1">One. Two.</p><p id="par_id4">Only.</p>'
    )
    assert list(page_pairs(german, english)) == [
        Pair("Eins.", "One."),
        Pair("Zwei.", "Two."),
        Pair("A. Eins. Zwei.", "All in one."),
    ]


def test_a_page_stands_in_one_split(tmp_path: Path) -> None:
    names = [f"page{number}.html" for number in range(1, 301)]
    for number, name in enumerate(names, 1):
        page(tmp_path / "de/text" / name, f'<p id="par_id1">Das ist der Satz {"n" * number}</p>')
        page(tmp_path / "en-US/text" / name, f'<p id="par_id1">This is the sentence {"m" * number}</p>')
    page(tmp_path / "de/text/lonely.html", '<p id="par_id1">Das ist nur auf Deutsch da.</p>')
    splits = corpus(tmp_path, Filter())
    assert sum(map(len, splits.values())) == 300
    assert {pair for pairs in splits.values() for pair in pairs} == {
        Pair(f"Das ist der Satz {'n' * number}", f"This is the sentence {'m' * number}") for number in range(1, 301)
    }
    assert 0 < len(splits["test"]) < 30
    assert 0 < len(splits["valid"]) < 30


@pytest.mark.parametrize(("name", "split"), [("t67.html", "test"), ("t5.html", "valid"), ("a.html", "train")])
def test_the_split_is_the_hash_of_the_path(name: str, split: str) -> None:
    # `printf %s NAME | sha256sum`, modulo 100 by bc: 1, 4 and 23.
    assert split_of(name) == split


def test_no_pages_is_told(tmp_path: Path) -> None:
    with pytest.raises(LnplaceError, match="`--pages` must hold help pages"):
        corpus(tmp_path, Filter())
