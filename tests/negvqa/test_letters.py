import json
import time
from pathlib import Path

import pytest

from nein.metrics import MetricError
from nein.metrics.letters import parse, read_verdicts

ANIMALS = ["cat", "dog"]
FOUR = ["red", "dark red", "blue", "12"]

#: What VLMEvalKit's own `can_infer` (vlmeval/utils/matching_util.py, unchanged) reads out of 560 answers of
#: ours at commit 0f27427e of 25 May 2025. "Z": the answer declines; null: nothing is read, which the toolkit
#: asks a language model about.
READ_BY_THE_TOOLKIT = Path(__file__).parent / "letters.jsonl"

#: What a person reads in what models write: options, letter, answers.
FIXED = [
    (ANIMALS, "A", (
        "A", " A\n", "(a)", "[A]", "`A`", "A. cat", "A: cat.", "**A. cat**",
        "A.\n\nThe cat is on the left of the car.", "The correct answer is (A).", "ANSWER: A",
        "Option A is correct.", "Thus, the final answer is $\\boxed{\\text{A}}$.", "The final answer is: A",
        "A cat.", "It's the cat", "{'answer': 'A'}", "I'd say A, not B", "A rather than B",
        "Option a is the right one", "Not B, A", "A, A", "A?", '{"A": "cat"}', "La respuesta es A.",
    )),
    (ANIMALS, "B", (
        "B", "B.", "(B)", "b", "**B**", '"B"', "B:", "$B$", "B. dog", "(B) dog", "B) dog", "B - dog",
        "B, dog", "B\ndog", "B. dog\n\nExplanation: there is no cat in the picture", "The answer is B.",
        "Answer: B", "answer: b", "The answer is: **B**", "The correct option is B. dog", "Option B",
        "I would choose option B because the dog is black.", "I choose B", "The best choice is (B) dog.",
        "\\boxed{B}", "B is the correct answer.", "B is correct", "<answer>B</answer>",
        "It could be (A), but the correct answer is (B).", "The letter is B", "So it must be B", "dog",
        "Dog.", "A dog", "A dog is on the left.", "The answer is a dog.",
        "There is a dog to the left of the car", "not a cat, but a dog", "The animal is a dog, not a cat.",
        "I think it's B.", "There is no dog in the picture. The answer is B",
        "Option A: the cat is there. Option B: the dog is not. So the answer is B.",
        "The object that is not in the image is a dog.", "B. dog. Explanation: A cat is on the bed",
        "Explanation: A cat is on the bed. The answer is B", "<think>It is A or B. So A.</think>\n\nB",
        '{"choice": "B", "reason": "there is no cat"}',
        '{"answer": "B", "explanation": "A cat is not there."}', "Ｂ", "（Ｂ）",
        "B, not A", "It is B and not A.",
        "B instead of A.",
        "Option A is incorrect. Option B is correct.", "Option A can be excluded. Therefore B.",
        "The correct letter is 'B'.", "𝐁", "Ⓑ",
        "The answer is (B) dog because (A) cat is visible in the image.",
        "B. dog\n\n**Explanation:** A cat is visible.",
        "<think>The picture shows A... maybe A</think> B", "\\(\\boxed{\\mathrm{B}}\\)", "\\boxed{dog}",
        '```json\n{"answer": "B"}\n```', "B is right, A is wrong", "B</s>", "B<|im_end|>", "the dog (B)",
        "B ", "B dog", "It can't be A, so it must be B.", "Since it's not A, the answer is B", "B (dog)",
        "B – dog", "Options: A. cat B. dog. Answer: B",
        "Question: What is not there?\nOptions: A. cat B. dog\nAnswer: B", "I'd go with a dog.",
        "B is not in the image, so the answer is B.", "The dog is not in the image, so the answer is B.",
        "The object not in the image is B.", "The dog is not in the image.", "- B. dog", "> B",
        "The dog, not the cat.", "B\n\nQuestion: Next", "I'd go with B because it is there",
        "To me it seems B", "La réponse est B", "Die Antwort ist B",
    )),
    (ANIMALS, None, (
        "", "A and B", "A or B", "Both (A) and (B) are right.", "A cat and a dog", "C",
        "E. None of the above", "Neither.", "I don't know.",
        "I'm sorry, but I cannot determine that from the image.",
        "Sorry, I can't help with images of people yet.", "The answer is not A.", "not a dog",
        "The image does not show a dog.", "It isn't a dog", "Not B", "Neither A nor B",
        "The answer is A. The answer is B.", "A bird", "It depends on what you mean.", "horse",
        "The picture shows a scattered category", "Yes", "?", "Option A is not correct.",
        "The answer cannot be A.", "A. cat\nB. dog", "A. cat B. dog", "B. dog\nA. cat", "A B",
        "B. dog USER: A", "A or maybe B", "maybe B, maybe A", "A > B",
        "A→B", "<think>I think it's A because", "A car is shown.",
        "A close look shows nothing of the kind.", "A/B", "None of the above",
        "A is not visible in the picture",
        "Point B is closer than Point A", "Not vitamin A", "It is shown in Figure B", "B B", "1. B",
        '{"A": "dog", "B": "cat"}', "{'A': 'dog', 'B': 'cat'}",
    )),
    (FOUR, "B", ("dark red",)),
    (FOUR, "A", ("The car is red.",)),
    (FOUR, "D", ("There are 12 of them", "D")),
    (FOUR[:3], None, ("D",)),
    (ANIMALS[::-1], "A", ("a dog",)),
    (ANIMALS[::-1], "B", ("The answer is B.",)),
    (["left", "right"], "A", ("That's right, it is A.",)),
    (["left", "right"], "B", ("right",)),
    (["2", "3"], "B", ("There are 3 things.",)),
    (["yes", "no"], "B", ("no, it is not",)),
    (["12", "21"], None, ("1",)),
    (["Vitamin A", "Vitamin C"], None, ("B. Vitamin A is what the carrot has.", "Not vitamin A",)),
    (["Vitamin A", "Vitamin C"], "A", ("A. Vitamin A", "Vitamin A",)),
    (["Point B", "Point A"], "B", ("The answer is Point A.",)),
    (["> 3", "≥ 3"], "B", ("≥ 3",)),
    (["C", "D"], "A", ("The answer is C", "C",)),
    (["C", "D"], "B", ("the shape is a D", "D.", "(D)", "B. D", "D is correct",)),
    (["dog", "no dog"], "B", ("no dog", "There is no dog.",)),
    (["3", "-3"], "B", ("-3",)),
    (["(0, 1)", "(1, 0)"], "A", ("(0, 1)",)),
    (["Vitamin C", "Vitamin A"], "B", ("Vitamin A",)),
    (["red", "blue"], "B", ("The car is not red; it's blue.",)),
    (["person", "dog"], "A", ("A person is left of the car.",)),
    (["dog", "man"], "B", ("A man",)),
    (["Cannot be determined", "dog"], None, ("Cannot determine",)),
    (["Cannot be determined", "dog"], "A", ("It cannot be determined.",)),
    (["$\\frac{1}{2}$", "$\\frac{1}{3}$"], "A", ("$\\frac{1}{2}$",)),
    (["x", "y"], "A", ("x", "The answer is x.",)),
    (["x", "y"], "B", ("Y",)),
    (["N", "S"], "A", ("N", "n",)),
    (["N", "S"], "B", ("**S**",)),
    (["A", "E"], "B", ("The label is E",)),
    (["A", "E"], None, ("It is a tree",)),
    (["E", "A"], "A", ("A",)),
    (["x", "a"], "B", ("a",)),
    (["C", "D"], None, ("E",)),
    (["Point A", "Point B"], None, ("Point B is closer than Point A.",)),
]  # fmt: skip


@pytest.mark.parametrize("options, letter, answers", FIXED)
def test_the_fixed_rule_reads_what_a_person_would(options, letter, answers):
    for answer in answers:
        found = parse(answer, options)
        assert (found.letter, bool(found.reason)) == (letter, letter is None), (answer, found)


def test_the_published_rule_reads_what_the_toolkit_reads():
    rows = [json.loads(line) for line in READ_BY_THE_TOOLKIT.read_text(encoding="utf-8").splitlines()]
    assert len({(row["answer"], *row["options"]) for row in rows}) == 560
    for row in rows:
        found = parse(row["answer"], row["options"], "vlmevalkit")
        assert ("Z" if found.declined else found.letter) == row["letter"], row


def test_reasons_tell_refusals_contradictions_and_strange_letters_apart():
    assert "empty" in parse("  ", ANIMALS).reason
    assert "several" in parse("A and B", ANIMALS).reason
    for text in ("C", "The answer is C."):
        assert "'C' is no option" in parse(text, ANIMALS).reason
    assert parse("The answer is D. No, the answer is E.", ["E", "F"]).letter == "A"  # an option's text
    assert "only says which" in parse("Not A.", ANIMALS).reason
    assert "not" in parse("not a dog", ANIMALS).reason
    assert "thinking" in parse("<think>It is B because", ANIMALS).reason


#: Of what answers are put together in the next tests: words, signs and blanks that rules look for.
PARTS = (
    *("A", "B", "a ", "A. ", "(A) ", "A) ", "A, ", "B.\n", "not A ", "isn't A ", "A is ", "Point A ", "A B "),
    *("**A", "A.cat ", "A: ", "so A. ", "answer ", "answer is ", "Answer: ", "option ", "is ", "is:", "="),
    *(" ", "\n", "\t \n", "<answer>", "</answer>", '"answer": "', "'answer':'B'", "cat ", "no ", "dog"),
    *("definitely ", "also", "ſ", "9"),
)


@pytest.mark.parametrize("begin, end", [("", ""), ("answer", "9"), ("A", "9"), ("<answer>", "x")])
def test_the_fixed_rule_takes_time_in_proportion_to_the_answer(begin, end):
    for part in PARTS:
        before = time.process_time()
        parse(begin + part * (4000 // len(part)) + end, ANIMALS)
        assert time.process_time() - before < 0.5, part  # at most 0.1; in proportion to the square 2 and more


def test_of_answers_about_one_option_each_the_only_yes_is_the_letter():
    assert read_verdicts(["No", "Yes."]).letter == "B"
    assert read_verdicts(["Yes, it is", "no"]).letter == "A"
    for answers, why in (
        (["Yes", "Yes"], "yes to several"),
        (["No", "No"], "no to every"),
        (["Yes", "Perhaps"], "option B is neither"),
    ):
        found = read_verdicts(answers)
        assert found.letter is None
        assert why in found.reason
    # NeIn's rule: "yes" in any case and nothing else; all the rest is a no.
    assert read_verdicts(["yes", "Perhaps"], "paper").letter == "A"
    assert read_verdicts(["Yes.", "No"], "paper").letter is None
    with pytest.raises(MetricError, match="yes-no rule"):
        read_verdicts(["Yes", "No"], "vlmevalkit")


def test_an_unknown_rule_and_a_single_option_are_refused():
    with pytest.raises(MetricError, match="Allowed: fixed, vlmevalkit"):
        parse("A", ANIMALS, rule="fixd")
    with pytest.raises(MetricError, match="2 to 26 options"):
        parse("A", ["cat"])
