"""German. A number in brackets says which of its `sources` has the rule.

kein          Where a noun phrase would have "ein" or no article, "kein" denies it, declined as "ein" is
              [1]; "nicht" denies all else, and nothing else of the clause changes [2].
case          "Es gibt" governs the accusative, also behind "weder ... noch"; "außer" the dative [1].
weak nouns    "Teddybär" has -en in every case but the nominative singular [1].
adjectives    Behind the article they have the weak ending, -en in the dative; as predicates none [1].
relative      "der, die, das" agree with the noun in gender, and are subjects here; the verb stands last
              and "nicht" before the adjective [1].
nicht alle    "nicht" before the quantifier denies it [1].
"""

from __future__ import annotations

from dataclasses import dataclass

from nein.wording.languages.base import Language, Named


@dataclass(frozen=True)
class _Noun:
    """gender "m", "f" or "n"; accusative where it is not the nominative."""

    gender: str
    nominative: str
    plural: str
    accusative: str = ""

    @property
    def one(self) -> str:
        """In the accusative: "einen Hund"."""
        return f"{_EIN[self.gender]} {self.accusative or self.nominative}"

    @property
    def none(self) -> str:
        return f"k{self.one}"


_EIN = {"m": "einen", "f": "eine", "n": "ein"}
_THE, _TO_THE = {"m": "der", "f": "die", "n": "das"}, {"m": "dem", "f": "der", "n": "dem"}
_NOUNS = {
    "airplane": _Noun("n", "Flugzeug", "Flugzeuge"), "apple": _Noun("m", "Apfel", "Äpfel"),
    "banana": _Noun("f", "Banane", "Bananen"), "bench": _Noun("f", "Bank", "Bänke"),
    "bicycle": _Noun("n", "Fahrrad", "Fahrräder"), "bird": _Noun("m", "Vogel", "Vögel"),
    "boat": _Noun("n", "Boot", "Boote"), "book": _Noun("n", "Buch", "Bücher"),
    "bottle": _Noun("f", "Flasche", "Flaschen"), "bus": _Noun("m", "Bus", "Busse"),
    "cake": _Noun("f", "Torte", "Torten"), "car": _Noun("n", "Auto", "Autos"),
    "cat": _Noun("f", "Katze", "Katzen"), "chair": _Noun("m", "Stuhl", "Stühle"),
    "cup": _Noun("f", "Tasse", "Tassen"), "dog": _Noun("m", "Hund", "Hunde"),
    "kite": _Noun("m", "Drachen", "Drachen"), "pizza": _Noun("f", "Pizza", "Pizzas"),
    "sheep": _Noun("n", "Schaf", "Schafe"), "teddy bear": _Noun("m", "Teddybär", "Teddybären", "Teddybären"),
    "umbrella": _Noun("m", "Regenschirm", "Regenschirme"),
}  # fmt: skip
#: As a predicate, and weak in the dative. "rosa", "orange" and "beige" are declined with "-farben" only.
_COLOURS = {
    "red": ("rot", "roten"), "orange": ("orange", "orangefarbenen"), "yellow": ("gelb", "gelben"),
    "green": ("grün", "grünen"), "blue": ("blau", "blauen"), "purple": ("violett", "violetten"),
    "pink": ("rosa", "rosafarbenen"), "brown": ("braun", "braunen"), "black": ("schwarz", "schwarzen"),
    "grey": ("grau", "grauen"), "white": ("weiß", "weißen"), "tan": ("beige", "beigefarbenen"),
}  # fmt: skip


def sentences(named: Named) -> list[tuple[str, str]]:
    a, b = _NOUNS[named.thing], _NOUNS[named.other]
    (is_so, weak), (is_second, _) = _COLOURS[named.colour], _COLOURS[named.second]
    that, but_one = _THE[a.gender], f"{_TO_THE[a.gender]} {weak}"
    return [
        (f"Es gibt keine {a.plural} außer {but_one}.", f"Es gibt außer {but_one} noch andere {a.plural}."),
        (f"Es gibt weder {a.one} noch {b.one}.", f"Es gibt {b.one}, aber {a.none}."),
        (f"Es gibt {a.one}, aber {b.none}.", f"Es gibt {b.one}, aber {a.none}."),
        (f"Nicht alle {a.plural} sind {is_so}.", f"Alle {a.plural} sind {is_so}."),
        (f"Früher gab es {a.one}.", f"Es gibt immer noch {a.one}."),
        (f"Es gibt {a.one}, {that} nicht {is_second} ist.", f"Es gibt {a.one}, {that} {is_second} ist."),
    ]


GERMAN = Language(
    "de", "German", sentences, "Folgendes stimmt nicht: {}",
    (
        "Durrell, Hammer's German Grammar and Usage (6th edition, 2017): nouns, determiners, adjectives, "
        "negation",
        "Miestamo, Symmetric and Asymmetric Standard Negation, WALS Online, chapter 113 "
        "(https://wals.info/chapter/113)",
    ),
)  # fmt: skip
