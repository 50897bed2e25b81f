"""Captions say only what is true of a scene, in varied words, and never negate."""

import random
import re
from collections import Counter

import pytest

from nein.nano.draw import BACKGROUNDS, CATEGORIES, PALETTE
from nein.nano.scenes import Scene, box, rng_for
from nein.nano.sentences import PLACES, captions, is_true_of, names, plural
from tests.nano.words import negated, random_scene

NUMBERS = {"two": 2, "three": 3, "four": 4}
#: Every way to name a category, one or many of it.
SINGULAR = {noun: c for c in CATEGORIES for noun in names(c)}
PLURAL = {plural(noun): c for c in CATEGORIES for noun in names(c)}


def pattern(words):
    return "(?:" + "|".join(sorted(map(re.escape, words), key=len, reverse=True)) + ")"


THING = re.compile(rf"\b{pattern({*SINGULAR, *PLURAL})}\b")
ONE = rf"an? (?:(?P<{{0}}colour>{pattern(set(PALETTE))}) )?(?P<{{0}}noun>{pattern(set(SINGULAR))})\b"
RELATION = re.compile(
    rf"{ONE.format('a_')}(?: is)? (to the left of|to the right of|above|below) {ONE.format('b_')}"
)


def category_of(words):
    return SINGULAR[words] if words in SINGULAR else PLURAL[words]


@pytest.fixture(scope="module")
def told():
    scenes = [random_scene(rng_for("train", i, "captions test")) for i in range(1600)]
    scenes += [Scene(kind, 1, ()) for kind in BACKGROUNDS]
    return [(s, c.lower()) for i, s in enumerate(scenes) for c in captions(s, random.Random(i))]


def test_no_caption_holds_a_negated_word(told):
    assert len(told) > 8000
    assert negated([sentence for _, sentence in told]) == []
    fine = ["A knot of notes is near the nose of an anorak.", "a snowy mountain at noon in november"]
    assert negated([*fine, "no dog", "It isn't here"]) == ["no dog", "It isn't here"]


def test_every_caption_names_a_thing_when_there_is_one_and_only_what_is_in_the_scene(told):
    for scene, sentence in told:
        found = THING.findall(sentence)
        assert bool(found) == bool(scene.items), (sentence, scene)
        for thing in found:
            assert category_of(thing) in scene.categories, (sentence, scene)
            assert thing in is_true_of(scene) or thing in PLURAL


def test_every_place_a_caption_names_is_the_scenes(told):
    grounds = {noun for nouns, _, _ in PLACES.values() for noun in nouns}
    place = re.compile(rf"\b{pattern(grounds)}\b")
    named = 0
    for scene, sentence in told:
        found = place.findall(sentence)
        named += bool(found)
        assert set(found) <= is_true_of(scene), (sentence, scene)
    assert named / len(told) > 0.95


def test_number_words_count_what_is_there_and_a_single_thing_is_one_of_its_colour(told):
    number, counted = re.compile(rf"\b({'|'.join(NUMBERS)}) ({pattern(set(PLURAL))})\b"), 0
    one, coloured = re.compile(r"\b" + ONE.format("")), 0
    for scene, sentence in told:
        for word, noun in number.findall(sentence):
            counted += 1
            assert sum(i.category == PLURAL[noun] for i in scene.items) == NUMBERS[word], (sentence, scene)
        for match in one.finditer(sentence):
            [item] = [i for i in scene.items if i.category == SINGULAR[match["noun"]]]
            coloured += bool(match["colour"])
            assert match["colour"] in (None, item.colour), (sentence, scene)
    assert counted > 300
    assert coloured > 1000


def test_relations_hold_between_the_visible_boxes(told):
    seen = Counter()
    for scene, sentence in told:
        for match in RELATION.finditer(sentence):
            a, b = (
                next(i for i in scene.items if i.category == SINGULAR[match[n]]) for n in ("a_noun", "b_noun")
            )
            (ax0, ay0, ax1, ay1), (bx0, by0, bx1, by1) = box(a), box(b)
            across, down = bx0 + bx1 - ax0 - ax1, by0 + by1 - ay0 - ay1
            true = {"to the left of": across, "to the right of": -across, "above": down, "below": -down}
            seen[match[3]] += 1
            assert true[match[3]] > 0.5 * max(true.values()), (sentence, scene)
    assert len(seen) == 4
    assert min(seen.values()) > 30


def test_captions_are_sentences_with_the_right_article(told):
    for _, sentence in told:
        assert sentence.endswith(".")
        assert "  " not in sentence
        assert not re.search(r"\ba [aeiou]", sentence), sentence
        assert not re.search(r"\ban [^aeiou]", sentence), sentence


def test_a_caption_may_leave_out_one_thing_of_three_or_more_only(told):
    left_out = 0
    for scene, sentence in told:
        named = {category_of(m[0]) for m in THING.finditer(sentence)}
        missing = set(scene.categories) - named
        listed = not any(word in sentence for word in (" above ", " below ", " of ", " next to "))
        if listed:
            assert len(missing) <= (len(scene.categories) > 2), (sentence, scene)
            left_out += len(missing)
    assert left_out > 50
