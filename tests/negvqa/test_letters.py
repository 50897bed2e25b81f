from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path

import pytest

from nein.metrics import MetricError, letters
from nein.metrics.letters import by_option, parse

ANIMALS = ["cat", "dog"]
FOUR = ["red", "dark red", "blue", "12"]

#: What VLMEvalKit's own `can_infer` (vlmeval/utils/matching_util.py, unchanged) reads out of 560 answers of
#: ours: at commit 0f27427e of 25 May 2025, c3371551 of 4 August 2025, and e8e78f05 of 18 August 2026. "Z":
#: the answer declines; null: nothing is read, which the toolkit asks a language model about.
READ_BY_THE_TOOLKIT = Path(__file__).parent / "letters.jsonl"
EDITIONS = ("vlmevalkit-2025-05", "vlmevalkit-2025-08", "vlmevalkit-2026-06")

#: What models write: (answer, options, letter under "fixed", letter under "vlmevalkit-2025-08").
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

#: More of them, for the "fixed" rule: reasoning, structured answers, other scripts, letters that are ruled
#: out, repeated lists, options that hold letters or signs.
MORE = [
    ("B. dog. Explanation: A cat is on the bed", ANIMALS, "B"),
    ("Explanation: A cat is on the bed. The answer is B", ANIMALS, "B"),
    ("B. Vitamin A is what the carrot has.", ["Vitamin A", "Vitamin C"], None),
    ("A. Vitamin A", ["Vitamin A", "Vitamin C"], "A"),
    ('<think>It is A or B. So A.</think>\n\nB', ANIMALS, 'B'),
    ("{'answer': 'A'}", ANIMALS, 'A'),
    ('{"choice": "B", "reason": "there is no cat"}', ANIMALS, 'B'),
    ('{"answer": "B", "explanation": "A cat is not there."}', ANIMALS, 'B'),
    ('Ｂ', ANIMALS, 'B'),
    ('（Ｂ）', ANIMALS, 'B'),
    ('答案是B', ANIMALS, 'B'),
    ('答案：Ｂ。', ANIMALS, 'B'),
    ('选B', ANIMALS, 'B'),
    ('选项B是正确的', ANIMALS, 'B'),
    ('答えはBです', ANIMALS, 'B'),
    ('正解はAです。', ANIMALS, 'A'),
    ('정답은 B입니다.', ANIMALS, 'B'),
    ("I'd say A, not B", ANIMALS, 'A'),
    ('B, not A', ANIMALS, 'B'),
    ('A rather than B', ANIMALS, 'A'),
    ('It is B and not A.', ANIMALS, 'B'),
    ('B instead of A.', ANIMALS, 'B'),
    ('Option A is incorrect. Option B is correct.', ANIMALS, 'B'),
    ('Option A is not correct.', ANIMALS, None),
    ('The answer cannot be A.', ANIMALS, None),
    ('Option A can be excluded. Therefore B.', ANIMALS, 'B'),
    ('A. cat\nB. dog', ANIMALS, None),
    ('A. cat B. dog', ANIMALS, None),
    ('B. dog\nA. cat', ANIMALS, None),
    ('A B', ANIMALS, None),
    ('The answer is Point A.', ["Point B", "Point A"], 'B'),
    ('Option a is the right one', ANIMALS, 'A'),
    ("The correct letter is 'B'.", ANIMALS, 'B'),
    ('𝐁', ANIMALS, 'B'),
    ('Ⓑ', ANIMALS, 'B'),
    ('Not B, A', ANIMALS, 'A'),
    ('The answer is (B) dog because (A) cat is visible in the image.', ANIMALS, 'B'),
    ('B. dog\n\n**Explanation:** A cat is visible.', ANIMALS, 'B'),
    ('A, A', ANIMALS, 'A'),
    ('图中没有狗，所以选B。', ANIMALS, 'B'),
    ('答案不是A，而是B', ANIMALS, 'B'),
    ('A와 B', ANIMALS, None),
    ('B. dog USER: A', ANIMALS, None),
    ('≥ 3', ["> 3", "≥ 3"], 'B'),
    ('The answer is C', ["C", "D"], 'A'),
    ('the shape is a D', ["C", "D"], 'B'),
    ('B because there is no cat. A', ANIMALS, None),
    ('A?', ANIMALS, 'A'),
    ('A or maybe B', ANIMALS, None),
    ('maybe B, maybe A', ANIMALS, None),
    ('A > B', ANIMALS, None),
    ('A→B', ANIMALS, None),
    ('<think>The picture shows A... maybe A</think> B', ANIMALS, 'B'),
    ("<think>I think it's A because", ANIMALS, None),
    ('\\(\\boxed{\\mathrm{B}}\\)', ANIMALS, 'B'),
    ('\\boxed{dog}', ANIMALS, 'B'),
    ('```json\n{"answer": "B"}\n```', ANIMALS, 'B'),
    ('A car is shown.', ANIMALS, None),
    ('A close look shows nothing of the kind.', ANIMALS, None),
    ('A/B', ANIMALS, None),
    ('None of the above', ANIMALS, None),
    ('B is right, A is wrong', ANIMALS, 'B'),
    ('B</s>', ANIMALS, 'B'),
    ('B<|im_end|>', ANIMALS, 'B'),
    ('the dog (B)', ANIMALS, 'B'),
    ('B ', ANIMALS, 'B'),
    ('B dog', ANIMALS, 'B'),
    ("It can't be A, so it must be B.", ANIMALS, 'B'),
    ("Since it's not A, the answer is B", ANIMALS, 'B'),
    ('B (dog)', ANIMALS, 'B'),
    ('B – dog', ANIMALS, 'B'),
    ('Options: A. cat B. dog. Answer: B', ANIMALS, 'B'),
    ('Question: What is not there?\nOptions: A. cat B. dog\nAnswer: B', ANIMALS, 'B'),
    ('B B', ANIMALS, 'B'),
    ('no dog', ["dog", "no dog"], 'B'),
    ('There is no dog.', ["dog", "no dog"], 'B'),
    ('-3', ["3", "-3"], 'B'),
    ('(0, 1)', ["(0, 1)", "(1, 0)"], 'A'),
    ('Vitamin A', ["Vitamin A", "Vitamin C"], 'A'),
    ('Vitamin A', ["Vitamin C", "Vitamin A"], 'B'),
    ("I'd go with a dog.", ANIMALS, 'B'),
    ('B is not in the image, so the answer is B.', ANIMALS, 'B'),
    ('The dog is not in the image, so the answer is B.', ANIMALS, 'B'),
    ('The object not in the image is B.', ANIMALS, 'B'),
    ('The dog is not in the image.', ANIMALS, 'B'),
    ("The car is not red; it's blue.", ["red", "blue"], 'B'),
    ('- B. dog', ANIMALS, 'B'),
    ('1. B', ANIMALS, 'B'),
    ('> B', ANIMALS, 'B'),
    ('The dog, not the cat.', ANIMALS, 'B'),
    ('A is not visible in the picture', ANIMALS, None),
    ('I would say B (dog), as A (cat) is visible.', ANIMALS, None),
    ('A person is left of the car.', ["person", "dog"], 'A'),
    ('A man', ["dog", "man"], 'B'),
    ('B\n\nQuestion: Next', ANIMALS, 'B'),
    ('Cannot determine', ["Cannot be determined", "dog"], None),
    ('It cannot be determined.', ["Cannot be determined", "dog"], 'A'),
    ('$\\frac{1}{2}$', ["$\\frac{1}{2}$", "$\\frac{1}{3}$"], 'A'),
    ('[/INST] B', ANIMALS, 'B'),
    ("I'd go with B because it is there", ANIMALS, 'B'),
    ('To me it seems B', ANIMALS, 'B'),
    # options that are letters themselves: where an option bears the letter, it is that option
    ("C", ["C", "D"], "A"),
    ("D.", ["C", "D"], "B"),
    ("(D)", ["C", "D"], "B"),
    ("B. D", ["C", "D"], "B"),
    ("D is correct", ["C", "D"], "B"),
    ("x", ["x", "y"], "A"),
    ("Y", ["x", "y"], "B"),
    ("The answer is x.", ["x", "y"], "A"),
    ("N", ["N", "S"], "A"),
    ("n", ["N", "S"], "A"),
    ("**S**", ["N", "S"], "B"),
    ("The label is E", ["A", "E"], "B"),
    ("It is a tree", ["A", "E"], None),
    ("A", ["E", "A"], "A"),
    ("a", ["x", "a"], "B"),
    ("E", ["C", "D"], None),
    # letters that are parts of names
    ("Point B is closer than Point A", ANIMALS, None),
    ("Point B is closer than Point A.", ["Point A", "Point B"], None),
    ("Not vitamin A", ANIMALS, None),
    ("Not vitamin A", ["Vitamin A", "Vitamin C"], None),
    ("It is shown in Figure B", ANIMALS, None),
    ('{"A": "dog", "B": "cat"}', ANIMALS, None),
    ("{'A': 'dog', 'B': 'cat'}", ANIMALS, None),
]  # fmt: skip


def test_at_least_sixty_answers_are_covered() -> None:
    assert len({answer for answer, *_ in ANSWERS}) >= 60


@pytest.mark.parametrize("answer, options, letter, _", ANSWERS)
def test_the_fixed_rule_reads_what_a_person_would(
    answer: str, options: list[str], letter: str | None, _: str | None
) -> None:
    check_fixed(answer, options, letter)


@pytest.mark.parametrize("answer, options, letter", MORE)
def test_the_fixed_rule_reads_answers_with_something_around_them(
    answer: str, options: list[str], letter: str | None
) -> None:
    check_fixed(answer, options, letter)


def check_fixed(answer: str, options: list[str], letter: str | None) -> None:
    found = parse(answer, options)
    assert found.letter == letter, found
    assert bool(found.reason) == (letter is None)


@pytest.mark.parametrize("answer, options, _, letter", ANSWERS)
def test_the_published_rule_keeps_its_quirks(
    answer: str, options: list[str], _: str | None, letter: str | None
) -> None:
    found = parse(answer, options, rule="vlmevalkit-2025-08")
    assert found.letter == letter, found
    assert bool(found.reason) == (letter is None)


@pytest.mark.parametrize("edition", EDITIONS)
def test_each_edition_of_the_published_rule_reads_what_the_toolkit_reads(edition: str) -> None:
    rows = [json.loads(line) for line in READ_BY_THE_TOOLKIT.read_text(encoding="utf-8").splitlines()]
    assert len({(row["answer"], *row["options"]) for row in rows}) == 560
    for row in rows:
        found = parse(row["answer"], row["options"], edition)
        assert ("Z" if found.declined else found.letter) == row[edition], row


def test_the_editions_of_the_published_rule_differ_where_it_changed() -> None:
    read = {
        answer: [parse(answer, ANIMALS, edition).letter for edition in EDITIONS]
        for answer in (
            "B because the image shows a dog",
            "A dog can be seen on the left",
            "The correct answer is **B**. Here is why: nothing else would fit what is there.",
            "The answer is a dog, which is what is not there, as far as one can see.",
        )
    }
    assert list(read.values()) == [
        ["B", None, None],
        ["A", None, None],
        ["B", None, "B"],
        ["B", None, "A"],
    ]


def test_reasons_tell_refusals_contradictions_and_strange_letters_apart() -> None:
    assert "empty" in parse("  ", ANIMALS).reason
    assert "several" in parse("A and B", ANIMALS).reason
    assert "'C' is no option" in parse("C", ANIMALS).reason
    assert "not" in parse("not a dog", ANIMALS).reason
    assert "declines" in parse("I cannot tell.", ANIMALS).reason
    assert "thinking" in parse("<think>It is B because", ANIMALS).reason


#: Of what answers are put together in the next tests: words, signs and blanks that rules look for.
PARTS = (
    *("A", "B", "a ", "A. ", "(A) ", "A) ", "A, ", "B.\n", "not A ", "isn't A ", "A is ", "Point A ", "A B "),
    *("**A", "A.cat ", "A: ", "so A. ", "answer ", "answer is ", "Answer: ", "option ", "is ", "is:", "="),
    *(" ", "\n", "\t \n", "<answer>", "</answer>", '"answer": "', "'answer':'B'", "cat ", "no ", "dog"),
    *("definitely ", "also", "ſ", "是A", "9"),
)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("begin, end", [("", ""), ("answer", "9"), ("A", "9"), ("<answer>", "x")])
def test_the_fixed_rule_takes_time_in_proportion_to_the_answer(begin: str, part: str, end: str) -> None:
    before = time.process_time()
    parse(begin + part * (20_000 // len(part)) + end, ANIMALS)
    assert time.process_time() - before < 2  # at most 0.4; in proportion to the square 50 and more


def test_the_fixed_rule_reads_what_its_quadratic_form_read(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    several = [ANIMALS, FOUR, ["", "cat"], ["Point A", "a"]]
    asked = [("".join(draw.choices(PARTS, k=draw.randint(1, 12))), draw.choice(several)) for _ in range(3000)]
    found = [parse(*one) for one in asked]

    def without_list(text: str, names: str, options: list[str]) -> str:
        texts = [re.escape(letters._normal(option).strip()) for option in options]
        one = "|".join(rf"\(?{name}[).:]+\s*{text}" for name, text in zip(names, texts, strict=True))
        return re.sub(rf"(?<!\w)(?:(?:{one})[\s,.;|]*){{2,}}", " ", text, flags=re.IGNORECASE).strip()

    now = rf"(?:\s*[:=])?(?:\s+{letters._LEAD})?(?:\s*(?:is(?:\s*[:=])?|[:=]))?"
    before = rf"\s*[:=]?(?:\s+{letters._LEAD})?\s*(?:is\s*)?[:=]?"
    assert now in letters._STATED.pattern
    for name, old in {
        "_STATED": re.compile(letters._STATED.pattern.replace(now, before), re.IGNORECASE),
        "_is_named": lambda text, hit, group=0: (
            letters._BEFORE_NAME.search(text[: hit.start(group)]) is not None
        ),
        "_fields": lambda text: {f["value"] or f["tagged"] or "" for f in letters._FIELD.finditer(text)},
        "_without_list": without_list,
    }.items():
        monkeypatch.setattr(letters, name, old)
    assert [parse(*one) for one in asked] == found
    assert len({letter.letter or letter.reason for letter in found}) > 6


def test_swapping_the_options_swaps_the_letter_of_a_text_but_not_of_a_letter() -> None:
    assert parse("a dog", ANIMALS).letter == "B"
    assert parse("a dog", ANIMALS[::-1]).letter == "A"
    assert parse("The answer is B.", ANIMALS[::-1]).letter == "B"


def test_more_options_allow_more_letters() -> None:
    assert parse("D", FOUR).letter == "D"
    assert parse("D", FOUR[:3]).letter is None


def test_of_answers_about_one_option_each_the_only_yes_is_the_letter() -> None:
    assert by_option(["No", "Yes."]).letter == "B"
    assert by_option(["Yes, it is", "no"]).letter == "A"
    for answers, why in (
        (["Yes", "Yes"], "yes to several"),
        (["No", "No"], "no to every"),
        (["Yes", "Perhaps"], "option B is neither"),
    ):
        found = by_option(answers)
        assert found.letter is None
        assert why in found.reason
    # NeIn's rule: "yes" in any case and nothing else; all the rest is a no.
    assert by_option(["yes", "Perhaps"], "paper").letter == "A"
    assert by_option(["Yes.", "No"], "paper").letter is None
    with pytest.raises(MetricError, match="yes-no rule"):
        by_option(["Yes", "No"], "vlmevalkit")


def test_an_unknown_rule_and_a_single_option_are_refused() -> None:
    with pytest.raises(MetricError, match="Allowed: fixed, vlmevalkit-2025-05"):
        parse("A", ANIMALS, rule="fixd")
    with pytest.raises(MetricError, match="2 to 26 options"):
        parse("A", ["cat"])
