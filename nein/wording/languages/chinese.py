"""Chinese (Mandarin, simplified characters). A number in brackets says which of its `sources` has the rule.

有, 没有      "there is" is denied by 没, and by nothing else; 是 and adjectives by 不 [1].
既 ... 也     With 没有 behind both: neither ... nor [1].
不是所有      不是 before the quantifier denies it; 都 goes with the plural subject [1].
classifiers  Numerals and demonstratives take the classifier of the noun, 那只, 一本 [2].
pivot        What 有 introduces is the subject of a second clause, which is denied by itself: 有一个杯子
             不是蓝色的 [1].
除了         "except", with 没有别的 "none but", with 还有 "as well as" [1].
"""

from __future__ import annotations

from nein.wording.languages.base import Language, Named

#: The noun and its classifier.
_NOUNS = {
    "airplane": ("飞机", "架"), "apple": ("苹果", "个"), "banana": ("香蕉", "根"), "bench": ("长椅", "张"),
    "bicycle": ("自行车", "辆"), "bird": ("鸟", "只"), "boat": ("船", "艘"), "book": ("书", "本"),
    "bottle": ("瓶子", "个"), "bus": ("公共汽车", "辆"), "cake": ("蛋糕", "个"), "car": ("汽车", "辆"),
    "cat": ("猫", "只"), "chair": ("椅子", "把"), "cup": ("杯子", "个"), "dog": ("狗", "只"),
    "kite": ("风筝", "只"), "pizza": ("披萨", "个"), "sheep": ("羊", "只"), "teddy bear": ("泰迪熊", "只"),
    "umbrella": ("雨伞", "把"),
}  # fmt: skip
_COLOURS = {
    "red": "红色", "orange": "橙色", "yellow": "黄色", "green": "绿色", "blue": "蓝色", "purple": "紫色",
    "pink": "粉色", "brown": "棕色", "black": "黑色", "grey": "灰色", "white": "白色", "tan": "米色",
}  # fmt: skip


def sentences(named: Named) -> list[tuple[str, str]]:
    (a, of_a), (b, _) = _NOUNS[named.thing], _NOUNS[named.other]
    is_so, second = _COLOURS[named.colour], _COLOURS[named.second]
    one, but_one = f"一{of_a}{a}", f"除了{is_so}的那{of_a}"
    return [
        (f"{but_one}，没有别的{a}。", f"{but_one}，还有别的{a}。"),
        (f"既没有{a}，也没有{b}。", f"有{b}，但是没有{a}。"),
        (f"有{a}，但是没有{b}。", f"有{b}，但是没有{a}。"),
        (f"不是所有的{a}都是{is_so}的。", f"所有的{a}都是{is_so}的。"),
        (f"以前有{one}。", f"现在仍然有{one}。"),
        (f"有{one}不是{second}的。", f"有{one}是{second}的。"),
    ]


CHINESE = Language(
    "zh", "Chinese", sentences, "下面这句话不对：{}",
    (
        "Li and Thompson, Mandarin Chinese: A Functional Reference Grammar (1981): chapter 12, Negation; "
        "chapter 17, Presentative Sentences",
        "Gil, Numeral Classifiers, WALS Online, chapter 55 (https://wals.info/chapter/55)",
    ),
)  # fmt: skip
