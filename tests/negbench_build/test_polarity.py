"""The rule that reads what a sentence says of an object."""

from __future__ import annotations

import pytest

from nein.datasets.negbench.polarity import changed, polarity

#: Sentence -> what it says of which objects.
SAID: dict[str, dict[str, str]] = {
    "There is no dog in the image. A cat sleeps.": {"dog": "denied", "cat": "affirmed"},
    "A cat sleeps on a sofa, with no dog in sight.": {
        "dog": "denied", "cat": "affirmed", "sofa": "affirmed",
    },
    "A cat sleeps on a sofa without a dog.": {"dog": "denied"},
    "The image shows a cat but not a dog.": {"dog": "denied", "cat": "affirmed"},
    "The picture doesn\u2019t include any dogs.": {"dog": "denied"},
    "The picture does not include a dog or a horse.": {"horse": "denied"},
    "Neither a dog nor a horse can be seen.": {"horse": "denied"},
    "Dogs are absent from this scene.": {"dog": "denied"},
    "A dog is nowhere to be seen.": {"dog": "denied"},
    "A dog is not present here, only a cat.": {"dog": "denied"},
    "This image lacks a dog.": {"dog": "denied"},
    "The street is devoid of traffic lights.": {"traffic light": "denied"},
    "A cat and a sofa, but there is no dog.": {"dog": "denied"},
    "This image features a cat and does not feature a dog.": {"dog": "denied", "cat": "affirmed"},
    "Without a dog in sight, a cat sleeps on the sofa.": {"dog": "denied", "cat": "affirmed"},
    "No dog, no horse.": {"horse": "denied"},
    "The street is free of dogs.": {"dog": "denied"},
    "Although there is no dog, a cat sleeps here; the sofa is red.": {"sofa": "affirmed"},
    "Not only a dog but also a cat is here.": {"dog": "affirmed"},
    "Two dogs, a cat and a horse stand on the beach.": {"horse": "affirmed"},
    "There is no dog in the picture, but a cat is sleeping.": {"cat": "affirmed"},
    # a part of another word is no mention, and a contradiction is seen
    "A hotdog on a plate.": {"dog": "missing"},
    "A catalogue lies there.": {"cat": "missing"},
    "A dog runs. There is no dog.": {"dog": "both"},
    # denials of denials, exceptions and guesses are not taken for plain words
    "There is no lack of dogs here.": {"dog": "unclear"},
    "You cannot miss the dog.": {"dog": "unclear"},
    "The dogs are not missing.": {"dog": "unclear"},
    "Everything except a dog is here.": {"dog": "unclear"},
    "There might be a dog.": {"dog": "unclear"},
    "A dog would be nice.": {"dog": "unclear"},
    "A dog could not be seen.": {"dog": "denied"},
    "A cat instead of a dog sits there.": {"dog": "denied"},
    "There is no dog; instead, a cat sleeps.": {"cat": "affirmed"},
    "The scene fails to show a dog.": {"dog": "denied"},
    "Absent from the scene is a dog.": {"dog": "denied"},
    "A dog-free street.": {"dog": "denied"},
    "A dog is not the only animal; a cat is there too.": {"dog": "affirmed"},
    "A cat, without a doubt, and a dog.": {"dog": "affirmed"},
    "A cat looks like it sleeps.": {"cat": "affirmed"},
}  # fmt: skip


@pytest.mark.parametrize("sentence", SAID)
def test_what_a_sentence_says_of_an_object(sentence: str) -> None:
    assert {noun: polarity(sentence, noun) for noun in SAID[sentence]} == SAID[sentence]


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
    if why == "order changed":
        assert changed(paraphrase, ["cat"], ["dog"]) == ""  # matters only where it is asked for


def test_a_paraphrase_may_not_bring_in_an_object_that_the_original_leaves_out() -> None:
    assert changed("A cat and a car, but no dog.", ["cat"], ["dog"], others=["car"]) == "an object is added"
    assert changed("A cat, but no dog and no car.", ["cat"], ["dog"], others=["car"]) == "an object is added"
    assert changed("A cat, but no dog.", ["cat"], ["dog"], others=["car"]) == ""
    assert changed("There is no lack of dogs, nor of cats.", [], ["dog"]) == "polarity unclear"
