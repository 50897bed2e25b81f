from dataclasses import replace

import numpy as np
import pytest

from nein.benchmarks.negbench import scoring
from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.questions import Asking, order_options, read_image
from nein.datasets.negbench.media import Drawn
from nein.datasets.negbench.records import ChoiceTask
from nein.engine.folder import Blocks, Folder
from nein.engine.images import ImageError
from nein.engine.run import Executor
from nein.engine.stages import Model, Step
from nein.metrics.choices import JudgeChoices, Reply
from tests.metrics import tiny
from tests.negbench.conftest import Speaker, questions
from tests.rehearsal import ScriptedJudge

TASK = ChoiceTask("x/mcq", questions(20, 8), Drawn(lambda name: tiny.picture(int(name[:3]))))


def ask(model, folder, task=TASK, **manner):
    run = Folder(folder / "run")
    asked = Model("test", lambda: model, lambda loaded: {"model": (loaded.fingerprint, {})})
    blocks = Blocks.first(len(task.questions), 3)
    stage = Asking("answers", task, blocks, config=EvalConfig(**manner), model=asked)
    Executor("cpu").compute([Step(run, stage)])
    return {row["id"]: row for row in run.rows("answers", stage.blocks.numbers)}


def test_the_order_depends_on_seed_and_question_alone():
    asked = questions(30)
    orders = [order_options(question, 0) for question in asked]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert len({tuple(order) for order in orders}) > 8
    assert orders != [order_options(question, 1) for question in asked]
    first = [order.index(0) for order in orders]
    assert set(first) == {0, 1, 2, 3}  # the right one stands anywhere


def taker(wanted):
    """A judge that names the letter of the option whose text begins with `wanted`, else declines."""

    def rule(image, prompt):
        for letter in "ABCD":
            if f"{letter}. {wanted}" in prompt:
                return f"({letter})"
        return "I cannot tell."

    return JudgeChoices(ScriptedJudge(rule, f"takes {wanted}"))


def test_the_letter_stands_for_the_option_shown_behind_it(tmp_path):
    found = ask(taker("This image does not feature"), tmp_path)
    letters = set()
    for question in TASK.questions:
        row = found[question.id]
        order = order_options(question, 0)
        assert question.options[row["chosen"]].text.startswith("This image does not feature")
        assert order["ABCD".index(row["letter"])] == row["chosen"]
        letters.add(row["letter"])
    assert len(letters) > 2  # options are shuffled
    rows = list(scoring.score_answers(TASK, found))
    assert all(row["templates"][row["shares"].index(1.0)] == "negation" for row in rows)


def test_a_model_that_always_says_a_is_at_chance_and_always_right_as_released(tmp_path):
    task = replace(TASK, questions=questions(200, 8))
    always = JudgeChoices(ScriptedJudge(lambda image, text: "A", "always A"))
    fixed = list(scoring.score_answers(task, ask(always, tmp_path / "a", task)))
    assert np.mean([row["credit"] for row in fixed]) == pytest.approx(0.25, abs=0.1)
    said = ask(always, tmp_path / "b", task, protocol="paper")
    paper = list(scoring.score_answers(task, said, protocol="paper"))
    assert np.mean([row["credit"] for row in paper]) == 1.0


def test_no_letter_no_picture_and_a_failure_are_unscored_and_asked_again_when_mended(tmp_path):
    wrong, state = [True], tmp_path / "pictures"
    state.write_text("one is gone")

    class Pictures(Drawn):
        def files(self, references):
            return [state]

    def frames(name):
        if name == "002.png" and wrong:
            raise ImageError("002.png: gone")
        return tiny.picture(int(name[:3]))

    def rule(image, prompt):
        if (image == tiny.picture(3)).all() and wrong:
            raise RuntimeError("too hot")
        return "I cannot tell." if (image == tiny.picture(4)).all() else "B"

    task = replace(TASK, questions=questions(6, 8), media=Pictures(frames))
    judge = ScriptedJudge(rule, "fails")
    found = ask(JudgeChoices(judge), tmp_path, task)
    reasons = {name: row["reason"] for name, row in found.items() if row["chosen"] is None}
    assert set(reasons) == {"q2", "q3", "q4"}
    assert "gone" in reasons["q2"]
    assert "too hot" in reasons["q3"]
    assert reasons["q4"] == "no option is named"
    assert found["q4"]["answer"] == "I cannot tell."
    unscored = [row["id"] for row in scoring.score_answers(task, found) if row["credit"] is None]
    assert unscored == ["q2", "q3", "q4"]
    wrong.clear()
    state.write_text("all are there")
    again = ask(JudgeChoices(judge), tmp_path, task)
    assert [name for name, row in again.items() if row["chosen"] is None] == ["q4"]  # an answer stays
    assert {name: again[name] for name in ("q0", "q1", "q4", "q5")} == {
        name: found[name] for name in ("q0", "q1", "q4", "q5")
    }
    asked = judge.asked
    assert ask(JudgeChoices(judge), tmp_path, task) == again
    assert judge.asked == asked


def test_probabilities_of_letters_choose_too(tmp_path):
    sure = Speaker(lambda *_: Reply(logprobs=(-3.0, -0.1, None, -5.0)), scorings=("logprob",))
    assert {row["letter"] for row in ask(sure, tmp_path, scoring="logprob").values()} == {"B"}


def test_frames_of_a_video_become_one_picture():
    media = Drawn(lambda name: [np.full((4, 6, 3), k, dtype=np.uint8) for k in range(4)])
    sheet = read_image(media, TASK.questions[0].image)
    assert not isinstance(sheet, str)
    assert sheet.shape == (8, 12, 3)
    assert [int(sheet[y, x, 0]) for y in (0, 7) for x in (0, 11)] == [0, 1, 2, 3]
