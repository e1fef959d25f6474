"""The German of the generator, checked against a grammar book's tables rather than the generator's own."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_lnplace.cli import main
from fairseq_lnplace.corpus.pairs import Filter
from fairseq_lnplace.corpus.synthetic import corpus, sentence_pairs
from fairseq_lnplace.errors import LnplaceError

TOY = Path(__file__).parents[2] / "data" / "toy"
SENTENCES = list(itertools.islice(sentence_pairs(7), 3000))


def german_matching(pattern: str) -> list[re.Match[str]]:
    found = [match for pair in SENTENCES if (match := re.search(pattern, pair.german))]
    assert len(found) > 10, "too few to mean anything"
    return found


def test_toy_data_is_what_the_readme_command_makes(tmp_path: Path) -> None:
    command = ["corpus", "--generated", "500", "--max-words", "20", "--dest", str(tmp_path / "toy")]
    assert "lnplace corpus --generated 500 --max-words 20 --dest" in (TOY.parent / "README.md").read_text()
    assert main(command) == 0
    names = sorted(path.name for path in TOY.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "toy").iterdir())
    for name in names:
        assert (tmp_path / "toy" / name).read_bytes() == (TOY / name).read_bytes(), name


def test_the_seed_decides() -> None:
    again = list(itertools.islice(sentence_pairs(7), 3000))
    assert again == SENTENCES
    assert list(itertools.islice(sentence_pairs(8), 3000)) != SENTENCES


def test_adjectives_agree_with_article_gender_and_case() -> None:
    # "einem"/"einer" + dative -en; "ein" + masculine -er or neuter -es; "eine" -e; "einen" -en; "den"/"dem" -en.
    for article, ending in (
        ("einem", "en"),
        ("einen", "en"),
        ("einer", "en"),
        ("eine", "e"),
        ("den", "en"),
        ("dem", "en"),
    ):
        for match in german_matching(rf"\b{article} ([a-zäöüß]+) [A-ZÄÖÜ]"):
            stem = match[1].removesuffix(ending)
            assert stem != match[1], match.string
            assert not stem.endswith("e"), match.string
    for match in german_matching(r"\b[Ee]in ([a-zäöüß]+) ([A-ZÄÖÜ]\w+)"):
        neuter = match[2] in {"Kind", "Mädchen", "Baby", "Buch", "Bild", "Fahrrad", "Fenster", "Messer", "Boot"}
        assert match[1].endswith("es" if neuter else "er"), match.string


def test_a_separable_verb_stands_apart_in_a_main_clause_and_together_at_the_end_of_another() -> None:
    for match in german_matching(r"^D\w+ \w+ (ruft|holt|lädt|hebt|nimmt|gibt|wirft) [^,]*"):
        assert re.search(r" (an|ab|ein|auf|mit|zurück|weg)\.?$", match[0]), match.string
    for match in german_matching(r"(?:weil|wenn|dass|obwohl|während|falls|bevor) [^,]*$"):
        assert not re.search(r"\b(an|ab|auf|mit|zurück|weg|zu)\.$", match[0]), match.string
    german_matching(r"dass [^,]* (anruft|abholt|einlädt|mitnimmt|zurückgibt)\.$")


def test_the_verb_comes_second_after_an_adverb_of_time() -> None:
    verbs = (
        r"sieht|besucht|hilft|dankt|antwortet|kennt|ruft|holt|lädt|hört|sucht|findet|kauft|verliert|repariert|braucht"
    )
    verbs += r"|hebt|wirft|nimmt|gibt|hat|kann|muss|will|soll|darf"
    for match in german_matching(r"^(?:Heute|Morgen|Jetzt|Oft|Wieder|Am Abend|Am Montag|Nach dem Essen) (\w+)"):
        assert re.fullmatch(verbs, match[1]), match.string


def test_dative_verbs_take_the_dative() -> None:
    for match in german_matching(r"^(?:Der|Die|Das|Ein|Eine) [^,]*[A-ZÄÖÜ]\w+ (?:hilft|dankt|antwortet) (\w+)"):
        assert match[1] in {"dem", "der", "einem", "einer"}, match.string


def test_an_article_before_a_vowel() -> None:
    english = " ".join(pair.english for pair in SENTENCES)
    assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", english, re.IGNORECASE)
    assert re.search(r"\ban old\b", english)


def test_splits_have_their_sizes_and_share_no_sentence() -> None:
    splits = corpus(100, 1, Filter(max_words=20))
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 92, "valid": 4, "test": 4}
    german = [pair.german for pairs in splits.values() for pair in pairs]
    assert len(set(german)) == 100
    assert max(len(sentence.split()) for sentence in german) <= 20


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(LnplaceError, match="`--generated` must be at least 25"):
        corpus(24, 1, Filter())
    with pytest.raises(LnplaceError, match="`--generated` must be at most 0 for sentences of this length"):
        corpus(25, 1, Filter(min_words=1, max_words=2))


@pytest.mark.parametrize("version", ["3.10", "3.13"])
def test_another_python_generates_the_same(version: str) -> None:
    script = (
        "import itertools, sys, types; sys.path.insert(0, '.'); package = types.ModuleType('fairseq_lnplace');"
        "package.__path__ = ['fairseq_lnplace']; sys.modules['fairseq_lnplace'] = package;"
        "from fairseq_lnplace.corpus.synthetic import sentence_pairs;"
        "sys.stdout.reconfigure(encoding='utf-8');"
        "print(*(' '.join(pair) for pair in itertools.islice(sentence_pairs(7), 200)), sep='\\n')"
    )
    python = next(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python"), None)
    if python is None:
        pytest.skip(f"there is no Python {version} beside this one")
    done = subprocess.run([python, "-c", script], cwd=TOY.parents[1], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.splitlines() == [" ".join(pair) for pair in SENTENCES[:200]]
