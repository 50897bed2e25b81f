from nein.reporting import figures as frames
from tests.negvqa.tiny import figure, run

MODELS = ("nano-negvqa", "nano-negvqa-negated")
QUESTIONS = 24


def test_the_affirmative_model_falls_on_negated_questions_and_the_one_taught_negation_hardly(tmp_path):
    words = ("--questions", QUESTIONS, "--device", "cpu", "--blind", 0)
    assert run(*words, "--out", tmp_path) == 0
    overall = {"category": "Average", "protocol": "fixed"}
    shares = {"task": "accuracy", "scoring": "generated", **overall}
    (affirmed, fallen), (original, negated) = (
        [figure(tmp_path / model, variant=variant, **shares)["value"] for variant in ("original", "negated")]
        for model in MODELS
    )
    assert affirmed > 0.7
    assert fallen < 0.35
    assert min(original, negated) > 0.65
    assert original - negated < (affirmed - fallen) / 3
    assert figure(tmp_path / MODELS[0], metric="gap", **overall)["low"] > 0.2
    assert figure(tmp_path / MODELS[0], metric="mcnemar", **overall)["p"] < 0.001
    for model in MODELS:  # written and likeliest letters
        found = figure(tmp_path / model, task="agreement")
        assert found["n"] == 2 * QUESTIONS
        assert found["value"] >= 0.99
        rows = frames.read(tmp_path / model / "figures.csv")
        shares = rows[(rows["unit"] == "%") & (rows["protocol"] == "fixed")]
        assert set(shares["interval"]) == {"clustered", ""}  # not the paper's, which goes beyond
        assert shares["low"].min() >= 0.0
        assert shares["high"].max() <= 1.0
