"""Removal, Retention and AUC-Removal: definitions, the two protocols, and what is recorded."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from nein import metrics
from nein.metrics import METRICS, Batch, MetricError, Settings
from nein.metrics.presence import NOTHING_FOUND
from tests.metrics.scripted import NAMES, SAMPLE, item, one, presence, scene, score_of, yes_no
from tests.rehearsal import ScriptedDetector, ScriptedJudge

# ------------------------------------------------------------------------------------------- definitions


@pytest.mark.parametrize("protocol", ["paper", "fixed"])
@pytest.mark.parametrize(
    "edited,expected",
    [
        # removal (vqa), retention (vqa), removal (ovd), auc, retention (ovd)
        (SAMPLE, (0, 1, 0, 0.2, 1)),
        (scene(dog=0.7, man=0.6), (1, 1, 1, 1, 1)),
        (scene(dog=0.7), (1, 0.5, 1, 1, 0.5)),
        (scene(), (1, 0, 1, 1, 0)),
        (scene(car=0.08, man=0.6), (0, 0.5, 1, 1, 0.5)),
        (scene(car=1.0), (0, 0, 0, 0, 0)),
    ],
)
def test_the_scores_of_made_up_edits_are_those_of_the_definition(protocol, edited, expected) -> None:
    found = one(presence(protocol=protocol), item(edited, SAMPLE))
    assert tuple(found) == NAMES
    assert [found[name].value for name in NAMES] == pytest.approx(list(expected))


def test_auc_removal_is_the_area_under_the_distribution_function_of_the_scores() -> None:
    scores = [0.0, 0.04, 0.12, 0.5, 0.5, 0.9, 1.0]
    rows = presence(["auc_removal"]).score([item(scene(car=s), SAMPLE, id=str(s)) for s in scores])[
        "auc_removal"
    ]
    counted = np.array([s if s > 0.1 else 0.0 for s in np.round(np.array(scores) * 250) / 250])
    grid = np.linspace(0, 1, 200001)
    area = np.mean([(counted <= t).mean() for t in grid[::50]])
    assert np.mean([row.value for row in rows]) == pytest.approx(area, abs=1e-3)


def test_the_threshold_is_strict_and_an_argument() -> None:
    edited = scene(car=0.2)
    assert one(presence(["removal_ovd"], threshold=0.2), item(edited, SAMPLE))["removal_ovd"].value == 1
    assert one(presence(["removal_ovd"], threshold=0.19), item(edited, SAMPLE))["removal_ovd"].value == 0


def test_removal_looks_at_the_edit_and_never_at_the_sample() -> None:
    judge, detector = ScriptedJudge(yes_no), ScriptedDetector(score_of)
    metric = presence(["removal_vqa", "removal_ovd"], vqa=judge, detector=detector)
    found = one(metric, item(scene(car=0.5), SAMPLE))
    assert found["removal_vqa"].value == 0
    assert found["removal_ovd"].value == 0
    assert judge.asked == detector.asked == 1


def test_removal_asks_once_about_the_object_in_the_sample_where_that_is_wanted() -> None:
    metric = presence(("removal_vqa", "removal_ovd"), before=True)
    rows = [
        item(scene(), SAMPLE),
        item(scene(car=0.9), SAMPLE, id="b"),
        item(scene(car=0.9), scene(), id="c"),
    ]
    scores = metric.score(rows)
    for name in ("removal_vqa", "removal_ovd"):
        assert [score.value for score in scores[name]] == [1, 0, 0]  # as without it
        assert [score.detail["present_before"] for score in scores[name]] == [True, True, False]
        assert [list(score.detail["before"]) for score in scores[name]] == [["car"]] * 3
    assert metric.models["vqa"].asked == 3 + 2  # of every edit, and of two samples


# --------------------------------------------------------------------------------------------- protocols


@pytest.mark.parametrize(
    "answer,paper,fixed",
    [
        ("No", 1, 1),
        ("no", 0, 1),
        ("No.", 0, 1),
        ("Yes", 0, 0),
        ("Yes.", 0, 0),
        ("Maybe", 0, None),
        ("", 0, None),
    ],
)
def test_removal_by_answer_under_both_protocols(answer, paper, fixed) -> None:
    for protocol, expected in (("paper", paper), ("fixed", fixed)):
        found = one(presence(["removal_vqa"], lambda i, p: answer, protocol=protocol), item(SAMPLE, SAMPLE))
        score = found["removal_vqa"]
        assert score.value == expected
        assert score.detail["answer"] == answer
        if expected is None:
            assert score.reason == f"the answer {answer!r} is neither yes nor no"


def test_retention_by_answer_under_both_protocols() -> None:
    def with_a_full_stop(image: np.ndarray, prompt: str) -> str:
        return f"{yes_no(image, prompt)}."

    work = item(scene(dog=0.7), SAMPLE)
    paper = one(presence(["retention_vqa"], with_a_full_stop, protocol="paper"), work)["retention_vqa"]
    fixed = one(presence(["retention_vqa"], with_a_full_stop, protocol="fixed"), work)["retention_vqa"]
    assert paper.value is None
    assert paper.reason == NOTHING_FOUND
    assert fixed.value == 0.5


def test_the_paper_counts_repeated_objects_twice_for_vqa_and_once_for_ovd() -> None:
    work = item(scene(dog=0.7), SAMPLE, caption="A dog and a man and a dog.")
    paper = one(presence(protocol="paper"), work)
    fixed = one(presence(protocol="fixed"), work)
    assert paper["retention_vqa"].value == pytest.approx(2 / 3)
    assert paper["retention_ovd"].value == pytest.approx(1 / 2)
    assert fixed["retention_vqa"].value == fixed["retention_ovd"].value == pytest.approx(1 / 2)


def test_the_paper_asks_about_pronouns_and_plurals_and_fixed_about_nouns() -> None:
    sample = scene(dogs=0.9, dog=0.9, it=0.9, frisbee=0.9)
    work = item(scene(dog=0.9, frisbee=0.9), sample, caption="The dogs play with a frisbee and it is red.")
    paper = one(presence(["retention_ovd"], protocol="paper"), work)["retention_ovd"]
    fixed = one(presence(["retention_ovd"], protocol="fixed"), work)["retention_ovd"]
    assert set(paper.detail["in_sample"]) == {"dogs", "frisbee", "it"}
    assert paper.value == pytest.approx(1 / 3)
    assert fixed.detail["in_sample"] == ["dog", "frisbee"]
    assert fixed.value == 1


def test_fixed_does_not_ask_to_retain_what_should_go() -> None:
    work = item(scene(man=0.6), SAMPLE, caption="A man in a car.")
    assert one(presence(["retention_vqa"], protocol="paper"), work)["retention_vqa"].value == 0.5
    assert one(presence(["retention_vqa"], protocol="fixed"), work)["retention_vqa"].value == 1


def test_the_article_is_part_of_the_question() -> None:
    asked: list[str] = []

    def listening(image: np.ndarray, prompt: str) -> str:
        asked.append(prompt)
        return "No"

    for article in ("none", "a_an"):
        one(presence(["removal_vqa"], listening, article=article), item(SAMPLE, SAMPLE))
    assert "contain car?" in asked[0]
    assert "contain a car?" in asked[1]


# ------------------------------------------------------------------------------------------- the record


def test_scores_are_json_and_hold_the_evidence() -> None:
    metric = presence()
    found = one(metric, item(scene(car=0.5, dog=0.7), SAMPLE))
    for score in found.values():
        json.dumps(score.detail)
        assert score.reason
    assert found["removal_ovd"].detail["score"] == pytest.approx(0.5)
    assert found["removal_ovd"].detail["threshold"] == 0.1
    assert "contain car?" in found["removal_vqa"].detail["question"]
    assert found["retention_vqa"].detail["after"] == {"man": "No", "dog": "Yes"}
    assert "lost: man" in found["retention_vqa"].reason


def test_order_and_company_do_not_change_a_score() -> None:
    edits = [scene(car=0.5), scene(dog=0.7), scene(), SAMPLE]
    items = [item(e, SAMPLE, id=str(i)) for i, e in enumerate(edits)]
    together = presence().score(items)
    for i, work in enumerate(items):
        alone = one(presence(), work)
        assert {n: together[n][i].value for n in NAMES} == {n: alone[n].value for n in NAMES}
    backwards = presence().score(items[::-1])
    assert {n: [s.value for s in r][::-1] for n, r in backwards.items()} == {
        n: [s.value for s in r] for n, r in together.items()
    }


@pytest.mark.parametrize("missing", ["removal_vqa", "retention_vqa", "removal_ovd", "retention_ovd"])
def test_a_metric_that_was_interrupted_is_asked_about_as_all_are_together(missing: str) -> None:
    class Judge(ScriptedJudge):
        def ask(self, images: Any, questions: Any) -> Any:
            heard.append(questions)
            return super().ask(images, questions)

    class Detector(ScriptedDetector):
        def detect(self, images: Any, labels: Any, threshold: float = 0.1) -> Any:
            heard.append(labels)
            return super().detect(images, labels, threshold)

    def asked(wanted: tuple[str, ...], among: tuple[str, ...]) -> tuple[list[Any], Any]:
        heard.clear()
        models = {"vqa": Judge(yes_no), "ovd": Detector(score_of)}
        items = [item(scene(car=0.5, dog=0.7), SAMPLE), item(SAMPLE, SAMPLE, id="b")]
        scores = metrics.score([METRICS[name] for name in wanted], Batch(items, models, names=among))
        return list(heard), scores[missing]

    heard: list[Any] = []
    of_one_judge = tuple(name for name in NAMES if METRICS[name].models == METRICS[missing].models)
    whole, alone = asked(of_one_judge, ()), asked((missing,), ())
    assert asked((missing,), NAMES) == whole
    assert alone[0] != whole[0]
    assert alone[1] == whole[1]


def test_no_items_give_no_scores() -> None:
    assert presence().score([]) == {name: [] for name in NAMES}


@pytest.mark.parametrize(
    "settings,message",
    [
        ({"threshold": 1.0}, "below 1, not 1.0"),
        ({"protocol": "papers"}, "did you mean 'paper'"),
        ({"article": "the"}, "Allowed: none, a_an"),
        ({"evidence": "other"}, "Allowed: own, both"),
    ],
)
def test_bad_settings_are_one_clear_sentence(settings, message) -> None:
    with pytest.raises(MetricError, match=message):
        Settings(**settings)


@pytest.mark.parametrize("name,kind", [("removal_vqa", "vqa"), ("auc_removal", "ovd")])
def test_a_missing_judge_is_named(name: str, kind: str) -> None:
    with pytest.raises(MetricError, match=f"'{name}' needs the model '{kind}'"):
        metrics.score([METRICS[name]], Batch([item(SAMPLE, SAMPLE)]))
