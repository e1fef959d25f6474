"""Words and pieces: against lines written by hand, merges worked out by hand, and fairseq's own encoder."""

from argparse import Namespace
from pathlib import Path

import pytest
from fairseq.data.data_utils import post_process
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE

from fairseq_lnplace.corpus.pieces import SubwordNMT
from fairseq_lnplace.corpus.words import Words
from fairseq_lnplace.errors import LnplaceError


@pytest.mark.parametrize(
    ("words", "language", "expected"),
    [
        (Words(), "de", "Das „ist“ z. B. Herr Dr. Wohl-Bekannt,  nicht?"),
        (Words(lowercase=True), "de", "das „ist“ z. b. herr dr. wohl-bekannt,  nicht?"),
        (Words("moses"), "de", "Das „ ist “ z. B. Herr Dr. Wohl-Bekannt , nicht ?"),
        (Words("moses", True), "de", "das „ ist “ z. b. herr dr. wohl-bekannt , nicht ?"),
        (Words("moses", True, True), "de", "das „ ist “ z. b. herr dr. wohl @-@ bekannt , nicht ?"),
    ],
)
def test_from_text_to_words(words: Words, language: str, expected: str) -> None:
    assert words.splitter(language)("Das „ist“ z. B. Herr Dr. Wohl-Bekannt,  nicht?") == expected


def test_apostrophes_and_escapes_and_the_way_back() -> None:
    words = Words("moses", lowercase=True, split_hyphens=True)
    split, join = words.splitter("en"), words.joiner("en")
    for text in ("It's a well-known fact.", "It’s a well-known fact."):
        assert split(text) == "it &apos;s a well @-@ known fact ."
    assert split('A|B & <C> say "yes", [sic]') == "a &#124; b &amp; &lt; c &gt; say &quot; yes &quot; , &#91; sic &#93;"
    assert join("it &apos;s a well @-@ known fact , isn &apos;t it ?") == "it's a well-known fact, isn't it?"
    assert join("&quot; yes , &quot; he said .") == '"yes," he said.'
    assert Words(lowercase=True).joiner("en")("it is , so .") == "it is , so ."


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(LnplaceError, match="`--split-hyphens` must be beside --tokeniser moses"):
        Words(split_hyphens=True)
    with pytest.raises(LnplaceError, match="`--tokeniser` must be none or moses, but is spacy"):
        Words("spacy")


def test_merges_by_hand(tmp_path: Path) -> None:
    """Five times "low", twice "lower"; a letter at a word's end is another one."""
    pieces = SubwordNMT.learn(["low low low lower lower", "low low"], 3)
    pieces.save(tmp_path)
    # (l o) 7 times; then (lo w</w>) 5 times; then of (lo w) (w e) (e r</w>), each twice, the last by letters.
    assert (tmp_path / "bpecodes").read_text() == "#version: 0.2\nl o\nlo w</w>\nw e\n"
    assert pieces.encode("low lower slow we") == ["low", "lo@@", "we@@", "r", "s@@", "low", "w@@", "e"]
    assert post_process(" ".join(pieces.encode("low lower slow we")), "subword_nmt") == "low lower slow we"

    theirs = SubwordNMTBPE(Namespace(bpe_codes=str(tmp_path / "bpecodes"), bpe_separator="@@"))
    line = "lower and lower , the slow fellow follows"
    assert theirs.encode(line).split() == pieces.encode(line) == SubwordNMT.load(tmp_path).encode(line)


def test_more_merges_than_the_text_has_are_refused() -> None:
    with pytest.raises(LnplaceError, match="`--vocab-size` must be at most 2 for so little text, but is 50"):
        SubwordNMT.learn(["ab ab cd", "cd"], 50)
    with pytest.raises(LnplaceError, match="`--vocab-size` must be at most 0 for so little text, but is 1"):
        SubwordNMT.learn(["a b c d"], 1)
