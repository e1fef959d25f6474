import pytest
from fairseq_bleu import fairseq_bleu

from fairseq_lnplace.corpus.words import Words
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.scoring import looks_tokenised, score, score_words, split_compounds


@pytest.mark.parametrize(
    "lines",
    [
        ["He came , saw and won .", "It was so .", "Yes ."],
        ["it &apos;s a well @-@ known fact", "it &apos;s so", "&quot; yes &quot;"],
        ["no punctuation here", "it was so ."],
    ],
)
def test_tokenised_text_is_recognised(lines: list[str]) -> None:
    assert looks_tokenised(lines)
    with pytest.raises(LnplaceError, match="must be raw text, but these look tokenised"):
        score(lines, lines)


@pytest.mark.parametrize(
    "lines",
    [
        ["He came, saw and won.", "A file named .bashrc.", "It's 3.5, isn't it?"],
        ["Vraiment ? Oui : bien sûr ; merci !", "« Bon. »"],
        ["no punctuation", "at all"],
        ["The entity &amp; is an ampersand.", "That is rare.", "Mostly, text is plain."],
        [],
    ],
)
def test_raw_text_is_left_alone(lines: list[str]) -> None:
    assert not looks_tokenised(lines)


def test_a_perfect_translation_has_100() -> None:
    lines = ["The old man sees the small house.", "She is here again today."]
    perfect = score(lines, lines)
    assert perfect["bleu"]["score"] == pytest.approx(100)
    assert perfect["chrf"]["score"] == pytest.approx(100)


HYPOTHESES = ["the well-known man is here again .", "it is a state-of-the-art house , he said ."]
REFERENCES = ["the well-known man was here again .", "it is a state-of-the-art house , she says ."]


def test_tokenised_bleu_is_that_of_fairseq_generate() -> None:
    report = score_words(HYPOTHESES, REFERENCES, Words("moses"))
    assert report["score"] == pytest.approx(fairseq_bleu(HYPOTHESES, REFERENCES), abs=1e-3)
    assert "tok:none|smooth:none" in report["signature"]
    assert {name: report[name] for name in ("tokeniser", "lowercase", "split_hyphens", "compound_split")} == {
        "tokeniser": "moses",
        "lowercase": False,
        "split_hyphens": False,
        "compound_split": False,
    }
    # No 4-gram is right: 0, where sacreBLEU's smoothing would give something.
    assert score_words(["a b c d x"], ["a b c y z"], Words())["score"] == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("the well-known man", "the well ##AT##-##AT## known man"),
        ("state-of-the-art", "state ##AT##-##AT## of ##AT##-##AT## the ##AT##-##AT## art"),
        ("a - b -c d-", "a - b -c d-"),
        # As the Perl of the papers: the b is used up by the first match.
        ("a-b-c", "a ##AT##-##AT## b-c"),
        ("the well @-@ known man", "the well ##AT##-##AT## known man"),
    ],
)
def test_compounds(words: str, expected: str) -> None:
    assert split_compounds(words) == expected


def test_compound_splitting_on_both_sides_raises_the_score() -> None:
    """By hand: of "a b-c e", against "a b-c f", 2 words of 3 are right and 1 pair of 2; split, 4 of 5, 3 of 4, ..."""
    expectations = ((False, " 66.7/50.0/0.0/", 0), (True, " 80.0/75.0/66.7/50.0 ", 100 * 0.2**0.25))
    for split, precisions, expected in expectations:
        report = score_words(["a b-c e"], ["a b-c f"], Words("moses"), compound_split=split)
        assert precisions in report["text"]
        assert report["score"] == pytest.approx(expected)
        assert report["compound_split"] is split


def test_case_counts_unless_it_is_left_out() -> None:
    references, lowered = ["The old Man sees the small House."], ["the old man sees the small house."]
    assert score(lowered, references)["bleu"]["score"] < 50
    report = score(lowered, references, lowercase=True)
    assert report["bleu"]["score"] == pytest.approx(100)
    assert report["chrf"]["score"] == pytest.approx(100)
    assert "case:lc" in report["bleu"]["signature"]
