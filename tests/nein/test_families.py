"""Grammar of every template of every family, and that the loader reads back what the builder writes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from nein.generate.nein import algorithms
from nein.generate.nein.sources import COCO
from nein.wording import nouns, templates
from nein.wording.families import FAMILIES, STAYS, choices, sentence

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
    ("broccoli", "broccoli", "broccoli"),
])  # fmt: skip
def test_articles_and_plurals(noun, article, many):
    assert nouns.with_article(noun) == article
    assert nouns.plural(noun) == many


def test_of_the_categories_of_coco_two_are_plural():
    assert len(COCO) == 80
    assert [noun for noun in COCO if nouns.is_plural(noun)] == ["skis", "scissors"]


@pytest.mark.parametrize(("label", "noun", "expected"), [
    ("exception", "umbrella", "Everything but an umbrella."),
    ("exception", "skis", "Everything but skis."),
    ("neither_nor", "traffic light", "Neither a traffic light nor an apple is in the image."),
    ("neither_nor", "people", "Neither people nor an apple is in the image."),
    ("scoped", "skis", "The image has a teddy bear but no skis."),
    ("contrastive", "umbrella", "The image shows a teddy bear, not an umbrella."),
    ("double_negation", "hour hand", "The image is not without an hour hand."),
    ("implicit", "cat", "The image is free of cats."),
    ("implicit", "traffic light", "The image is free of traffic lights."),
    ("implicit", "skis", "The image is free of skis."),
])  # fmt: skip
def test_the_first_template_of_a_family_reads_like_this(label, noun, expected):
    assert all_sentences(label, noun)[0] == expected


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


def test_a_verb_agrees_with_the_nearer_of_two_objects():
    text = sentence("neither_nor", 0, "cat", second="skis")
    assert text == "Neither a cat nor skis are in the image."


def test_three_families_keep_their_object():
    assert {"double_negation", "clause", "not_all"} == STAYS
    assert all(" not " in text for text in all_sentences("double_negation", "cat"))


def test_the_paper_protocol_says_neins_own_sentences_and_differs_for_plurals():
    for noun in COCO:
        official = [templates.negative_sentence(index, noun) for index in range(13)]
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
                assert templates.object_of(added, text) == noun
                if label == "plain":
                    assert templates.template_of(text, noun) == index


def test_the_dictionary_of_nouns_loads_without_rewriting_itself_and_leaves_others_their_checks():
    code = (
        "import typeguard; before = typeguard.typechecked\n"
        "from nein.wording import nouns; assert nouns.plural('wine glass') == 'wine glasses'\n"
        "names = nouns.engine().plural_noun.__code__.co_names\n"
        "assert typeguard.typechecked is before; print([n for n in names if 'check_argument' in n])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
