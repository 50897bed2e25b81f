"""Sentences about negation: grammar of every template and language, and that the loader reads them back."""

import re

import pytest

from nein.generate.maker import COCO_CATEGORIES as COCO
from nein.generate.nein import stages as algorithms
from nein.nano.scenes import CATEGORIES, LOOKS, PALETTE
from nein.wording import families
from nein.wording.families import CONSTRUCTIONS, FAMILIES, THINGS, SceneWords, write_sentence, write_twins

NOUNS = ("cat", "umbrella", "traffic light", "skis", "hour hand", "people")


def all_sentences(label, noun, protocol="fixed"):
    return [
        write_sentence(label, index, noun, second="apple", present="teddy bear", protocol=protocol)
        for index in families.list_templates(label, noun, protocol)
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
    assert families.add_article(noun) == article
    assert families.plural(noun) == many


@pytest.mark.parametrize(("given", "name"), [
    ("the apple", "apple"), ("apple.", "apple"), (" An  apple 。", "apple"), ("Some apples!", "apples"),
    ("The", "The"), ("stop sign", "stop sign"), ("theater", "theater"), ("«», 。", ""), (". ", ""),
    ("“apple”", "apple"), ("«Apple»،", "Apple"), ("¡apples!", "apples"), ("apple (red)", "apple (red)"),
    ("।", ""), ("()", ""),
])  # fmt: skip
def test_a_name_stands_without_article_and_punctuation(given, name):
    assert families.strip_article(given) == name
    if name:
        assert families.write_removal(families.parse_added(f"Add a {given}.")) == f"Remove the {name}."


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
    assert write_sentence(label, 0, noun, second=second, present="teddy bear") == expected


def test_every_thing_and_colour_of_the_drawn_world_has_its_words():
    assert set(THINGS) <= set(CATEGORIES)
    assert {colour for thing in THINGS for colour in LOOKS[thing].colors} <= set(PALETTE)
    assert len(COCO) == 80
    assert [noun for noun in COCO if families.is_plural(noun)] == ["skis", "scissors"]
    assert {"double_negation", "clause", "not_all"} == families.OBJECT_STAYS


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
        assert families.plural(noun) in text.lower() or noun in text.lower()
        for word, following in re.findall(r"\b([Aa]n?) (\w+)", text):
            vowel = following[0] in "aeiou" or following == "hour"
            assert (word.lower() == "an") == vowel, text
        if families.is_plural(noun):
            assert f"{noun} is " not in text.lower()
            assert f"a {noun}" not in text.lower().split(" nor ")[0]
            assert "single" not in text
        else:
            assert f"{noun} are " not in text.lower()


def test_the_paper_protocol_says_neins_own_sentences_and_differs_for_plurals():
    for noun in COCO:
        official = [families.write_negative(index, noun) for index in range(13)]
        assert all_sentences("plain", noun, "paper") == official
        assert (all_sentences("plain", noun) == official) == (not families.is_plural(noun))
    assert write_sentence("plain", 10, "skis") == "Skis are missing from the image."
    assert write_sentence("plain", 10, "skis", protocol="paper") == "Skis is missing from the image."
    assert algorithms.name_object("skis", "paper") == "a skis"
    assert algorithms.name_object("skis", "fixed") == "some skis"


@pytest.mark.parametrize("protocol", ["paper", "fixed"])
def test_the_loader_finds_object_and_template_of_every_sentence(protocol):
    for noun in COCO:
        added = f"Add {algorithms.name_object(noun, protocol)}."
        assert added.split()[2:] == (noun + ".").split()  # how the official scripts read the object
        for label in FAMILIES:
            for index in families.list_templates(label, noun, protocol):
                text = write_sentence(label, index, noun, second="dog", present="cat", protocol=protocol)
                assert families.find_object(added, text) == noun
                if label == "plain":
                    assert families.find_template(text, noun) == index


#: Family, what is named, which of the pair, what is said: "no" and a plural without an ending; "neither"
#: with the article by sound; "not" before "all".
RULES = [
    ("except_one", ("sheep", "cup", "tan", "white"), 0, "There are no sheep except the tan one."),
    ("neither_nor", ("cup", "umbrella", "red", "blue"), 0, "There is neither a cup nor an umbrella."),
    ("not_all", ("bus", "cup", "red", "blue"), 0, "Not all buses are red."),
    ("clause", ("cup", "dog", "red", "blue"), 1, "There is a cup that is blue."),
]


@pytest.mark.parametrize(("family", "named", "which", "said"), RULES)
def test_a_sentence_follows_the_rule(family, named, which, said):
    assert write_twins(family, SceneWords(*named))[which] == said


def test_a_denial_above_makes_either_sentence_what_the_other_was():
    named = SceneWords("cup", "dog", "red", "blue")
    assert write_twins("scoped", named, 1) == (
        "The following is not true: There is a dog but not a cup.",
        "The following is not true: There is a cup but not a dog.",
    )
    assert all(len(set(write_twins(family, named, n))) == 2 for family in CONSTRUCTIONS for n in (0, 1))
