"""The rule that reads what a sentence says of an object."""

from __future__ import annotations

import pytest

from nein.datasets.negbench.polarity import changed, polarity

DENIED = [
    ("There is no dog in the image. A cat sleeps.", "dog"),
    ("A cat sleeps on a sofa, with no dog in sight.", "dog"),
    ("A cat sleeps on a sofa without a dog.", "dog"),
    ("The image shows a cat but not a dog.", "dog"),
    ("The picture doesn\u2019t include any dogs.", "dog"),
    ("The picture does not include a dog or a horse.", "horse"),
    ("Neither a dog nor a horse can be seen.", "horse"),
    ("Dogs are absent from this scene.", "dog"),
    ("A dog is nowhere to be seen.", "dog"),
    ("A dog is not present here, only a cat.", "dog"),
    ("This image lacks a dog.", "dog"),
    ("The street is devoid of traffic lights.", "traffic light"),
    ("A cat and a sofa, but there is no dog.", "dog"),
    ("This image features a cat and does not feature a dog.", "dog"),
    ("Without a dog in sight, a cat sleeps on the sofa.", "dog"),
    ("No dog, no horse.", "horse"),
]
AFFIRMED = [
    ("There is no dog in the image. A cat sleeps.", "cat"),
    ("A cat sleeps on a sofa, with no dog in sight.", "cat"),
    ("A cat sleeps on a sofa, with no dog in sight.", "sofa"),
    ("The image shows a cat but not a dog.", "cat"),
    ("Although there is no dog, a cat sleeps here; the sofa is red.", "sofa"),
    ("Not only a dog but also a cat is here.", "dog"),
    ("Two dogs, a cat and a horse stand on the beach.", "horse"),
    ("There is no dog in the picture, but a cat is sleeping.", "cat"),
    ("Without a dog in sight, a cat sleeps on the sofa.", "cat"),
    ("This image features a cat and does not feature a dog.", "cat"),
]


@pytest.mark.parametrize(("sentence", "noun"), DENIED)
def test_a_denied_object_is_denied(sentence: str, noun: str) -> None:
    assert polarity(sentence, noun) == "denied"


@pytest.mark.parametrize(("sentence", "noun"), AFFIRMED)
def test_an_affirmed_object_is_affirmed(sentence: str, noun: str) -> None:
    assert polarity(sentence, noun) == "affirmed"


def test_a_part_of_another_word_is_no_mention() -> None:
    assert polarity("A hotdog on a plate.", "dog") == "missing"
    assert polarity("A catalogue lies there.", "cat") == "missing"


def test_a_contradiction_is_seen() -> None:
    assert polarity("A dog runs. There is no dog.", "dog") == "both"


@pytest.mark.parametrize(
    ("paraphrase", "why"),
    [
        ("A cat is asleep on the beach, and there is no dog around.", ""),
        ("A cat is asleep on the beach with a dog.", "polarity changed"),
        ("No cat is asleep on the beach, only a dog.", "polarity changed"),
        ("A cat is asleep on the beach.", "an object is lost"),
        ("There is no dog around, but a cat is asleep on the beach.", "order changed"),
    ],
)
def test_a_paraphrase_is_held_to_objects_polarity_and_order(paraphrase: str, why: str) -> None:
    original = "A cat sleeps on the beach. There is no dog in the image."
    assert changed(paraphrase, ["cat"], ["dog"], keep_order_of=original) == why


def test_order_matters_only_where_it_is_asked_for() -> None:
    turned = "There is no dog around, but a cat is asleep on the beach."
    assert changed(turned, ["cat"], ["dog"]) == ""


@pytest.mark.parametrize(
    ("sentence", "noun", "said"),
    [
        ("There is no lack of dogs here.", "dog", "unclear"),
        ("You cannot miss the dog.", "dog", "unclear"),
        ("The dogs are not missing.", "dog", "unclear"),
        ("Everything except a dog is here.", "dog", "unclear"),
        ("There might be a dog.", "dog", "unclear"),
        ("A dog would be nice.", "dog", "unclear"),
        ("A dog could not be seen.", "dog", "denied"),
        ("A cat instead of a dog sits there.", "dog", "denied"),
        ("There is no dog; instead, a cat sleeps.", "cat", "affirmed"),
        ("The scene fails to show a dog.", "dog", "denied"),
        ("Absent from the scene is a dog.", "dog", "denied"),
        ("A dog-free street.", "dog", "denied"),
        ("A dog is not the only animal; a cat is there too.", "dog", "affirmed"),
        ("A cat, without a doubt, and a dog.", "dog", "affirmed"),
        ("A cat looks like it sleeps.", "cat", "affirmed"),
    ],
)
def test_denials_of_denials_exceptions_and_guesses_are_not_taken_for_plain_words(
    sentence: str, noun: str, said: str
) -> None:
    assert polarity(sentence, noun) == said


def test_a_paraphrase_may_not_bring_in_an_object_that_the_original_leaves_out() -> None:
    assert changed("A cat and a car, but no dog.", ["cat"], ["dog"], others=["car"]) == "an object is added"
    assert changed("A cat, but no dog and no car.", ["cat"], ["dog"], others=["car"]) == "an object is added"
    assert changed("A cat, but no dog.", ["cat"], ["dog"], others=["car"]) == ""
    assert changed("There is no lack of dogs, nor of cats.", [], ["dog"]) == "polarity unclear"
