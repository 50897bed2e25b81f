from __future__ import annotations

import pytest

from metrics import MetricError
from metrics.letters import parse

ANIMALS = ["cat", "dog"]
FOUR = ["red", "dark red", "blue", "12"]

#: What models write: (answer, options, letter under "fixed", letter under "vlmevalkit").
ANSWERS = [
    # nothing but the letter
    ("A", ANIMALS, "A", "A"),
    ("B", ANIMALS, "B", "B"),
    ("B.", ANIMALS, "B", "B"),
    ("(B)", ANIMALS, "B", "B"),
    (" A\n", ANIMALS, "A", "A"),
    ("b", ANIMALS, "B", None),
    ("(a)", ANIMALS, "A", None),
    ("**B**", ANIMALS, "B", "B"),
    ("[A]", ANIMALS, "A", "A"),
    ('"B"', ANIMALS, "B", None),
    ("B:", ANIMALS, "B", "B"),
    ("`A`", ANIMALS, "A", None),
    ("$B$", ANIMALS, "B", None),
    # the letter and its text
    ("A. cat", ANIMALS, "A", "A"),
    ("B. dog", ANIMALS, "B", "B"),
    ("(B) dog", ANIMALS, "B", "B"),
    ("B) dog", ANIMALS, "B", "B"),
    ("A: cat.", ANIMALS, "A", "A"),
    ("B - dog", ANIMALS, "B", "B"),
    ("B, dog", ANIMALS, "B", "B"),
    ("**A. cat**", ANIMALS, "A", "A"),
    ("B\ndog", ANIMALS, "B", "B"),
    ("A.\n\nThe cat is on the left of the car.", ANIMALS, "A", None),
    ("B. dog\n\nExplanation: there is no cat in the picture", ANIMALS, "B", None),
    # a sentence with the letter
    ("The answer is B.", ANIMALS, "B", "B"),
    ("The correct answer is (A).", ANIMALS, "A", "A"),
    ("Answer: B", ANIMALS, "B", "B"),
    ("answer: b", ANIMALS, "B", None),
    ("ANSWER: A", ANIMALS, "A", "A"),
    ("The answer is: **B**", ANIMALS, "B", "B"),
    ("The correct option is B. dog", ANIMALS, "B", "B"),
    ("Option B", ANIMALS, "B", "B"),
    ("Option A is correct.", ANIMALS, "A", "A"),
    ("I would choose option B because the dog is black.", ANIMALS, "B", None),
    ("I choose B", ANIMALS, "B", "B"),
    ("The best choice is (B) dog.", ANIMALS, "B", "B"),
    ("\\boxed{B}", ANIMALS, "B", "B"),
    ("Thus, the final answer is $\\boxed{\\text{A}}$.", ANIMALS, "A", "A"),
    ("B is the correct answer.", ANIMALS, "B", None),
    ("B is correct", ANIMALS, "B", "B"),
    ("The final answer is: A", ANIMALS, "A", "A"),
    ("<answer>B</answer>", ANIMALS, "B", None),
    ("It could be (A), but the correct answer is (B).", ANIMALS, "B", None),
    ("The letter is B", ANIMALS, "B", "B"),
    ("So it must be B", ANIMALS, "B", "B"),
    # the text of an option, "A" as an article
    ("dog", ANIMALS, "B", "B"),
    ("Dog.", ANIMALS, "B", "B"),
    ("A dog", ANIMALS, "B", "A"),
    ("A dog is on the left.", ANIMALS, "B", None),
    ("The answer is a dog.", ANIMALS, "B", None),
    ("A cat.", ANIMALS, "A", "A"),
    ("It's the cat", ANIMALS, "A", "A"),
    ("There is a dog to the left of the car", ANIMALS, "B", None),
    ("dark red", FOUR, "B", None),
    ("The car is red.", FOUR, "A", "A"),
    ("There are 12 of them", FOUR, "D", "D"),
    ("not a cat, but a dog", ANIMALS, "B", None),
    ("The animal is a dog, not a cat.", ANIMALS, "B", None),
    ("That's right, it is A.", ["left", "right"], "A", "A"),
    ("right", ["left", "right"], "B", "B"),
    ("I think it's B.", ANIMALS, "B", "B"),
    ("There is no dog in the picture. The answer is B", ANIMALS, "B", "B"),
    ("Option A: the cat is there. Option B: the dog is not. So the answer is B.", ANIMALS, "B", None),
    ("The object that is not in the image is a dog.", ANIMALS, "B", None),
    ("There are 3 things.", ["2", "3"], "B", None),
    ("no, it is not", ["yes", "no"], "B", None),
    # nothing that can be counted
    ("", ANIMALS, None, None),
    ("A and B", ANIMALS, None, None),
    ("A or B", ANIMALS, None, None),
    ("Both (A) and (B) are right.", ANIMALS, None, None),
    ("A cat and a dog", ANIMALS, None, None),
    ("C", ANIMALS, None, None),
    ("E. None of the above", ANIMALS, None, None),
    ("Neither.", ANIMALS, None, None),
    ("I don't know.", ANIMALS, None, None),
    ("I'm sorry, but I cannot determine that from the image.", ANIMALS, None, None),
    ("Sorry, I can't help with images of people yet.", ANIMALS, None, None),
    ("The answer is not A.", ANIMALS, None, "A"),
    ("not a dog", ANIMALS, None, "B"),
    ("The image does not show a dog.", ANIMALS, None, None),
    ("It isn't a dog", ANIMALS, None, None),
    ("Not B", ANIMALS, None, "B"),
    ("Neither A nor B", ANIMALS, None, None),
    ("The answer is A. The answer is B.", ANIMALS, None, None),
    ("A bird", ANIMALS, None, "A"),
    ("It depends on what you mean.", ANIMALS, None, None),
    ("horse", ANIMALS, None, None),
    ("The picture shows a scattered category", ANIMALS, None, None),
    ("Yes", ANIMALS, None, None),
    ("1", ["12", "21"], None, None),
    ("?", ANIMALS, None, None),
]  # fmt: skip


def test_at_least_sixty_answers_are_covered() -> None:
    assert len({answer for answer, *_ in ANSWERS}) >= 60


@pytest.mark.parametrize("answer, options, letter, _", ANSWERS)
def test_the_fixed_rule_reads_what_a_person_would(
    answer: str, options: list[str], letter: str | None, _: str | None
) -> None:
    found = parse(answer, options)
    assert found.letter == letter, found
    assert bool(found.reason) == (letter is None)


@pytest.mark.parametrize("answer, options, _, letter", ANSWERS)
def test_the_published_rule_keeps_its_quirks(
    answer: str, options: list[str], _: str | None, letter: str | None
) -> None:
    found = parse(answer, options, rule="vlmevalkit")
    assert found.letter == letter, found
    assert bool(found.reason) == (letter is None)


def test_reasons_tell_refusals_contradictions_and_strange_letters_apart() -> None:
    assert "empty" in parse("  ", ANIMALS).reason
    assert "several" in parse("A and B", ANIMALS).reason
    assert "'C' is no option" in parse("C", ANIMALS).reason
    assert "not" in parse("not a dog", ANIMALS).reason
    assert "declines" in parse("I cannot tell.", ANIMALS).reason


def test_swapping_the_options_swaps_the_letter_of_a_text_but_not_of_a_letter() -> None:
    assert parse("a dog", ANIMALS).letter == "B"
    assert parse("a dog", ANIMALS[::-1]).letter == "A"
    assert parse("The answer is B.", ANIMALS[::-1]).letter == "B"


def test_more_options_allow_more_letters() -> None:
    assert parse("D", FOUR).letter == "D"
    assert parse("D", FOUR[:3]).letter is None


def test_an_unknown_rule_and_a_single_option_are_refused() -> None:
    with pytest.raises(MetricError, match="Allowed: fixed, vlmevalkit"):
        parse("A", ANIMALS, rule="fixd")
    with pytest.raises(MetricError, match="2 to 26 options"):
        parse("A", ["cat"])
