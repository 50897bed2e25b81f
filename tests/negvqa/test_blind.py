import random

import pytest

import nein
from nein.benchmarks.baselines import LEVEL
from nein.benchmarks.negvqa import sections
from nein.engine.folder import find_runs
from nein.metrics.choices import Reply
from nein.reporting import figures as frames
from tests.negvqa.tiny import answers, figure, scores, write_questions


class Model:
    """Answers by rule(whether a picture is seen, the question or "", the options) -> the option's number."""

    fingerprint, scorings, concurrent = "model", ("generated", "logprob"), 0

    def __init__(self, rule):
        self.rule = rule
        self.heard = []

    def describe(self):
        return {"model": "Model"}

    def answer(self, images, asked, scorings):
        replies = []
        for image, row in zip(images, asked, strict=True):
            seen = not (image == LEVEL).all()
            self.heard += [(seen, one.question) for one in row]
            chosen = [self.rule(seen, one.question, one.texts) for one in row]
            replies.append([Reply("AB"[k], (-0.1, -3.0) if k == 0 else (-3.0, -0.1)) for k in chosen])
        return replies


def evaluated(tmp_path, model, rows=None, **more):
    more |= {"data": write_questions(tmp_path / "data", rows), "out": tmp_path / "out", "batch_size": 4}
    nein.negvqa({"model": model}, device="cpu", **more)
    return find_runs(tmp_path / "out")[0]


def share(folder, metric, variant, category="Average"):
    what = {"task": "blind", "metric": metric, "variant": variant, "scoring": "generated"}
    return figure(folder, **what, category=category)


def accuracy(folder, variant):
    how = {"category": "Average", "interval": "clustered", "scoring": "generated", "protocol": "fixed"}
    return figure(folder, task="accuracy", variant=variant, **how)["value"]


def test_a_model_that_looks_at_nothing_gains_nothing_by_the_picture_and_plots_mark_its_baselines(tmp_path):
    folder = evaluated(tmp_path, Model(lambda seen, question, texts: int("not" in question)))
    for variant in ("original", "negated"):
        assert share(folder, "text only", variant)["value"] == accuracy(folder, variant)
        assert share(folder, "gain over text", variant)["value"] == 0
    made = frames.with_columns(frames.read(folder / "figures.csv"), model="model")
    plot = sections.ORIGINAL_AND_NEGATED
    canvas = plot.draw(frames.select(made, **plot.where), **plot.options)
    for marker, baseline in (("D", "text only"), ("o", "picture only")):
        values = [100 * share(folder, baseline, variant)["value"] for variant in ("original", "negated")]
        [drawn] = [line for line in canvas.axes[0].lines if line.get_marker() == marker]
        assert list(drawn.get_xdata()) == pytest.approx(values)
    labels = [text.get_text() for text in canvas.legends[0].get_texts()]
    assert labels == ["original", "negated", "text only", "picture only"]


def test_without_the_question_one_answer_counts_for_it_and_for_its_negation(tmp_path):
    model = Model(lambda seen, question, texts: 0 if question else 1)
    folder = evaluated(tmp_path, model)
    shares = [share(folder, "picture only", variant)["value"] for variant in ("original", "negated")]
    assert sum(shares) == pytest.approx(1)  # what is right for one of the two is wrong for the other
    assert model.heard.count((True, "")) == 12
    assert sum(not seen for seen, _ in model.heard) == 24
    rows = [row for row in scores(folder) if row["metric"] != "accuracy"]
    assert len(rows) == 12 * 4 * 2
    assert {row["metric"] for row in rows} == {"text only", "picture only"}


def test_baselines_are_asked_of_as_many_questions_as_wanted_all_over_the_data(tmp_path):
    model = Model(lambda seen, question, texts: 0)
    folder = evaluated(tmp_path, model, blind=5)
    assert share(folder, "text only", "original")["n"] == 8  # two whole blocks of three
    assert {row.id for row in answers(folder, "blind")} >= {"10", "13"}
    assert "--blind" in (tmp_path / "out" / "table.md").read_text(encoding="utf-8")


def test_a_cure_has_baselines_of_its_own_which_are_exported_too(tmp_path):
    model = Model(lambda seen, question, texts: 0)
    evaluated(tmp_path, model, mend=["flip", "consistent"])
    plain, flipped, consistent = (tmp_path / "out" / f"model{arm}" for arm in ("", "+flip", "+consistent"))
    # Always the first option, which is right of these questions: of a denial the other one is, and taken.
    values = {
        (folder, variant): share(folder, "text only", variant, "General")["value"]
        for folder in (plain, flipped)
        for variant in ("original", "negated")
    }
    assert values == {
        (plain, "original"): 1, (plain, "negated"): 0, (flipped, "original"): 1, (flipped, "negated"): 1,
    }  # fmt: skip
    unsaid = [share(folder, "picture only", "negated")["value"] for folder in (plain, flipped)]
    assert unsaid[0] == unsaid[1]
    assert {row["metric"] for row in scores(consistent)} - {"accuracy"} == {"text only"}
    assert len(answers(consistent, "blind")) == 12 * 2


@pytest.mark.parametrize(("strength", "count"), [(0.0, 200), (0.5, 200), (1.0, 200), (1.0, 99)])
def test_a_planted_shortcut_stands_beside_the_accuracy_of_a_file_with_enough_questions(
    strength, count, tmp_path
):
    draw, rows = random.Random(7), []
    for number in range(count):
        first = 0 if draw.random() < strength else draw.randrange(2)  # "yes" is right
        rows.append({
            "index": number, "image": f"p{number % 8}.png", "category": "GQA", "A": "yes", "B": "no",
            "original_question": "Is it there?", "negated_question": "Is it not there?",
            "original_answer": "AB"[first], "negated_answer": "BA"[first],
        })  # fmt: skip
    folder = evaluated(tmp_path, Model(lambda seen, question, texts: 0), rows, blind=0)
    if count < 100:
        assert "text reader" not in (folder / "scores.csv").read_text()
        return
    for variant in ("original", "negated"):
        reader, gain, missed = (
            share(folder, name, variant)
            for name in ("text reader", "gain over the reader", "where the reader misses")
        )
        assert reader["value"] == pytest.approx(strength + (1 - strength) / 2, abs=0.08)
        assert gain["value"] == pytest.approx(accuracy(folder, variant) - reader["value"])
        assert missed["n"] == pytest.approx(count * (1 - reader["value"]))
