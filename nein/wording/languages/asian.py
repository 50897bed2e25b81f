"""Turkish, Japanese and Chinese (Mandarin, simplified characters)."""

from __future__ import annotations

from typing import ClassVar

from nein.wording.languages.base import Language

Pairs = list[tuple[str, str]]


class Turkish(Language):
    # "there is" and "there is not" are two words, and "değil" denies what is neither a verb nor existence
    # [1, 20.2, 20.3]; "ne ... ne" mostly has a predicate that is not denied [1, 20.4]. "başka" governs the
    # ablative; "hepsi" stands behind a genitive plural, and the denial of the predicate reaches over it; a
    # relative clause is a participle, in which -mA- denies that clause alone [1]. "bir", the indefinite
    # article, stands between adjective and noun [2].
    code, title, untrue = "tr", "Turkish", "Şu doğru değil: {}"
    sources = (
        "Göksel and Kerslake, Turkish: A Comprehensive Grammar (2005), chapter 20, Negation",
        "Dryer, Indefinite Articles, WALS Online, chapter 38 (https://wals.info/chapter/38)",
    )
    nouns: ClassVar = {
        "airplane": "uçak", "apple": "elma", "banana": "muz", "bench": "bank", "bicycle": "bisiklet",
        "bird": "kuş", "boat": "tekne", "book": "kitap", "bottle": "şişe", "bus": "otobüs", "cake": "pasta",
        "car": "araba", "cat": "kedi", "chair": "sandalye", "cup": "fincan", "dog": "köpek",
        "kite": "uçurtma", "pizza": "pizza", "sheep": "koyun", "teddy bear": "oyuncak ayı",
        "umbrella": "şemsiye",
    }  # fmt: skip
    colours: ClassVar = {
        "red": "kırmızı", "orange": "turuncu", "yellow": "sarı", "green": "yeşil", "blue": "mavi",
        "purple": "mor", "pink": "pembe", "brown": "kahverengi", "black": "siyah", "grey": "gri",
        "white": "beyaz", "tan": "bej",
    }  # fmt: skip

    def sentences(self, a: str, b: str, colour: str, second: str) -> Pairs:
        # Harmony: a or e, as the last vowel is back or front; d is t behind a voiceless consonant.
        back = next(letter for letter in reversed(a) if letter in "aıoueiöü") in "aıou"
        ablative = f"{a}{'t' if a[-1] in 'fstkçşhp' else 'd'}{'an' if back else 'en'}"
        many, ending, also = (f"{a}lar", "ın", "da") if back else (f"{a}ler", "in", "de")
        but_one = f"{colour} {ablative} başka"
        return [
            (f"{but_one} {a} yok.", f"{but_one} {many} {also} var."),
            (f"ne {a} ne {b} var.", f"{b} var ama {a} yok."),
            (f"{a} var ama {b} yok.", f"{b} var ama {a} yok."),
            (f"{many}{ending} hepsi {colour} değil.", f"{many}{ending} hepsi {colour}."),
            (f"eskiden bir {a} vardı.", f"hâlâ bir {a} var."),
            (f"{second} olmayan bir {a} var.", f"{second} olan bir {a} var."),
        ]

    def capital(self, letter: str) -> str:
        return "İ" if letter == "i" else letter.upper()


class Japanese(Language):
    # "there is" is いる of what lives and moves by itself, ある of all else; denied, いない and ない. The
    # denial goes by the noun, so that "neither ... nor" has one for each, the first in the conditional; は
    # marks what is set against each other, and what a denial is about [1]. わけではない denies that
    # something holds of all; 以外に and a denial are "none but" [2]. Adjectives in い are denied by くない,
    # nouns by ではない; before a noun a noun takes の, and before わけ it takes な [1] [2].
    code, title, untrue = "ja", "Japanese", "次のことは正しくない：{}"
    sources = (
        "Makino and Tsutsui, A Dictionary of Basic Japanese Grammar (1986): aru, iru, nai, ba, wa, mo",
        "Makino and Tsutsui, A Dictionary of Intermediate Japanese Grammar (1995): wake de wa nai, igai",
    )
    nouns: ClassVar = {
        "airplane": "飛行機", "apple": "りんご", "banana": "バナナ", "bench": "ベンチ", "bicycle": "自転車",
        "bird": "鳥", "boat": "ボート", "book": "本", "bottle": "瓶", "bus": "バス", "cake": "ケーキ",
        "car": "車", "cat": "猫", "chair": "椅子", "cup": "カップ", "dog": "犬", "kite": "凧",
        "pizza": "ピザ", "sheep": "羊", "teddy bear": "テディベア", "umbrella": "傘",
    }  # fmt: skip
    _ANIMATE = ("鳥", "猫", "犬", "羊")
    #: Adjectives end in い, the others are nouns.
    colours: ClassVar = {
        "red": "赤い", "orange": "オレンジ色", "yellow": "黄色い", "green": "緑色", "blue": "青い",
        "purple": "紫色", "pink": "ピンク色", "brown": "茶色い", "black": "黒い", "grey": "灰色",
        "white": "白い", "tan": "ベージュ色",
    }  # fmt: skip

    def sentences(self, a: str, b: str, colour: str, second: str) -> Pairs:
        one, other = ("い" if noun in self._ANIMATE else "" for noun in (a, b))
        is_one, is_other = (f"{stem or 'あ'}る" for stem in (one, other))
        of_colour, all_are, before_wake = (
            (colour,) * 3 if colour[-1] == "い" else (f"{colour}の", f"{colour}だ", f"{colour}な")
        )
        is_second, not_second = (
            (second, f"{second[:-1]}くない") if second[-1] == "い" else (f"{second}の", f"{second}ではない")
        )
        but_one, was = f"{of_colour}{a}以外に", f"{one}た" if one else "あった"
        return [
            (f"{but_one}{a}は{one}ない。", f"{but_one}も{a}が{is_one}。"),
            (f"{a}も{one}なければ、{b}も{other}ない。", f"{b}は{is_other}が、{a}は{one}ない。"),
            (f"{a}は{is_one}が、{b}は{other}ない。", f"{b}は{is_other}が、{a}は{one}ない。"),
            (f"すべての{a}が{before_wake}わけではない。", f"すべての{a}が{all_are}。"),
            (f"以前は{a}が{was}。", f"今でも{a}が{is_one}。"),
            (f"{not_second}{a}が{is_one}。", f"{is_second}{a}が{is_one}。"),
        ]


class Chinese(Language):
    # "there is" is denied by 没, and by nothing else; 是 and adjectives by 不. 既 ... 也 with 没有 behind
    # both is "neither ... nor"; 不是 before the quantifier denies it, and 都 goes with the plural subject.
    # What 有 introduces is the subject of a second clause, which is denied by itself. 除了 is "except" with
    # 没有别的, and "as well as" with 还有 [1]. Numerals and demonstratives take the classifier of the noun
    # [2].
    code, title, untrue = "zh", "Chinese", "下面这句话不对：{}"
    sources = (
        "Li and Thompson, Mandarin Chinese: A Functional Reference Grammar (1981): chapter 12, Negation; "
        "chapter 17, Presentative Sentences",
        "Gil, Numeral Classifiers, WALS Online, chapter 55 (https://wals.info/chapter/55)",
    )
    #: The noun and its classifier.
    nouns: ClassVar = {
        "airplane": ("飞机", "架"), "apple": ("苹果", "个"), "banana": ("香蕉", "根"),
        "bench": ("长椅", "张"), "bicycle": ("自行车", "辆"), "bird": ("鸟", "只"), "boat": ("船", "艘"),
        "book": ("书", "本"), "bottle": ("瓶子", "个"), "bus": ("公共汽车", "辆"), "cake": ("蛋糕", "个"),
        "car": ("汽车", "辆"), "cat": ("猫", "只"), "chair": ("椅子", "把"), "cup": ("杯子", "个"),
        "dog": ("狗", "只"), "kite": ("风筝", "只"), "pizza": ("披萨", "个"), "sheep": ("羊", "只"),
        "teddy bear": ("泰迪熊", "只"), "umbrella": ("雨伞", "把"),
    }  # fmt: skip
    colours: ClassVar = {
        "red": "红色", "orange": "橙色", "yellow": "黄色", "green": "绿色", "blue": "蓝色", "purple": "紫色",
        "pink": "粉色", "brown": "棕色", "black": "黑色", "grey": "灰色", "white": "白色", "tan": "米色",
    }  # fmt: skip

    def sentences(self, a: tuple[str, str], b: tuple[str, str], colour: str, second: str) -> Pairs:
        (one, classifier), (other, _) = a, b
        a_one, but_one = f"一{classifier}{one}", f"除了{colour}的那{classifier}"
        return [
            (f"{but_one}，没有别的{one}。", f"{but_one}，还有别的{one}。"),
            (f"既没有{one}，也没有{other}。", f"有{other}，但是没有{one}。"),
            (f"有{one}，但是没有{other}。", f"有{other}，但是没有{one}。"),
            (f"不是所有的{one}都是{colour}的。", f"所有的{one}都是{colour}的。"),
            (f"以前有{a_one}。", f"现在仍然有{a_one}。"),
            (f"有{a_one}不是{second}的。", f"有{a_one}是{second}的。"),
        ]
