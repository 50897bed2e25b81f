"""Arms around models that answer questions: what they ask, and what becomes of the answers."""

import math

import numpy as np
import pytest

from nein.metrics.choice_prompts import write_prompt
from nein.metrics.choices import ChoiceQuestion, Reply
from nein.models.remedies import answers
from nein.nano import sentences
from nein.wording.denials import remove_denial

PICTURE = np.zeros((4, 4, 3), np.uint8)
THERE, NOT_THERE = "Which is in the picture?", "Which is not in the picture?"


class Deaf:
    """Answers "A" to everything, surer the shorter the question: it hears no negation."""

    fingerprint, scorings, concurrent = "deaf", ("generated", "logprob"), 0

    def __init__(self, **changes):
        self.asked = []
        self.changes = changes

    def describe(self):
        return {"class": "Deaf"}

    def answer(self, images, asked, scorings):
        self.asked += [one for row in asked for one in row]
        return [[self._reply(one, scorings) for one in row] for row in asked]

    def _reply(self, one, scorings):
        sure = 0.9 if one.question == THERE else 0.6
        logprobs = (math.log(sure), math.log(1 - sure))
        made = Reply(
            "A. cat" if "generated" in scorings else None, logprobs if "logprob" in scorings else None
        )
        return Reply(**{**made.__dict__, **self.changes})


def ask(model, arm, scorings=("generated", "logprob"), texts=2):
    names = ("cat", "dog", "cow")[:texts]
    row = [
        ChoiceQuestion(write_prompt("paper", text, names), texts, text, names) for text in (THERE, NOT_THERE)
    ]
    [replies] = answers.WithRemedy(model, arm, "paper").answer([PICTURE], [row], scorings)
    return replies


def test_a_negated_question_is_asked_without_its_negation_and_the_other_option_taken():
    model = Deaf()
    told, denied = ask(model, "flip")
    assert [one.question for one in model.asked] == [THERE, THERE]
    assert model.asked[0].prompt == model.asked[1].prompt
    assert (told.text, denied.text) == ("A. cat", "B")
    assert (told.likeliest, denied.likeliest) == ("A", "B")


def test_a_pair_is_made_consistent_by_the_likelier_of_the_two_ways():
    told, denied = ask(Deaf(), "consistent")
    assert (told.text, denied.text) == ("A", "B")  # 0.9 x 0.4 beats 0.1 x 0.6
    assert told.logprobs == denied.logprobs[::-1]
    told, denied = ask(Deaf(), "consistent", ["generated"])
    assert (told.text, told.logprobs) == ("A", None)


def test_a_chain_of_thought_is_asked_for_first_and_stands_before_the_letter():
    model = Deaf()
    told, _ = ask(model, "chain-of-thought")
    thinking, concluding = model.asked[0].prompt.text, model.asked[2].prompt.text
    assert thinking.endswith(answers.STEPS)
    assert concluding.startswith(thinking)
    assert "A. cat\nTherefore" in concluding
    assert told.text == "A. cat"


@pytest.mark.parametrize("arm", ["flip", "consistent"])
def test_what_cannot_be_exchanged_is_unscored_with_the_reason(arm):
    assert ask(Deaf(), arm, texts=3)[1].error == answers.NOT_TWO
    assert ask(Deaf(text=None, error="it is away"), arm)[1].error == "it is away"


def test_without_probabilities_no_pair_is_made_consistent():
    assert {reply.error for reply in ask(Deaf(logprobs=None), "consistent")} == {answers.NO_PROBABILITIES}


#: Negated question -> what the rule makes of it, where that is not word for word what it was made from.
OTHERWISE = {
    "There is no such thing in the picture. Which?": "There is one such thing in the picture. Which?",
    "The {thing} does not have which colour?": "The {thing} does have which colour?",
    "There is no what {side} the {thing}?": "There is a what {side} the {thing}?",
    "Which one doesn't stand {side} the {thing}?": "Which one does stand {side} the {thing}?",
    "Which part of the picture has no {thing}?": "Which part of the picture has a {thing}?",
    "What is a wrong number of things in the image?": None,
    "From which side of the picture is the {thing} absent?": None,
}


def test_the_rule_undoes_the_negations_of_the_drawn_questions_and_leaves_other_questions_alone():
    for world in (sentences.WORDINGS, sentences.MORE, sentences.NEGATORS):
        for question, negated in (pair for pairs in world.values() for pair in pairs):
            assert remove_denial(question) is None
            assert remove_denial(negated) == OTHERWISE.get(negated, question)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("Which of these is not without a cat?", None),
        ("Which of them does not only stand?", None),
        ("Where isn\N{RIGHT SINGLE QUOTATION MARK}t the cat?", "Where is the cat?"),
        ("What can't be seen?", "What can be seen?"),
    ],
)
def test_denied_denials_and_partial_ones_are_left_alone(asked, said):
    assert remove_denial(asked) == said
