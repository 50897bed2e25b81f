"""The blind reader: a planted shortcut is measured back, and nothing is learned where there is none."""

import random

import numpy as np
import pytest

from nein.benchmarks import baselines
from nein.statistics.blind import read_blindly

NOUNS = "dog cat boat tree lamp chair horse train kite phone cup bench".split()


def questions(strength, count=1200):
    """Four options each; in a share `strength` the right one says "clearly", else one drawn from the four."""
    draw = random.Random(7)
    options, answers = [], []
    for _ in range(count):
        answer = draw.randrange(4)
        marked = answer if draw.random() < strength else draw.randrange(4)
        texts = [f"a {noun} is here" for noun in draw.sample(NOUNS, 4)]
        texts[marked] += " clearly"
        options.append(texts)
        answers.append(answer)
    return options, answers, [str(index) for index in range(count)]


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_a_planted_shortcut_is_measured_back(strength):
    options, answers, scenes = questions(strength)
    expected = strength + (1 - strength) / 4
    assert read_blindly(options, answers, scenes).mean() == pytest.approx(expected, abs=0.04)


def test_neither_the_order_of_questions_nor_of_options_changes_a_result():
    options, answers, scenes = questions(0.5, 200)
    turned = [texts[::-1] for texts in options][::-1]
    back = read_blindly(turned, [3 - answer for answer in answers][::-1], scenes[::-1])[::-1]
    np.testing.assert_array_equal(read_blindly(options, answers, scenes), back)


def test_options_that_read_alike_share_the_credit():
    options = [["yes", "yes", "yes", "no"]] * 40
    right = read_blindly(options, [0] * 40, [str(index) for index in range(40)])
    np.testing.assert_allclose(right, 1 / 3)


def test_a_short_option_is_read_with_its_question():
    texts = ["is there a dog", "is there no dog"] * 60
    scenes = [str(index) for index in range(120)]
    assert read_blindly([["yes", "no"]] * 120, [0, 1] * 60, scenes, texts).all()
    assert read_blindly([["yes", "no"]] * 120, [0, 1] * 60, scenes).mean() == pytest.approx(0.5, abs=0.1)


def test_pairs_of_one_scene_teach_nothing_about_each_other():
    # Each scene has words of its own; its two questions have opposite answers.
    words = [f"thing{index}" for index in range(100) for _ in range(2)]
    options = [[f"with {word}", "without"] for word in words]
    answers = [0, 1] * 100
    alone = read_blindly(options, answers, [f"{index}" for index in range(200)]).mean()
    paired = read_blindly(options, answers, words).mean()
    assert alone < 0.35
    assert paired == pytest.approx(0.5, abs=0.05)


def test_one_scene_and_no_word_teach_nothing_and_a_fault_is_raised():
    with pytest.raises(ValueError, match="1 scenes"):
        read_blindly([["yes", "no"]] * 4, [0] * 4, ["one"] * 4)
    scenes = [str(index) for index in range(baselines.MIN_QUESTIONS)]
    np.testing.assert_array_equal(read_blindly([["?", "!"]] * len(scenes), [0] * len(scenes), scenes), 0.5)
    asked = {scene: baselines.Question("", ("yes", "no"), 0, scene) for scene in scenes}
    assert len(baselines.score_text_reader(asked)) == len(scenes)
    assert baselines.score_text_reader({key: one._replace(scene="one") for key, one in asked.items()}) == {}
    with pytest.raises(ValueError, match="class"):
        baselines.score_text_reader({key: one._replace(answer=2) for key, one in asked.items()})
