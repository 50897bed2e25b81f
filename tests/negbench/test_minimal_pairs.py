import numpy as np
import pytest

from nein.benchmarks.negbench import scoring
from nein.datasets.negbench.other_tests import Pair
from nein.datasets.negbench.records import ChoiceTask
from nein.reporting import figures as frames
from nein.statistics import two_way
from tests.negbench import conftest
from tests.negbench.conftest import NOTHING

RNG = np.random.default_rng(5)
PICTURES = ("with", "without")


def rows_of(values):
    """The rows of (N, 2, 2) scores [caption, picture], as a model that scores gives them."""
    rows = []
    for number, four in enumerate(values):
        pair = Pair(str(number), PICTURES, ("A dog.", "No dog."), f"picture {number}")
        task = ChoiceTask("x/pairs", tuple(pair.build_comparisons()), NOTHING)
        scored = {
            question.id: {
                "scores": [
                    float(four[int(option.text == "No dog."), PICTURES.index(question.get_image(option))])
                    for option in question.options
                ],
                "reason": "",
            }
            for question in task.questions
        }
        rows += scoring.score_answers(task, scored)
    return rows


def measured(values):
    return frames.frame(conftest.measured(rows_of(np.asarray(values, dtype=float))))


def value(frame, **where):
    figure = frames.pick(frame, **where)
    return None if figure is None else figure["value"]


def test_a_pair_is_understood_where_the_interaction_is_above_text_and_picture():
    values = RNG.normal(size=(200, 2, 2))
    text, picture, interaction = two_way.parts(values).T
    frame = measured(values)
    assert value(frame, metric="joint", type="text") == pytest.approx((interaction > abs(text)).mean())
    assert value(frame, metric="joint", type="image") == pytest.approx((interaction > abs(picture)).mean())
    both = interaction > np.maximum(abs(text), abs(picture))
    assert value(frame, metric="joint", type="group") == pytest.approx(both.mean())
    for score, expected in (("text", 1 / 4), ("image", 1 / 4), ("group", 1 / 6)):
        assert value(frame, metric="joint chance", type=score) == pytest.approx(expected)


def test_a_constant_model_has_no_part_and_no_gap():
    frame = measured(np.full((6, 2, 2), 0.3))
    assert [value(frame, metric="effect", part=part) for part in two_way.PARTS] == [0, 0, 0]
    assert value(frame, metric="part", part="text") is None
    assert value(frame, metric="text alone") is None
    assert value(frame, metric="joint", type="group") == 1 / 16  # four ties, each shared


@pytest.mark.parametrize(
    ("part", "alone", "same", "group"),
    [("text", 1.0, 1.0, 0.0), ("picture", None, 0.5, 0.0), ("interaction", 0.0, 0.0, 1.0)],
)
def test_a_model_of_one_part_is_seen_as_one(part, alone, same, group):
    one = {"text": [[1, 1], [0, 0]], "picture": [[1, 0], [1, 0]], "interaction": [[1, 0], [0, 1]]}[part]
    frame = measured(np.array([one] * 4) * np.arange(1, 5)[:, None, None])
    assert {name: value(frame, metric="part", part=name) for name in two_way.PARTS} == {
        name: float(name == part) for name in two_way.PARTS
    }
    assert value(frame, metric="text alone") == alone
    assert value(frame, metric="same caption") == same
    assert value(frame, metric="joint", type="group") == group


def test_a_pair_without_one_of_its_scores_is_unscored_and_one_cut_off_is_none():
    rows = rows_of(RNG.normal(size=(3, 2, 2)))
    rows[0] |= {"scores": None, "shares": None, "credit": None, "reason": "unreadable"}
    frame = frames.frame(conftest.measured(rows[:-1]))
    effect = frames.pick(frame, metric="effect", part="text")
    assert (effect["n"], effect["unscored"]) == (1, 1)


@pytest.mark.parametrize(
    "change", [{"templates": ["negation", "negation"], "type": "negation"}, {"templates": [None, None]}]
)
def test_two_denials_are_no_minimal_pair_nor_is_each_caption_about_one_picture(change):
    rows = rows_of(RNG.normal(size=(2, 2, 2)))
    for row in rows:
        row |= change
    assert not any(figure["metric"] == "effect" for figure in conftest.measured(rows))


def test_an_answer_counts_as_yes_or_no_with_the_picture_it_is_about():
    pair = Pair("p", PICTURES, ("A dog.", "No dog."))
    task = ChoiceTask("x/yes-no", tuple(pair.build_questions()), NOTHING)
    says = {"A dog. with": 0, "A dog. without": 1, "No dog. with": 0, "No dog. without": 0}  # yes to denials
    answers = {
        question.id: {
            "answer": "", "letter": "A", "reason": "",
            "chosen": says[f"{question.asked.partition('? ')[2]} {question.image}"],
        }
        for question in task.questions
    }  # fmt: skip
    frame = frames.frame(conftest.measured(scoring.score_answers(task, answers)))
    effects = [frames.pick(frame, metric="effect", part=part) for part in two_way.PARTS]
    assert [effect["value"] for effect in effects] == [-0.5, 0.5, 0.5]
    assert all(-1 <= effect["low"] <= effect["high"] <= 1 for effect in effects)
    assert value(frame, metric="same caption") is None  # nothing is chosen
