"""The words of the synthetic corpus: German ones in the forms that its grammar uses, and their translations."""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "ADJECTIVES",
    "CONJUNCTIONS",
    "MODALS",
    "OPINIONS",
    "PEOPLE",
    "PLACES",
    "PREPOSITIONS",
    "THINGS",
    "TIMES",
    "VERBS_FOR_PEOPLE",
    "VERBS_FOR_THINGS",
    "Noun",
    "Verb",
]


class Noun(NamedTuple):
    """A noun in the singular; ``gender`` is m, f or n."""

    german: str
    gender: str
    english: str


class Verb(NamedTuple):
    """A transitive verb; ``particle`` is the part of a separable one that stands apart, else empty."""

    particle: str
    finite: str
    infinitive: str
    participle: str
    case: str
    english_finite: str
    english_infinitive: str
    english_past: str

    @property
    def german_infinitive(self) -> str:
        """The infinitive in one word."""
        return self.particle + self.infinitive


def _table(rows: str) -> list[list[str]]:
    return [
        ["" if cell == "-" else cell.replace("_", " ") for cell in row.split()] for row in rows.strip().splitlines()
    ]


def _nouns(rows: str) -> list[Noun]:
    return [Noun(*row) for row in _table(rows)]


def _verbs(rows: str) -> list[Verb]:
    return [Verb(*row) for row in _table(rows)]


PEOPLE = _nouns("""
    Mann m man
    Lehrer m teacher
    Arzt m doctor
    Bruder m brother
    Bäcker m baker
    Vater m father
    Gärtner m gardener
    Freund m friend
    Frau f woman
    Schwester f sister
    Köchin f cook
    Königin f queen
    Mutter f mother
    Richterin f judge
    Ärztin f physician
    Kind n child
    Mädchen n girl
    Baby n baby
""")
THINGS = _nouns("""
    Brief m letter
    Schlüssel m key
    Tisch m table
    Apfel m apple
    Koffer m suitcase
    Hut m hat
    Stuhl m chair
    Lampe f lamp
    Zeitung f newspaper
    Uhr f clock
    Tür f door
    Karte f map
    Tasche f bag
    Flasche f bottle
    Buch n book
    Bild n picture
    Fahrrad n bicycle
    Fenster n window
    Messer n knife
    Boot n boat
""")
PLACES = _nouns("""
    Garten m garden
    Wald m forest
    Bahnhof m station
    Schule f school
    Küche f kitchen
    Stadt f city
    Kirche f church
    Haus n house
    Dorf n village
    Zimmer n room
""")
ADJECTIVES = _table("""
    alt old
    lustig funny
    klein small
    groß big
    schön beautiful
    neu new
    stark strong
    berühmt famous
    einfach simple
    fremd foreign
    seltsam strange
    still quiet
""")
# particle, finite, infinitive, participle, case of the object, then the English forms
VERBS_FOR_PEOPLE = _verbs("""
    - sieht sehen gesehen accusative sees see seen
    - besucht besuchen besucht accusative visits visit visited
    - hilft helfen geholfen dative helps help helped
    - dankt danken gedankt dative thanks thank thanked
    - antwortet antworten geantwortet dative answers answer answered
    - kennt kennen gekannt accusative knows know known
    an ruft rufen angerufen accusative calls call called
    ab holt holen abgeholt accusative picks_up pick_up picked_up
    ein lädt laden eingeladen accusative invites invite invited
    zu hört hören zugehört dative listens_to listen_to listened_to
""")
VERBS_FOR_THINGS = _verbs("""
    - sucht suchen gesucht accusative looks_for look_for looked_for
    - findet finden gefunden accusative finds find found
    - kauft kaufen gekauft accusative buys buy bought
    - verliert verlieren verloren accusative loses lose lost
    - repariert reparieren repariert accusative repairs repair repaired
    - braucht brauchen gebraucht accusative needs need needed
    auf hebt heben aufgehoben accusative lifts lift lifted
    weg wirft werfen weggeworfen accusative throws_away throw_away thrown_away
    mit nimmt nehmen mitgenommen accusative takes_along take_along taken_along
    zurück gibt geben zurückgegeben accusative gives_back give_back given_back
""")
MODALS = _table("""
    kann can
    muss must
    will wants_to
    soll should
    darf may
""")
TIMES = _table("""
    heute today
    morgen tomorrow
    jetzt now
    oft often
    wieder again
    am_Abend in_the_evening
    am_Montag on_Monday
    nach_dem_Essen after_the_meal
""")
CONJUNCTIONS = _table("""
    weil because
    wenn when
    obwohl although
    bevor before
    während while
    falls if
""")
OPINIONS = _table("""
    glaubt believes
    weiß knows
    sagt says
    hofft hopes
    schreibt writes
""")
PREPOSITIONS = _table("""
    in in
    vor in_front_of
    hinter behind
    neben beside
""")
