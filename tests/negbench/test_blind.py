import dataclasses
import functools
import random

import numpy as np
import pytest

from nein.benchmarks import baselines
from nein.benchmarks.negbench import scoring, sections
from nein.benchmarks.negbench.questions import GREY, BlindTask
from nein.datasets.negbench.official import write as write_csv
from nein.datasets.negbench.records import ChoiceTask, Option, Question, RetrievalTask
from nein.metrics.dual import normalise
from nein.models import references
from nein.reporting import figures as frames
from nein.reporting.scores import ScoreTable
from tests.negbench.conftest import NOTHING, Speaker, encode, evaluate, items, questions, write_beaf


def test_without_a_half_what_is_chosen_has_the_highest_mean_over_the_other():
    options = tuple(Option(f"caption {k % 3}", None, f"{k}.png") for k in range(9))
    pairs = tuple(Question(str(k), options[k].image, (options[k], options[(k + 3) % 9]), 0) for k in range(9))
    for asked in (questions(12, 8), pairs):
        task = ChoiceTask("x/task", asked, NOTHING)
        pictures, texts = encode(task)
        cosines = normalise(texts.features) @ normalise(pictures.features).T
        for question, row in zip(asked, scoring.score_choices(task, pictures, texts), strict=True):
            if asked is pairs:
                means = [cosines[:, pictures.rows[option.image]].mean() for option in question.options]
                assert row["picture only"] == float(means[0] > means[1])
                assert row["text only"] == 0.5  # one caption, and no picture
            else:
                means = [cosines[texts.rows[option.text]].mean() for option in question.options]
                assert row["text only"] == float(np.argmax(means) == question.correct)
                assert row["picture only"] == 1 / 4  # nothing is left to choose by


def test_retrieval_without_one_half_is_a_ranking_that_asks_nothing():
    original, negated = items(8, 2)
    task = RetrievalTask("x/retrieval", original, negated, NOTHING)
    pictures, texts = encode(task)
    rows = list(scoring.score_retrieval(task, pictures, texts))
    said = [text for item in negated for text in item.captions]
    shown = normalise(pictures.features)
    words = normalise(texts.features[[texts.rows[text] for text in said]])
    order = list(np.argsort(-(shown @ words.mean(0))))
    heard = list(np.argsort(-(words @ shown.mean(0))))
    for row in (row for row in rows if row["kind"] == "negated"):
        own = task.references.index(row["item"])
        if row["direction"] == scoring.TEXT_TO_IMAGE:
            assert row["text only@5"] == pytest.approx(5 / 8)
            assert row["picture only@1"] == float(order.index(own) < 1)
            assert row["picture only@5"] == float(order.index(own) < 5)
        else:
            places = [heard.index(2 * own), heard.index(2 * own + 1)]
            assert row["text only@5"] == float(min(places) < 5)
            # Two of sixteen captions are its own: one of them is the first in one of eight.
            assert row["picture only@1"] == pytest.approx(1 / 8)


def test_controls_get_chance_in_every_half(tmp_path):
    found = evaluate(tmp_path, "nano", None, "--scenes", "40", "--model", "constant,random")
    to_image = {"direction": scoring.TEXT_TO_IMAGE}
    for run in found.values():
        for name in baselines.BASELINES:
            figure = frames.pick(run.figures, metric=name, type="all")
            assert figure["low"] <= 0.25 <= figure["high"]
            recall = frames.pick(run.figures, metric=f"{name}@5", kind="negated", **to_image)
            assert recall["value"] == pytest.approx(5 / 40)
        for metric, share, where in (("accuracy", 0.25, {"type": "all"}), ("recall@5", 5 / 40, to_image)):
            figure = frames.pick(run.figures, metric=metric, **where)
            assert figure["low"] <= share <= figure["high"]
    run = found["constant/nano"]
    assert frames.pick(run.figures, metric="gain over text", type="all")["value"] == 0
    # They stand in the tables and in the exported file.
    figures = frames.with_columns(run.figures, model="constant")
    (retrieval, *_), (choice, halves) = (section.tables for section in sections.SECTIONS[:2])
    assert {"R-Neg@5, text only", "R-Neg@1, picture only"} <= set(retrieval.sheet(figures).columns)
    assert {"text only", "picture only"} <= set(choice.sheet(figures).columns)
    assert {"text only", "picture only", "gain over text"} == {row[3] for row in halves.sheet(figures).rows}


def test_a_model_is_asked_every_distinct_question_once_without_its_picture(tmp_path):
    seen, grey = list[str](), list[str]()

    def rule(image, prompt):
        dull = (image == baselines.LEVEL).all()
        (grey if dull else seen).append(prompt)
        return "Yes." if dull else "No."

    model, options = Speaker(rule), ("--model", "none", "--vlm", "colour")
    vlm = [references.InMemory("colour", model)]
    found = evaluate(tmp_path, write_beaf(tmp_path / "data"), None, *options, vlm=vlm)
    where = {"variant": "published", "type": "all"}
    names = ("accuracy", "text only", "picture only", "gain over text")
    full, unseen, alone, gain = (
        frames.pick(found["colour/beaf"].figures, metric=name, **where) for name in names
    )
    assert len(grey) == len(set(grey)) > 5
    assert 5 < sum("What is the answer?" in words for words in seen) < len(seen) / 2  # every picture once
    assert full["n"] == unseen["n"]
    assert full["value"] + unseen["value"] == pytest.approx(1)  # always no, and always yes
    assert seen[0].startswith("Is there a")  # it is asked for a word and not for a letter
    assert seen[0].endswith("in the image? Answer only yes or no")
    figure = functools.partial(frames.pick, found["colour/beaf"].figures)
    assert figure(metric="pair", outcome="second alone", type="thing removed")["value"] == 1
    assert full["unscored"] == 0
    assert figure(metric="recall", type="all")["value"] == 0  # it never says yes
    assert figure(metric="precision", type="all")["value"] is figure(metric="F1", type="all")["value"] is None
    assert gain["value"] == pytest.approx(full["value"] - unseen["value"])
    # What is asked makes no difference to it.
    assert (alone["n"], alone["value"]) == (full["n"], full["value"])
    grey.clear()
    options += ("--blind", "0")
    found = evaluate(tmp_path / "none", write_beaf(tmp_path / "data"), None, *options, vlm=vlm)
    assert grey == []
    assert frames.pick(found["colour/beaf"].figures, metric="text only") is None


def test_each_distinct_question_is_asked_once_and_stands_for_those_that_are_like_it():
    # without the picture: a question in another order has the answer by its words
    options = (Option("a dog"), Option("no dog"))
    asked = (Question("1", "a.png", options, 0), Question("2", "b.png", options[::-1], 0))
    distinct = BlindTask.make(baselines.TEXT_ONLY, ChoiceTask("x/caption", asked, NOTHING))
    (one,) = distinct.task.questions
    assert distinct.stand_ins[asked[1].id] == one
    assert one.image == GREY
    assert (distinct.task.media.frames(one.image)[0] == baselines.LEVEL).all()
    assert distinct.reorder(asked[1], one, [0.2, 0.8]) == [0.8, 0.2]
    # without the words: captions are all alike, and nobody is asked
    task = ChoiceTask("x/mcq", questions(12, 4), NOTHING)
    distinct = BlindTask.make(baselines.PICTURE_ONLY, task)
    assert distinct.task.questions == ()
    for said in ({"scores": [1.0, 0.0, 0.0, 0.0]}, {"answer": "A", "letter": "A", "chosen": 0}):
        answers = {question.id: {**said, "reason": ""} for question in task.questions}
        rows = scoring.score_answers(task, answers, [(distinct, {})])
        assert {row["picture only"] for row in rows} == {1 / 4}


def shortcuts(strength, count):
    """Questions of which a share `strength` has "clearly" in the right option, the others in any."""
    draw, asked = random.Random(7), []
    for index, question in enumerate(questions(count)):
        marked = 0 if draw.random() < strength else draw.randrange(4)
        texts = [f"a {noun} is here" for noun in draw.sample("dog cat boat tree lamp chair".split(), 4)]
        texts[marked] += " clearly"
        options = tuple(map(Option, texts, (option.template for option in question.options)))
        asked.append(dataclasses.replace(question, options=options, source=f"scene {index}"))
    return asked


@pytest.mark.parametrize(("strength", "count"), [(0.0, 240), (0.5, 240), (1.0, 240), (1.0, 199)])
def test_a_planted_shortcut_stands_beside_the_accuracy_of_a_file_with_enough_questions(
    strength, count, tmp_path, pictures
):
    write_csv(tmp_path / "mcq.csv", shortcuts(strength, count))
    found = evaluate(tmp_path, tmp_path, pictures, "--model", "constant", "--limit", "220")
    figures = frames.select(found["constant/own"].figures, type="all")
    reader, gain, missed = (frames.pick(figures, metric=name) for name in baselines.READER_METRICS)
    if count < baselines.MIN_QUESTIONS:
        assert reader is gain is missed is None
        return
    assert reader["n"] == 220  # what was asked, by a reader of the whole file
    assert reader["value"] == pytest.approx(strength + (1 - strength) / 4, abs=0.08)
    assert gain["value"] == pytest.approx(0.25 - reader["value"])  # of a constant
    scored = ScoreTable.read(found["constant/own"].folder.path / "scores.csv").where(metric="text reader")
    assert missed["n"] == (scored.values < 1).sum() == round(220 * (1 - reader["value"]))
