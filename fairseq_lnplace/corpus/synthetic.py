"""A synthetic German-English corpus out of a small grammar: for tests, and for machines without the real text.

The German side has what makes German hard for a translator: three genders, three cases and the adjective endings that
go with them, the verb in second place or at the clause's end, separable verbs and verb brackets.

The same seed gives the same sentences on every version of Python: only ``Random.random`` is promised that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

from fairseq_lnplace.corpus import lexicon
from fairseq_lnplace.corpus.pairs import SPLITS, Filter, Pair
from fairseq_lnplace.errors import must_be

__all__ = ["corpus", "sentence_pairs"]

T = TypeVar("T")

_DEFINITE = {
    "nominative": {"m": "der", "f": "die", "n": "das"},
    "accusative": {"m": "den", "f": "die", "n": "das"},
    "dative": {"m": "dem", "f": "der", "n": "dem"},
}
_INDEFINITE = {
    "nominative": {"m": "ein", "f": "eine", "n": "ein"},
    "accusative": {"m": "einen", "f": "eine", "n": "ein"},
    "dative": {"m": "einem", "f": "einer", "n": "einem"},
}
# Endings of an adjective after the definite and the indefinite article.
_WEAK = {
    "nominative": {"m": "e", "f": "e", "n": "e"},
    "accusative": {"m": "en", "f": "e", "n": "e"},
    "dative": {"m": "en", "f": "en", "n": "en"},
}
_MIXED = {**_WEAK, "nominative": {"m": "er", "f": "e", "n": "es"}, "accusative": {"m": "en", "f": "e", "n": "es"}}


def _article(english: str) -> str:
    return "an" if english[0] in "aeiou" else "a"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


class _Speaker:
    """Draws phrases; each method returns a German text and its translation, or the parts of both."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random.random() * len(choices))]

    def noun_phrase(self, nouns: Sequence[lexicon.Noun], case: str) -> tuple[str, str]:
        noun = self.pick(nouns)
        definite = self.chance(0.7)
        article, endings = (_DEFINITE, _WEAK) if definite else (_INDEFINITE, _MIXED)
        german, english = [article[case][noun.gender]], []
        if self.chance(0.4):
            adjective, translation = self.pick(lexicon.ADJECTIVES)
            german.append(adjective + endings[case][noun.gender])
            english.append(translation)
        english.append(noun.english)
        first = "the" if definite else _article(english[0])
        return " ".join([*german, noun.german]), " ".join([first, *english])

    def place(self) -> tuple[str, str]:
        preposition, translation = self.pick(lexicon.PREPOSITIONS)
        german, english = self.noun_phrase(lexicon.PLACES, "dative")
        return f"{preposition} {german}", f"{translation} {english}"

    def clause(self, order: str) -> tuple[str, str]:
        """Return a clause whose German verb stands "second", after something "fronted", or "last".

        A fronted clause starts with its own adverb of time, which the English one has at its end.
        """
        subject, english_subject = self.noun_phrase(lexicon.PEOPLE, "nominative")
        about_people = self.chance(0.5)
        verb = self.pick(lexicon.VERBS_FOR_PEOPLE if about_people else lexicon.VERBS_FOR_THINGS)
        object_, english_object = self.noun_phrase(lexicon.PEOPLE if about_people else lexicon.THINGS, verb.case)
        middle, english = [object_], [english_object]
        if self.chance(0.35):
            place, english_place = self.place()
            middle.append(place)
            english.append(english_place)

        tense = self.pick(("present", "present", "perfect", "modal"))
        if tense == "present":
            finite, english_verb = verb.finite, verb.english_finite
            bracket = verb.particle
        elif tense == "perfect":
            finite, english_verb = "hat", f"has {verb.english_past}"
            bracket = verb.participle
        else:
            finite, english_finite = self.pick(lexicon.MODALS)
            english_verb = f"{english_finite} {verb.english_infinitive}"
            bracket = verb.german_infinitive

        if order == "last":
            # The separable particle meets its verb again: "... weil er ihn anruft".
            end = [verb.particle + finite] if tense == "present" else [bracket, finite]
            german = [subject, *middle, *end]
        elif order == "fronted":
            time, english_time = self.pick(lexicon.TIMES)
            german = [time, finite, subject, *middle, bracket]
            english.append(english_time)
        else:
            german = [subject, finite, *middle, bracket]
        return " ".join(filter(None, german)), " ".join([english_subject, english_verb, *english])

    def sentence(self) -> Pair:
        kind = self._random.random()
        if kind < 0.25:
            german, english = self.clause("second")
        elif kind < 0.45:
            german, english = self.clause("fronted")
        elif kind < 0.65:
            left, right = self.clause("second"), self.clause("last")
            conjunction, translation = self.pick(lexicon.CONJUNCTIONS)
            german, english = f"{left[0]}, {conjunction} {right[0]}", f"{left[1]} {translation} {right[1]}"
        elif kind < 0.85:
            speaker, english_speaker = self.noun_phrase(lexicon.PEOPLE, "nominative")
            (opinion, translation), content = self.pick(lexicon.OPINIONS), self.clause("last")
            german = f"{speaker} {opinion}, dass {content[0]}"
            english = f"{english_speaker} {translation} that {content[1]}"
        else:
            left, right = self.clause("second"), self.clause("second")
            link, translation = self.pick((("und", "and"), ("aber", "but"), ("denn", "for")))
            german, english = f"{left[0]}, {link} {right[0]}", f"{left[1]}, {translation} {right[1]}"
        return Pair(_capital(german) + ".", _capital(english) + ".")


def sentence_pairs(seed: int) -> Iterator[Pair]:
    """Yield sentence pairs without end."""
    speaker = _Speaker(seed)
    while True:
        yield speaker.sentence()


def corpus(number: int, seed: int, keep: Filter) -> dict[str, list[Pair]]:
    """Return ``number`` distinct pairs: 4 % of them for test, 4 % for valid, the rest for train.

    Raises:
        LnplaceError: ``number`` is so small that a split would be empty, or ``keep`` lets almost nothing through.
    """
    held_out = number // 25
    if not held_out:
        raise must_be("--generated", "at least 25", number)
    drawn: list[Pair] = []
    # So many draws are needed only where the lengths asked for are rare or the grammar's short sentences run out.
    draws = (pair for pair, _ in zip(sentence_pairs(seed), range(200 * number), strict=False))
    for pair in keep(draws):
        drawn.append(pair)
        if len(drawn) == number:
            ends = {"test": held_out, "valid": 2 * held_out, "train": number}
            starts = {"test": 0, "valid": held_out, "train": 2 * held_out}
            return {split: drawn[starts[split] : ends[split]] for split in SPLITS}
    raise must_be("--generated", f"at most {len(drawn)} for sentences of this length", number)
