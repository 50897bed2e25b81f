"""French. A number in brackets says which of its `sources` has the rule.

ne ... pas    "ne" before the verb and "pas" behind it [1]; "pas" alone in a clause without a verb [3].
de            An indefinite article becomes "de" under negation [2], "d'" before a vowel [3].
aucun, ni     They are in the place of "pas", with "ne" and never beside it; "aucun" agrees in gender and
              is singular, and behind "ni ... ni" there is no article [3].
tous          "ne sont pas toutes" denies the quantifier that floats behind it; "Toutes ... ne sont pas"
              could be read both ways, and is not used [3].
agreement     Adjectives agree in gender and number, also as predicates; "orange" and "marron", names of
              fruits, do not change [3].
celui, celle  The pronoun that a relative clause is about agrees in gender [3].
"""

from __future__ import annotations

from dataclasses import dataclass

from nein.wording.languages.base import Language, Named


@dataclass(frozen=True)
class _Noun:
    gender: str
    one: str
    many: str

    @property
    def is_feminine(self) -> bool:
        return self.gender == "f"

    @property
    def a(self) -> str:
        return f"{'une' if self.is_feminine else 'un'} {self.one}"

    @property
    def de(self) -> str:
        """ "de tasse", "d'avion"."""
        return f"d'{self.one}" if self.one[0] in "aeiou" else f"de {self.one}"


_NOUNS = {
    "airplane": _Noun("m", "avion", "avions"), "apple": _Noun("f", "pomme", "pommes"),
    "banana": _Noun("f", "banane", "bananes"), "bench": _Noun("m", "banc", "bancs"),
    "bicycle": _Noun("m", "vélo", "vélos"), "bird": _Noun("m", "oiseau", "oiseaux"),
    "boat": _Noun("m", "bateau", "bateaux"), "book": _Noun("m", "livre", "livres"),
    "bottle": _Noun("f", "bouteille", "bouteilles"), "bus": _Noun("m", "autobus", "autobus"),
    "cake": _Noun("m", "gâteau", "gâteaux"), "car": _Noun("f", "voiture", "voitures"),
    "cat": _Noun("m", "chat", "chats"), "chair": _Noun("f", "chaise", "chaises"),
    "cup": _Noun("f", "tasse", "tasses"), "dog": _Noun("m", "chien", "chiens"),
    "kite": _Noun("m", "cerf-volant", "cerfs-volants"), "pizza": _Noun("f", "pizza", "pizzas"),
    "sheep": _Noun("m", "mouton", "moutons"), "teddy bear": _Noun("m", "ours en peluche", "ours en peluche"),
    "umbrella": _Noun("m", "parapluie", "parapluies"),
}  # fmt: skip
#: Masculine and feminine, singular, then plural.
_COLOURS = {
    "red": ("rouge", "rouge", "rouges", "rouges"), "orange": ("orange",) * 4,
    "yellow": ("jaune", "jaune", "jaunes", "jaunes"), "green": ("vert", "verte", "verts", "vertes"),
    "blue": ("bleu", "bleue", "bleus", "bleues"),
    "purple": ("violet", "violette", "violets", "violettes"), "pink": ("rose", "rose", "roses", "roses"),
    "brown": ("marron",) * 4, "black": ("noir", "noire", "noirs", "noires"),
    "grey": ("gris", "grise", "gris", "grises"), "white": ("blanc", "blanche", "blancs", "blanches"),
    "tan": ("beige", "beige", "beiges", "beiges"),
}  # fmt: skip


def sentences(named: Named) -> list[tuple[str, str]]:
    a, b = _NOUNS[named.thing], _NOUNS[named.other]
    form = int(a.is_feminine)
    is_so, are_so = _COLOURS[named.colour][form], _COLOURS[named.colour][form + 2]
    is_second = _COLOURS[named.second][form]
    none, that, all_ = (("aucun", "celui", "tous"), ("aucune", "celle", "toutes"))[form]
    but_one = f"{that} qui est {is_so}"
    return [
        (f"Il n'y a {none} {a.one}, sauf {but_one}.", f"Il y a d'autres {a.many} que {but_one}."),
        (f"Il n'y a ni {a.one} ni {b.one}.", f"Il y a {b.a}, mais pas {a.de}."),
        (f"Il y a {a.a}, mais pas {b.de}.", f"Il y a {b.a}, mais pas {a.de}."),
        (f"Les {a.many} ne sont pas {all_} {are_so}.", f"Les {a.many} sont {all_} {are_so}."),
        (f"Il y avait autrefois {a.a}.", f"Il y a toujours {a.a}."),
        (f"Il y a {a.a} qui n'est pas {is_second}.", f"Il y a {a.a} qui est {is_second}."),
    ]


FRENCH = Language(
    "fr", "French", sentences, "Ce qui suit n'est pas vrai : {}",
    (
        "Dryer, Negative Morphemes, WALS Online, chapter 112 (https://wals.info/chapter/112)",
        "Miestamo, Symmetric and Asymmetric Standard Negation, WALS Online, chapter 113 "
        "(https://wals.info/chapter/113)",
        "Grevisse and Goosse, Le bon usage (16th edition, 2016): negation, agreement of the adjective",
    ),
)  # fmt: skip
