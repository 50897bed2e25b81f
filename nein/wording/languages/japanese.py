"""Japanese. A number in brackets says which of its `sources` has the rule.

ある, いる       "there is": いる of what lives and moves by itself, ある of all else; denied, いない and
                ない [1]. The denial goes by the noun, so that "neither ... nor" has one for each.
～もなければ、～もない   "there is neither ... nor ...": the first denied in the conditional [1].
わけではない     Denies that something holds of all [2].
くない, ではない  Adjectives in い are denied by くない, nouns by ではない; before a noun a noun takes の,
                and before わけ it takes な [1] [2].
以外            "other than": with に and a denial "none but" [2].
は              Marks what is set against each other, and what a denial is about [1].
"""

from __future__ import annotations

from dataclasses import dataclass

from nein.wording.languages.base import Language, Named

_NOUNS = {
    "airplane": "飛行機", "apple": "りんご", "banana": "バナナ", "bench": "ベンチ", "bicycle": "自転車",
    "bird": "鳥", "boat": "ボート", "book": "本", "bottle": "瓶", "bus": "バス", "cake": "ケーキ",
    "car": "車", "cat": "猫", "chair": "椅子", "cup": "カップ", "dog": "犬", "kite": "凧", "pizza": "ピザ",
    "sheep": "羊", "teddy bear": "テディベア", "umbrella": "傘",
}  # fmt: skip
_ANIMATE = ("bird", "cat", "dog", "sheep")


@dataclass(frozen=True)
class _Being:
    """The forms of "to be there"."""

    is_there: str
    is_not: str
    were_it_not: str
    was: str


_ARU, _IRU = _Being("ある", "ない", "なければ", "あった"), _Being("いる", "いない", "いなければ", "いた")
#: Adjectives in い, by what stands before it, and nouns.
_ADJECTIVES = {"red": "赤", "yellow": "黄色", "blue": "青", "brown": "茶色", "black": "黒", "white": "白"}
_COLOUR_NOUNS = {
    "orange": "オレンジ色", "green": "緑色", "purple": "紫色", "pink": "ピンク色", "grey": "灰色",
    "tan": "ベージュ色",
}  # fmt: skip


def _before_noun(colour: str) -> str:
    return f"{_ADJECTIVES[colour]}い" if colour in _ADJECTIVES else f"{_COLOUR_NOUNS[colour]}の"


def _denied_before_noun(colour: str) -> str:
    return f"{_ADJECTIVES[colour]}くない" if colour in _ADJECTIVES else f"{_COLOUR_NOUNS[colour]}ではない"


def _predicate(colour: str) -> tuple[str, str]:
    """Of "all are", and before わけ."""
    if colour in _ADJECTIVES:
        return f"{_ADJECTIVES[colour]}い", f"{_ADJECTIVES[colour]}い"
    return f"{_COLOUR_NOUNS[colour]}だ", f"{_COLOUR_NOUNS[colour]}な"


def sentences(named: Named) -> list[tuple[str, str]]:
    a, b = _NOUNS[named.thing], _NOUNS[named.other]
    of_a, of_b = (_IRU if name in _ANIMATE else _ARU for name in (named.thing, named.other))
    but_one, (is_so, so) = f"{_before_noun(named.colour)}{a}以外に", _predicate(named.colour)
    is_second, not_second = _before_noun(named.second), _denied_before_noun(named.second)
    return [
        (f"{but_one}{a}は{of_a.is_not}。", f"{but_one}も{a}が{of_a.is_there}。"),
        (f"{a}も{of_a.were_it_not}、{b}も{of_b.is_not}。", f"{b}は{of_b.is_there}が、{a}は{of_a.is_not}。"),
        (f"{a}は{of_a.is_there}が、{b}は{of_b.is_not}。", f"{b}は{of_b.is_there}が、{a}は{of_a.is_not}。"),
        (f"すべての{a}が{so}わけではない。", f"すべての{a}が{is_so}。"),
        (f"以前は{a}が{of_a.was}。", f"今でも{a}が{of_a.is_there}。"),
        (f"{not_second}{a}が{of_a.is_there}。", f"{is_second}{a}が{of_a.is_there}。"),
    ]


JAPANESE = Language(
    "ja", "Japanese", sentences, "次のことは正しくない：{}",
    (
        "Makino and Tsutsui, A Dictionary of Basic Japanese Grammar (1986): aru, iru, nai, ba, wa, mo",
        "Makino and Tsutsui, A Dictionary of Intermediate Japanese Grammar (1995): wake de wa nai, igai",
    ),
)  # fmt: skip
