"""Russian. A number in brackets says which of its `sources` has the rule.

нет + genitive   What is not there stands in the genitive behind "нет", and in the nominative behind
                 "есть" [1].
ни               "ни одной чашки", "ни чашки, ни собаки": negative words take the predicate's negation
                 beside them, here "нет" [2].
кроме            Governs the genitive [1].
zero copula      There is no copula in the present [3]; "не" stands before what it denies, and before
                 "все" it denies the quantifier [1].
был, была        The past agrees in gender, "который" too; the adjective agrees in gender, number and
                 case, "синий" with soft endings [1].
"""

from __future__ import annotations

from dataclasses import dataclass

from nein.wording.languages.base import Language, Named


@dataclass(frozen=True)
class _Noun:
    gender: str
    nominative: str
    genitive: str
    plural: str


_NOUNS = {
    "airplane": _Noun("m", "самолёт", "самолёта", "самолёты"),
    "apple": _Noun("n", "яблоко", "яблока", "яблоки"), "banana": _Noun("m", "банан", "банана", "бананы"),
    "bench": _Noun("f", "скамейка", "скамейки", "скамейки"),
    "bicycle": _Noun("m", "велосипед", "велосипеда", "велосипеды"),
    "bird": _Noun("f", "птица", "птицы", "птицы"), "boat": _Noun("f", "лодка", "лодки", "лодки"),
    "book": _Noun("f", "книга", "книги", "книги"), "bottle": _Noun("f", "бутылка", "бутылки", "бутылки"),
    "bus": _Noun("m", "автобус", "автобуса", "автобусы"), "cake": _Noun("m", "торт", "торта", "торты"),
    "car": _Noun("f", "машина", "машины", "машины"), "cat": _Noun("f", "кошка", "кошки", "кошки"),
    "chair": _Noun("m", "стул", "стула", "стулья"), "cup": _Noun("f", "чашка", "чашки", "чашки"),
    "dog": _Noun("f", "собака", "собаки", "собаки"),
    "kite": _Noun("m", "воздушный змей", "воздушного змея", "воздушные змеи"),
    "pizza": _Noun("f", "пицца", "пиццы", "пиццы"), "sheep": _Noun("f", "овца", "овцы", "овцы"),
    "teddy bear": _Noun("m", "плюшевый мишка", "плюшевого мишки", "плюшевые мишки"),
    "umbrella": _Noun("m", "зонт", "зонта", "зонты"),
}  # fmt: skip
_STEMS = {
    "red": "красн", "orange": "оранжев", "yellow": "жёлт", "green": "зелён", "blue": "син",
    "purple": "фиолетов", "pink": "розов", "brown": "коричнев", "black": "чёрн", "grey": "сер",
    "white": "бел", "tan": "бежев",
}  # fmt: skip
_HARD = {"m": "ый", "f": "ая", "n": "ое", "genitive m": "ого", "genitive f": "ой", "genitive n": "ого",
         "plural": "ые"}  # fmt: skip
_SOFT = {"m": "ий", "f": "яя", "n": "ее", "genitive m": "его", "genitive f": "ей", "genitive n": "его",
         "plural": "ие"}  # fmt: skip
_WAS = {"m": "был", "f": "была", "n": "было"}
_WHICH = {"m": "который", "f": "которая", "n": "которое"}
_NOT_ONE = {"m": "ни одного", "f": "ни одной", "n": "ни одного"}


def _colour(name: str, form: str) -> str:
    return _STEMS[name] + (_SOFT if name == "blue" else _HARD)[form]


def sentences(named: Named) -> list[tuple[str, str]]:
    a, b = _NOUNS[named.thing], _NOUNS[named.other]
    but_one = f"кроме {_colour(named.colour, f'genitive {a.gender}')}"
    are_so, is_second = _colour(named.colour, "plural"), _colour(named.second, a.gender)
    which = _WHICH[a.gender]
    return [
        (f"Нет {_NOT_ONE[a.gender]} {a.genitive}, {but_one}.", f"Есть и другие {a.plural}, {but_one}."),
        (f"Нет ни {a.genitive}, ни {b.genitive}.", f"Есть {b.nominative}, но нет {a.genitive}."),
        (f"Есть {a.nominative}, но нет {b.genitive}.", f"Есть {b.nominative}, но нет {a.genitive}."),
        (f"Не все {a.plural} {are_so}.", f"Все {a.plural} {are_so}."),
        (f"Раньше здесь {_WAS[a.gender]} {a.nominative}.", f"Здесь всё ещё есть {a.nominative}."),
        (f"Есть {a.nominative}, {which} не {is_second}.", f"Есть {a.nominative}, {which} {is_second}."),
    ]


RUSSIAN = Language(
    "ru", "Russian", sentences, "Следующее неверно: {}",
    (
        "Wade, A Comprehensive Russian Grammar (3rd edition, 2011): the genitive, negation, the adjective",
        "Haspelmath, Negative Indefinite Pronouns and Predicate Negation, WALS Online, chapter 115 "
        "(https://wals.info/chapter/115)",
        "Stassen, Zero Copula for Predicate Nominals, WALS Online, chapter 120 (https://wals.info/chapter/120)",
    ),
)  # fmt: skip
