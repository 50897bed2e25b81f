"""Turkish. A number in brackets says which of its `sources` has the rule.

var, yok      "there is" and "there is not" are two words, and "değil" denies what is neither a verb nor
              existence [1, 20.2, 20.3].
ne ... ne     "neither ... nor", mostly with a predicate that is not denied [1, 20.4].
-DAn başka    "other than" governs the ablative [1].
hepsi         "all of them", behind a genitive plural; the denial of the predicate reaches over it [1].
olan, olmayan A relative clause is a participle; -mA- in it denies that clause alone [1].
bir           The indefinite article, "one", between adjective and noun [2].
harmony       Suffixes have a or e, as the last vowel is back or front; d is t behind a voiceless
              consonant; "da" (also) is a word of its own and becomes "de" alike [1].
"""

from __future__ import annotations

from nein.wording.languages.base import Language, Named

_NOUNS = {
    "airplane": "uçak", "apple": "elma", "banana": "muz", "bench": "bank", "bicycle": "bisiklet",
    "bird": "kuş", "boat": "tekne", "book": "kitap", "bottle": "şişe", "bus": "otobüs", "cake": "pasta",
    "car": "araba", "cat": "kedi", "chair": "sandalye", "cup": "fincan", "dog": "köpek", "kite": "uçurtma",
    "pizza": "pizza", "sheep": "koyun", "teddy bear": "oyuncak ayı", "umbrella": "şemsiye",
}  # fmt: skip
_COLOURS = {
    "red": "kırmızı", "orange": "turuncu", "yellow": "sarı", "green": "yeşil", "blue": "mavi",
    "purple": "mor", "pink": "pembe", "brown": "kahverengi", "black": "siyah", "grey": "gri",
    "white": "beyaz", "tan": "bej",
}  # fmt: skip
_BACK, _FRONT, _VOICELESS = "aıou", "eiöü", "fstkçşhp"


def _is_back(word: str) -> bool:
    return next(letter for letter in reversed(word) if letter in _BACK + _FRONT) in _BACK


def _ablative(noun: str) -> str:
    return f"{noun}{'t' if noun[-1] in _VOICELESS else 'd'}{'an' if _is_back(noun) else 'en'}"


def _plural(noun: str) -> str:
    return f"{noun}{'lar' if _is_back(noun) else 'ler'}"


def _of_all(noun: str) -> str:
    """The genitive of the plural."""
    return f"{_plural(noun)}{'ın' if _is_back(noun) else 'in'}"


def sentences(named: Named) -> list[tuple[str, str]]:
    a, b = _NOUNS[named.thing], _NOUNS[named.other]
    is_so, second = _COLOURS[named.colour], _COLOURS[named.second]
    but_one, also = f"{is_so} {_ablative(a)} başka", "da" if _is_back(_plural(a)) else "de"
    return [
        (_capital(f"{but_one} {a} yok."), _capital(f"{but_one} {_plural(a)} {also} var.")),
        (f"Ne {a} ne {b} var.", _capital(f"{b} var ama {a} yok.")),
        (_capital(f"{a} var ama {b} yok."), _capital(f"{b} var ama {a} yok.")),
        (_capital(f"{_of_all(a)} hepsi {is_so} değil."), _capital(f"{_of_all(a)} hepsi {is_so}.")),
        (f"Eskiden bir {a} vardı.", f"Hâlâ bir {a} var."),
        (_capital(f"{second} olmayan bir {a} var."), _capital(f"{second} olan bir {a} var.")),
    ]


def _capital(text: str) -> str:
    """The capital of i has its dot."""
    return f"{'İ' if text[0] == 'i' else text[0].upper()}{text[1:]}"


TURKISH = Language(
    "tr", "Turkish", sentences, "Şu doğru değil: {}",
    (
        "Göksel and Kerslake, Turkish: A Comprehensive Grammar (2005), chapter 20, Negation",
        "Dryer, Indefinite Articles, WALS Online, chapter 38 (https://wals.info/chapter/38)",
    ),
)  # fmt: skip
