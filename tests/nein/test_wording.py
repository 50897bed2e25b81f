"""Sentences about negation: grammar of every template and language, and that the loader reads them back."""

import itertools
import re

import pytest

from nein.generate.nein import algorithms
from nein.generate.nein.sources import COCO
from nein.nano.draw import CATEGORIES, LOOKS, PALETTE
from nein.wording import families, nouns
from nein.wording.families import FAMILIES, STAYS, choices, sentence
from nein.wording.languages.base import COLOURS, CONSTRUCTIONS, THINGS, Named
from nein.wording.languages.table import LANGUAGES

NOUNS = ("cat", "umbrella", "traffic light", "skis", "hour hand", "people")


def all_sentences(label, noun, protocol="fixed"):
    return [
        sentence(label, index, noun, second="apple", present="teddy bear", protocol=protocol)
        for index in choices(label, noun, protocol)
    ]


@pytest.mark.parametrize(("noun", "article", "many"), [
    ("cat", "a cat", "cats"), ("umbrella", "an umbrella", "umbrellas"), ("hour", "an hour", "hours"),
    ("unicorn", "a unicorn", "unicorns"), ("fire hydrant", "a fire hydrant", "fire hydrants"),
    ("wine glass", "a wine glass", "wine glasses"), ("bus", "a bus", "buses"),
    ("person", "a person", "people"), ("knife", "a knife", "knives"), ("mouse", "a mouse", "mice"),
    ("sheep", "a sheep", "sheep"), ("skis", "skis", "skis"), ("scissors", "scissors", "scissors"),
    ("broccoli", "broccoli", "broccoli"), ("glasses", "glasses", "glasses"), ("jeans", "jeans", "jeans"),
    ("thermos", "a thermos", "thermoses"), ("hippopotamus", "a hippopotamus", "hippopotamuses"),
    ("glass", "a glass", "glasses"), ("tutus", "tutus", "tutus"), ("kangaroos", "kangaroos", "kangaroos"),
])  # fmt: skip
def test_articles_and_plurals(noun, article, many):
    assert nouns.with_article(noun) == article
    assert nouns.plural(noun) == many


@pytest.mark.parametrize(("given", "name"), [
    ("the apple", "apple"), ("apple.", "apple"), (" An  apple 。", "apple"), ("Some apples!", "apples"),
    ("The", "The"), ("stop sign", "stop sign"), ("theater", "theater"), ("«», 。", "«»"), (". ", ""),
])  # fmt: skip
def test_a_name_stands_without_article_and_punctuation(given, name):
    assert nouns.bare(given) == name
    if name:
        assert families.removal(families.added(f"Add a {given}.")) == f"Remove the {name}."


#: label, first noun, second noun, the sentence of the first template.
FIRST = [
    ("exception", "umbrella", "apple", "Everything but an umbrella."),
    ("exception", "skis", "apple", "Everything but skis."),
    ("neither_nor", "traffic light", "apple", "Neither a traffic light nor an apple is in the image."),
    ("neither_nor", "cat", "skis", "Neither a cat nor skis are in the image."),  # agrees with the nearer
    ("scoped", "skis", "apple", "The image has a teddy bear but no skis."),
    ("contrastive", "umbrella", "apple", "The image shows a teddy bear, not an umbrella."),
    ("double_negation", "hour hand", "apple", "The image is not without an hour hand."),
    ("implicit", "traffic light", "apple", "The image is free of traffic lights."),
    ("implicit", "skis", "apple", "The image is free of skis."),
]


@pytest.mark.parametrize(("label", "noun", "second", "expected"), FIRST)
def test_the_first_template_of_a_family_reads_like_this(label, noun, second, expected):
    assert sentence(label, 0, noun, second=second, present="teddy bear") == expected


def test_every_thing_and_colour_of_the_drawn_world_has_its_words():
    assert set(THINGS) <= set(CATEGORIES)
    assert {colour for thing in THINGS for colour in LOOKS[thing].colours} <= set(COLOURS) == set(PALETTE)
    assert len(COCO) == 80
    assert [noun for noun in COCO if nouns.is_plural(noun)] == ["skis", "scissors"]
    assert {"double_negation", "clause", "not_all"} == STAYS


@pytest.mark.parametrize("label", FAMILIES)
@pytest.mark.parametrize("noun", NOUNS)
def test_every_sentence_is_well_formed_and_names_its_object(label, noun):
    found = all_sentences(label, noun)
    assert len(set(found)) == len(found)
    assert len(found) >= 3
    for text in found:
        assert text[0].isupper()
        assert text.endswith(".")
        assert "  " not in text
        assert "{" not in text
        assert nouns.plural(noun) in text.lower() or noun in text.lower()
        for word, following in re.findall(r"\b([Aa]n?) (\w+)", text):
            vowel = following[0] in "aeiou" or following == "hour"
            assert (word.lower() == "an") == vowel, text
        if nouns.is_plural(noun):
            assert f"{noun} is " not in text.lower()
            assert f"a {noun}" not in text.lower().split(" nor ")[0]
            assert "single" not in text
        else:
            assert f"{noun} are " not in text.lower()


def test_the_paper_protocol_says_neins_own_sentences_and_differs_for_plurals():
    for noun in COCO:
        official = [families.negative_sentence(index, noun) for index in range(13)]
        assert all_sentences("plain", noun, "paper") == official
        assert (all_sentences("plain", noun) == official) == (not nouns.is_plural(noun))
    assert sentence("plain", 10, "skis") == "Skis are missing from the image."
    assert sentence("plain", 10, "skis", protocol="paper") == "Skis is missing from the image."
    assert algorithms.addition("skis", "paper") == "Add a skis."
    assert algorithms.addition("skis", "fixed") == "Add some skis."


@pytest.mark.parametrize("protocol", ["paper", "fixed"])
def test_the_loader_finds_object_and_template_of_every_sentence(protocol):
    for noun in COCO:
        added = algorithms.addition(noun, protocol)
        assert added.split()[2:] == (noun + ".").split()  # how the official scripts read the object
        for label in FAMILIES:
            for index in choices(label, noun, protocol):
                text = sentence(label, index, noun, second="dog", present="cat", protocol=protocol)
                assert families.object_of(added, text) == noun
                if label == "plain":
                    assert families.template_of(text, noun) == index


#: (language, family, what is named, which of the pair, what is said), and the rule that it shows.
RULES = [
    # English: "no" and a plural without an ending; "neither" with the article by sound; "not" before "all".
    ("en", "except_one", ("sheep", "cup", "tan", "white"), 0, "There are no sheep except the tan one."),
    ("en", "neither_nor", ("cup", "umbrella", "red", "blue"), 0, "There is neither a cup nor an umbrella."),
    ("en", "not_all", ("bus", "cup", "red", "blue"), 0, "Not all buses are red."),
    # German: "außer" governs the dative, masculine and feminine; "-farben" for what is not declined.
    ("de", "except_one", ("apple", "cup", "red", "green"), 0, "Es gibt keine Äpfel außer dem roten."),
    ("de", "except_one", ("cup", "dog", "red", "blue"), 1, "Es gibt außer der roten noch andere Tassen."),
    ("de", "except_one", ("cat", "dog", "orange", "black"), 0,
     "Es gibt keine Katzen außer der orangefarbenen."),
    # "Es gibt" governs the accusative; a weak noun has its ending; "kein" is declined as "ein" is.
    ("de", "neither_nor", ("dog", "teddy bear", "black", "white"), 0,
     "Es gibt weder einen Hund noch einen Teddybären."),
    ("de", "scoped", ("airplane", "kite", "red", "blue"), 0, "Es gibt ein Flugzeug, aber keinen Drachen."),
    # The relative pronoun agrees in gender and is a subject; "nicht" before the adjective, the verb last.
    ("de", "clause", ("bird", "cup", "red", "blue"), 0, "Es gibt einen Vogel, der nicht blau ist."),
    ("de", "clause", ("boat", "cup", "brown", "red"), 1, "Es gibt ein Boot, das rot ist."),
    # French: "aucun" agrees, with "ne" and without "pas"; so does "celui".
    ("fr", "except_one", ("car", "dog", "red", "blue"), 0,
     "Il n'y a aucune voiture, sauf celle qui est rouge."),
    ("fr", "except_one", ("dog", "car", "white", "black"), 0,
     "Il n'y a aucun chien, sauf celui qui est blanc."),
    # No article behind "ni"; "de" for the indefinite article, elided before a vowel.
    ("fr", "neither_nor", ("apple", "bench", "red", "green"), 0, "Il n'y a ni pomme ni banc."),
    ("fr", "scoped", ("apple", "bird", "red", "green"), 0, "Il y a une pomme, mais pas d'oiseau."),
    # The adjective agrees as a predicate, in the plural; names of fruits do not.
    ("fr", "not_all", ("cup", "dog", "green", "blue"), 0, "Les tasses ne sont pas toutes vertes."),
    ("fr", "not_all", ("dog", "cup", "brown", "white"), 1, "Les chiens sont tous marron."),
    ("fr", "clause", ("airplane", "cup", "red", "white"), 0, "Il y a un avion qui n'est pas blanc."),
    # Spanish: negative concord; "ningún" before a masculine noun; "del".
    ("es", "except_one", ("dog", "cup", "black", "white"), 0, "No hay ningún perro excepto el negro."),
    ("es", "except_one", ("dog", "cup", "black", "white"), 1, "Hay otros perros además del negro."),
    ("es", "scoped", ("dog", "cup", "black", "white"), 0, "Hay un perro, pero no hay ninguna taza."),
    ("es", "not_all", ("cup", "dog", "red", "blue"), 0, "No todas las tazas son rojas."),
    ("es", "not_all", ("cup", "dog", "blue", "red"), 1, "Todas las tazas son azules."),
    ("es", "clause", ("cup", "dog", "red", "green"), 0, "Hay una taza que no es verde."),
    # Russian: the genitive behind "нет", "ни" and "кроме", and the nominative behind "есть".
    ("ru", "except_one", ("cup", "dog", "red", "blue"), 0, "Нет ни одной чашки, кроме красной."),
    ("ru", "except_one", ("apple", "dog", "green", "red"), 0, "Нет ни одного яблока, кроме зелёного."),
    ("ru", "neither_nor", ("dog", "kite", "black", "white"), 0, "Нет ни собаки, ни воздушного змея."),
    ("ru", "scoped", ("book", "bus", "red", "blue"), 0, "Есть книга, но нет автобуса."),
    # No copula; an irregular plural; the soft adjective; past and "который" agree in gender.
    ("ru", "not_all", ("chair", "cup", "red", "green"), 0, "Не все стулья красные."),
    ("ru", "clause", ("apple", "cup", "red", "blue"), 0, "Есть яблоко, которое не синее."),
    ("ru", "past", ("cup", "dog", "red", "blue"), 0, "Раньше здесь была чашка."),
    ("ru", "past", ("apple", "dog", "red", "green"), 0, "Раньше здесь было яблоко."),
    # Turkish: the ablative by harmony and assimilation; "yok" of existence, "değil" of a quality.
    ("tr", "except_one", ("cup", "dog", "red", "blue"), 0, "Kırmızı fincandan başka fincan yok."),
    ("tr", "except_one", ("book", "dog", "red", "blue"), 0, "Kırmızı kitaptan başka kitap yok."),
    ("tr", "except_one", ("bottle", "dog", "green", "blue"), 1, "Yeşil şişeden başka şişeler de var."),
    ("tr", "except_one", ("bicycle", "dog", "red", "blue"), 1,
     "Kırmızı bisikletten başka bisikletler de var."),
    ("tr", "neither_nor", ("cup", "dog", "red", "blue"), 0, "Ne fincan ne köpek var."),
    ("tr", "not_all", ("dog", "cup", "black", "white"), 0, "Köpeklerin hepsi siyah değil."),
    ("tr", "clause", ("cup", "dog", "red", "blue"), 0, "Mavi olmayan bir fincan var."),
    # Japanese: いる of animals and ある of things, each denied in its own way.
    ("ja", "neither_nor", ("cup", "dog", "red", "blue"), 0, "カップもなければ、犬もいない。"),
    ("ja", "neither_nor", ("dog", "cup", "black", "white"), 0, "犬もいなければ、カップもない。"),
    ("ja", "past", ("cat", "dog", "black", "white"), 0, "以前は猫がいた。"),
    ("ja", "past", ("teddy bear", "dog", "brown", "tan"), 0, "以前はテディベアがあった。"),
    # Adjectives in い and nouns of colours, denied, before a noun and before わけ.
    ("ja", "clause", ("cup", "dog", "red", "blue"), 0, "青くないカップがある。"),
    ("ja", "clause", ("cup", "dog", "red", "green"), 0, "緑色ではないカップがある。"),
    ("ja", "not_all", ("cup", "dog", "red", "blue"), 0, "すべてのカップが赤いわけではない。"),
    ("ja", "not_all", ("cup", "dog", "green", "blue"), 0, "すべてのカップが緑色なわけではない。"),
    ("ja", "not_all", ("cup", "dog", "green", "blue"), 1, "すべてのカップが緑色だ。"),
    # Chinese: 没有 of existence and 不是 of a quality; the classifier goes by the noun.
    ("zh", "except_one", ("book", "dog", "red", "blue"), 0, "除了红色的那本，没有别的书。"),
    ("zh", "scoped", ("cup", "dog", "red", "blue"), 0, "有杯子，但是没有狗。"),
    ("zh", "not_all", ("cup", "dog", "red", "blue"), 0, "不是所有的杯子都是红色的。"),
    ("zh", "clause", ("dog", "cup", "black", "white"), 0, "有一只狗不是白色的。"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "family", "named", "which", "said"), RULES)
def test_a_sentence_follows_the_rule(code, family, named, which, said):
    assert LANGUAGES[code].pair(family, Named(*named))[which] == said


@pytest.mark.parametrize("code", LANGUAGES)
def test_every_thing_and_colour_has_its_words(code):
    language = LANGUAGES[code]
    said = set()
    for thing, other in zip(THINGS, (*THINGS[1:], THINGS[0]), strict=True):
        for colour, second in itertools.pairwise((*COLOURS, COLOURS[0])):
            pairs = [language.pair(family, Named(thing, other, colour, second)) for family in CONSTRUCTIONS]
            for text in itertools.chain(*pairs):
                assert text == text.strip()
                assert text[-1] in ".。"
                assert text[0] == text[0].upper()
            assert all(first != second for first, second in pairs)
            said.add(pairs[0])
    assert len(said) == len(THINGS) * len(COLOURS)
    assert language.sources


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_denial_above_makes_either_sentence_what_the_other_was(code):
    named, language = Named("cup", "dog", "red", "blue"), LANGUAGES[code]
    first, second = language.pair("clause", named)
    once = language.pair("clause", named, 1)
    assert once == (language.untrue.format(second), language.untrue.format(first))
    assert language.pair("clause", named, 2)[0] == language.untrue.format(once[1])
