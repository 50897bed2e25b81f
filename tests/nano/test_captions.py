"""Captions say only what is true of a scene, and never negate; all are those that models were trained on."""

import hashlib
import random
import re

import pytest

from nein.nano.draw import BACKGROUNDS, CATEGORIES
from nein.nano.scenes import Scene, rng_for
from nein.nano.sentences import captions, is_true_of, names, plural
from tests.nano.words import negated, random_scene

#: Every way to name a category, one or many of it.
SINGULAR = {noun: c for c in CATEGORIES for noun in names(c)}
PLURAL = {plural(noun): c for c in CATEGORIES for noun in names(c)}


def pattern(words):
    return "(?:" + "|".join(sorted(map(re.escape, words), key=len, reverse=True)) + ")"


THING = re.compile(rf"\b{pattern({*SINGULAR, *PLURAL})}\b")


def category_of(words):
    return SINGULAR[words] if words in SINGULAR else PLURAL[words]


@pytest.fixture(scope="module")
def told():
    scenes = [random_scene(rng_for("train", i, "captions test")) for i in range(1600)]
    scenes += [Scene(kind, 1, ()) for kind in BACKGROUNDS]
    return [(s, c.lower()) for i, s in enumerate(scenes) for c in captions(s, random.Random(i))]


def test_the_captions_are_those_that_the_models_were_trained_on(told):
    told = "\n".join(sentence for _, sentence in told)
    assert hashlib.sha256(told.encode()).hexdigest()[:16] == "177a0ce5f7b60b8a"


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
