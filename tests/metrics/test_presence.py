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
    items = [item(scene(car=s), SAMPLE, id=str(s)) for s in scores]
    rows = presence(["auc_removal"]).score(items)["auc_removal"]
    counted = np.array([s if s > 0.1 else 0.0 for s in np.round(np.array(scores) * 250) / 250])
    area = np.mean([(counted <= t).mean() for t in np.linspace(0, 1, 4001)])
    assert np.mean([row.value for row in rows]) == pytest.approx(area, abs=1e-3)


@pytest.mark.parametrize(("threshold", "value"), [(0.2, 1), (0.19, 0)])
def test_the_threshold_is_strict_and_an_argument(threshold: float, value: int) -> None:
    found = one(presence(["removal_ovd"], threshold=threshold), item(scene(car=0.2), SAMPLE))
    assert found["removal_ovd"].value == value


def test_removal_asks_once_about_the_object_in_the_sample_where_that_is_wanted() -> None:
    names = ("removal_vqa", "removal_ovd")
    edits = [(scene(), SAMPLE), (scene(car=0.9), SAMPLE), (scene(car=0.9), scene())]
    rows = [item(*pair, id=str(k)) for k, pair in enumerate(edits)]
    metric, plain = presence(names, before=True), presence(names)
    scores, without = metric.score(rows), plain.score(rows)
    for name in names:
        assert [s.value for s in scores[name]] == [s.value for s in without[name]] == [1, 0, 0]
        assert [score.detail["present_before"] for score in scores[name]] == [True, True, False]
        assert [list(score.detail["before"]) for score in scores[name]] == [["car"]] * 3
    assert metric.models["vqa"].asked == 3 + 2  # of every edit, and of two samples
    assert plain.models["vqa"].asked == 3


# --------------------------------------------------------------------------------------------- protocols


@pytest.mark.parametrize(
    "answer,paper,fixed",
    [("No", 1, 1), ("no", 0, 1), ("No.", 0, 1), ("Yes.", 0, 0), ("Maybe", 0, None), ("", 0, None)],
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

    paper, fixed = (
        one(presence(["retention_vqa"], with_a_full_stop, protocol=p), item(scene(dog=0.7), SAMPLE))
        for p in ("paper", "fixed")
    )
    assert (paper["retention_vqa"].value, paper["retention_vqa"].reason) == (None, NOTHING_FOUND)
    assert fixed["retention_vqa"].value == 0.5


RED = "The dogs play with a frisbee and it is red."
PACK = scene(dogs=0.9, dog=0.9, it=0.9, frisbee=0.9)


@pytest.mark.parametrize(
    ("edited", "sample", "caption", "vqa", "ovd"),
    [
        # repeated objects count twice for VQA and once for OVD; paper and fixed each
        (scene(dog=0.7), SAMPLE, "A dog and a man and a dog.", (2 / 3, 1 / 2), (1 / 2, 1 / 2)),
        # pronouns and plurals; nouns
        (scene(dog=0.9, frisbee=0.9), PACK, RED, (1 / 3, 1), (1 / 3, 1)),
        # what should go is not to be retained under fixed
        (scene(man=0.6), SAMPLE, "A man in a car.", (0.5, 1), (0.5, 1)),
    ],
)
def test_the_protocols_differ_in_what_is_retained(edited, sample, caption, vqa, ovd) -> None:
    work = item(edited, sample, caption=caption)
    found = [one(presence(protocol=protocol), work) for protocol in ("paper", "fixed")]
    assert [row["retention_vqa"].value for row in found] == pytest.approx(list(vqa))
    assert [row["retention_ovd"].value for row in found] == pytest.approx(list(ovd))
    if caption == RED:
        assert set(found[0]["retention_ovd"].detail["in_sample"]) == {"dogs", "frisbee", "it"}
        assert found[1]["retention_ovd"].detail["in_sample"] == ["dog", "frisbee"]


def test_a_score_at_the_threshold_is_no_sighting() -> None:
    at = one(presence(["removal_ovd"], threshold=0.8), item(SAMPLE, SAMPLE))["removal_ovd"]
    below = one(presence(["removal_ovd"], threshold=0.79), item(SAMPLE, SAMPLE))["removal_ovd"]
    assert (at.value, below.value) == (1, 0)


@pytest.mark.parametrize("protocol", ["paper", "fixed"])
def test_evidence_for_both_protocols_asks_what_the_other_would(protocol: str) -> None:
    judges = [ScriptedJudge(yes_no), ScriptedJudge(yes_no)]
    for judge, evidence in zip(judges, ("own", "both"), strict=True):
        work = item(PACK, PACK, caption=RED)
        one(presence(["retention_vqa"], vqa=judge, protocol=protocol, evidence=evidence), work)
    # paper: dogs, frisbee, it; fixed: dog, frisbee; each of the sample and of the edit
    assert [judge.asked for judge in judges] == [{"paper": 6, "fixed": 4}[protocol], 8]


@pytest.mark.parametrize(("article", "words"), [("none", "contain car?"), ("a_an", "contain a car?")])
def test_the_article_is_part_of_the_question(article: str, words: str) -> None:
    found = one(presence(["removal_vqa"], article=article), item(SAMPLE, SAMPLE))
    assert words in found["removal_vqa"].detail["question"]


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
    def found(items: list) -> list[dict]:
        rows = presence().score(items)
        return [{name: rows[name][i].value for name in NAMES} for i in range(len(items))]

    edits = [scene(car=0.5), scene(dog=0.7), scene(), SAMPLE]
    items = [item(e, SAMPLE, id=str(i)) for i, e in enumerate(edits)]
    together = found(items)
    assert together == [found([work])[0] for work in items]
    assert together[::-1] == found(items[::-1])
    assert presence().score([]) == {name: [] for name in NAMES}


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
