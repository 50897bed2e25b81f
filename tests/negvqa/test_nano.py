import pytest

from tests.negvqa.tiny import figure, run

MODELS = ("nano-negvqa", "nano-negvqa-negated")
QUESTIONS = 24


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    root = tmp_path_factory.mktemp("nano")
    assert (
        run("--questions", QUESTIONS, "--out", root, "--device", "cpu", "--blind", 0, "--formats", "md") == 0
    )
    return root


def average(out, model, variant, scoring="generated"):
    wanted = {"scoring": scoring, "protocol": "fixed", "variant": variant, "category": "Average"}
    return figure(out / model, task="accuracy", **wanted)


def test_the_affirmative_model_does_well_and_falls_on_negated_questions(out):
    original, negated = (average(out, MODELS[0], v) for v in ("original", "negated"))
    assert original["value"] > 0.7
    assert negated["value"] < 0.35
    assert original["n"] == negated["n"] == QUESTIONS
    overall = {"category": "Average", "protocol": "fixed"}
    assert figure(out / MODELS[0], metric="gap", **overall)["low"] > 0.2
    assert figure(out / MODELS[0], metric="mcnemar", **overall)["p"] < 0.001


def test_the_model_taught_negation_closes_most_of_the_gap(out):
    values = [[average(out, model, v)["value"] for v in ("original", "negated")] for model in MODELS]
    (affirmed, fallen), (original, negated) = values
    assert min(original, negated) > 0.65
    assert original - negated < (affirmed - fallen) / 3


def test_written_and_likeliest_letters_agree(out):
    for model in MODELS:
        found = figure(out / model, task="agreement")
        assert found["n"] == 2 * QUESTIONS
        assert found["value"] >= 0.99
