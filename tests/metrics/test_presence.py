"""Removal, Retention and AUC-Removal: definitions, the two protocols, and what is recorded."""

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from nein import metrics
from nein.metrics import METRICS, Batch, EditPair, MetricError, Settings
from nein.metrics.base import MemoryStore
from nein.metrics.choices import Reply
from nein.metrics.judges.base import Answer
from nein.metrics.presence import NOTHING_FOUND
from tests.rehearsal import ScriptedDetector, ScriptedJudge

NAMES = ("removal_vqa", "retention_vqa", "removal_ovd", "auc_removal", "retention_ovd")
#: Words the scripted judges can see; a picture shows word k with certainty pixel (0, k, 0) / 250.
WORDS = ("car", "dog", "man", "bench", "dogs", "it", "traffic light", "light", "frisbee")


def scene(*, width=12, **seen):
    image = np.zeros((4, width, 3), np.uint8)
    for word, score in seen.items():
        image[0, WORDS.index(word.replace("_", " ")), 0] = round(score * 250)
    return image


def score_of(image, word):
    return image[0, WORDS.index(word), 0] / 250


def asked_word(prompt):
    found = re.search(r"contain (?:an? )?(.+)\?", prompt)
    assert found is not None
    return found[1]


def yes_no(image, prompt):
    return "Yes" if score_of(image, asked_word(prompt)) > 0 else "No"


def item(edited, sample, *, object="car", caption="A man and a dog.", id="a"):
    key = hashlib.sha256(sample.tobytes()).hexdigest() if isinstance(sample, np.ndarray) else "none"
    return EditPair(id, edited, sample=sample, object=object, caption=caption, sample_key=key)


@dataclass(frozen=True)
class Presence:
    names: Sequence[str]
    models: dict[str, Any]
    settings: Settings
    store: Any

    def score(self, items):
        batch = Batch(items, self.models, self.settings, records=self.store)
        return metrics.score([METRICS[name] for name in self.names], batch)


def presence(names=NAMES, rule=yes_no, *, vqa=None, detector=None, store=None, **settings):
    models = {"vqa": vqa or ScriptedJudge(rule), "ovd": detector or ScriptedDetector(score_of)}
    return Presence(names, models, Settings(**settings), store or MemoryStore())


SAMPLE = scene(car=0.8, dog=0.7, man=0.6)


def one(metric, *items):
    return {name: rows[0] for name, rows in metric.score(list(items)).items()}


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
def test_the_scores_of_made_up_edits_are_those_of_the_definition(protocol, edited, expected):
    found = one(presence(protocol=protocol), item(edited, SAMPLE))
    assert tuple(found) == NAMES
    assert [found[name].value for name in NAMES] == pytest.approx(list(expected))


def test_auc_removal_is_the_area_under_the_distribution_function_of_the_scores():
    scores = [0.0, 0.04, 0.12, 0.5, 0.5, 0.9, 1.0]
    items = [item(scene(car=s), SAMPLE, id=str(s)) for s in scores]
    rows = presence(["auc_removal"]).score(items)["auc_removal"]
    counted = np.array([s if s > 0.1 else 0.0 for s in np.round(np.array(scores) * 250) / 250])
    area = np.mean([(counted <= t).mean() for t in np.linspace(0, 1, 4001)])
    assert np.mean([row.value for row in rows]) == pytest.approx(area, abs=1e-3)


@pytest.mark.parametrize(("threshold", "removed", "kept"), [(0.2, 1, None), (0.19, 0, 1)])
def test_the_threshold_is_strict_and_an_argument(threshold, removed, kept):
    names, shown = ["removal_ovd", "retention_ovd"], scene(car=0.2, dog=0.2)
    found = one(presence(names, threshold=threshold), item(shown, shown, caption="A dog."))
    assert [found[name].value for name in names] == [removed, kept]


def test_removal_asks_once_about_the_object_in_the_sample_where_that_is_wanted():
    names = ("removal_vqa", "removal_ovd")
    edits = [(scene(), SAMPLE), (scene(car=0.9), SAMPLE), (scene(car=0.9), scene())]
    rows = [item(*pair, id=str(k)) for k, pair in enumerate(edits)]
    metric, plain = presence(names, asks_sample=True), presence(names)
    scores, without = metric.score(rows), plain.score(rows)
    for name in names:
        assert [s.value for s in scores[name]] == [s.value for s in without[name]] == [1, 0, 0]
        assert [score.detail["present_before"] for score in scores[name]] == [True, True, False]
        assert [list(score.detail["before"]) for score in scores[name]] == [["car"]] * 3
    assert metric.models["vqa"].asked == 3 + 2  # of every edit, and of two samples
    assert plain.models["vqa"].asked == 3


@pytest.mark.parametrize(
    "answer,paper,fixed",
    [("No", 1, 1), ("no", 0, 1), ("No.", 0, 1), ("Yes.", 0, 0), ("Maybe", 0, None), ("", 0, None)],
)
def test_removal_by_answer_under_both_protocols(answer, paper, fixed):
    for protocol, expected in (("paper", paper), ("fixed", fixed)):
        found = one(presence(["removal_vqa"], lambda i, p: answer, protocol=protocol), item(SAMPLE, SAMPLE))
        score = found["removal_vqa"]
        assert score.value == expected
        assert score.detail["answer"] == answer
        if expected is None:
            assert score.reason == f"the answer {answer!r} is neither yes nor no"


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
def test_the_protocols_differ_in_what_is_retained(edited, sample, caption, vqa, ovd):
    work = item(edited, sample, caption=caption)
    found = [one(presence(protocol=protocol), work) for protocol in ("paper", "fixed")]
    assert [row["retention_vqa"].value for row in found] == pytest.approx(list(vqa))
    assert [row["retention_ovd"].value for row in found] == pytest.approx(list(ovd))
    if caption == RED:
        assert set(found[0]["retention_ovd"].detail["in_sample"]) == {"dogs", "frisbee", "it"}
        assert found[1]["retention_ovd"].detail["in_sample"] == ["dog", "frisbee"]


@pytest.mark.parametrize("protocol", ["paper", "fixed"])
def test_evidence_for_both_protocols_asks_what_the_other_would(protocol):
    judges = [ScriptedJudge(yes_no), ScriptedJudge(yes_no)]
    for judge, evidence in zip(judges, ("own", "both"), strict=True):
        work = item(PACK, PACK, caption=RED)
        found = one(presence(["retention_vqa"], vqa=judge, protocol=protocol, evidence=evidence), work)
    named = found["retention_vqa"].detail["objects_of"]
    assert [set(named[name]) for name in ("fixed", "paper")] == [
        {"dog", "frisbee"},
        {"dogs", "frisbee", "it"},
    ]
    # paper: dogs, frisbee, it; fixed: dog, frisbee; each of the sample and of the edit
    assert [judge.asked for judge in judges] == [{"paper": 6, "fixed": 4}[protocol], 8]
    unclear = ScriptedJudge(lambda image, prompt: "Yes." if protocol == "paper" else "Perhaps")
    one(presence(["retention_vqa"], vqa=unclear, protocol=protocol, evidence="own"), work)
    assert unclear.asked == {"paper": 3, "fixed": 2}[protocol]  # not again about what only the other sees


def test_scores_are_json_and_hold_the_evidence():
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


@pytest.mark.parametrize("missing", ["removal_vqa", "retention_ovd"])
def test_a_metric_that_was_interrupted_is_asked_about_as_all_are_together(missing):
    class Judge(ScriptedJudge):
        def ask(self, images, questions):
            heard.append(questions)
            return super().ask(images, questions)

    class Detector(ScriptedDetector):
        def detect(self, images, labels, threshold=0.1):
            heard.append(labels)
            return super().detect(images, labels, threshold)

    def asked(wanted, among):
        heard.clear()
        models = {"vqa": Judge(yes_no), "ovd": Detector(score_of)}
        items = [item(scene(car=0.5, dog=0.7), SAMPLE), item(SAMPLE, SAMPLE, id="b")]
        scores = metrics.score([METRICS[name] for name in wanted], Batch(items, models, names=among))
        return list(heard), scores[missing]

    heard = []
    of_one_judge = tuple(name for name in NAMES if METRICS[name].models == METRICS[missing].models)
    whole, alone = asked(of_one_judge, ()), asked((missing,), ())
    assert asked((missing,), NAMES) == whole
    assert alone[0] != whole[0]
    assert alone[1] == whole[1]


@pytest.mark.parametrize(
    "settings,message",
    [
        ({"threshold": 1.0}, r"it must be in \[0, 1\)"),
        ({"protocol": "papers"}, "did you mean 'paper'"),
        ({"article": "the"}, "Allowed: none, a_an"),
        ({"evidence": "other"}, "Allowed: own, both"),
        ({"align": "squash"}, "stretch, crop"),
    ],
)
def test_bad_settings_are_one_clear_sentence(settings, message):
    with pytest.raises(MetricError, match=message):
        Settings(**settings)


def test_what_is_remembered_belongs_to_judge_question_and_picture():
    store = MemoryStore()
    edited = scene(dog=0.7)
    one(presence(["retention_vqa"], store=store), item(edited, SAMPLE))
    other_judge = presence(["retention_vqa"], vqa=ScriptedJudge(lambda i, p: "No", name="other"), store=store)
    assert one(other_judge, item(edited, SAMPLE))["retention_vqa"].reason == NOTHING_FOUND
    other_picture = item(edited, scene(dog=0.7))
    assert one(presence(["retention_vqa"], store=store), other_picture)["retention_vqa"].value == 1
    counting = ScriptedJudge(yes_no)
    presence(["retention_vqa"], vqa=counting, store=store, article="a_an").score([item(edited, SAMPLE)])
    assert counting.asked == 2 + 2, "another wording is another question"
    detector = ScriptedDetector(score_of)
    presence(["retention_ovd"], detector=detector, store=store).score([item(SAMPLE, SAMPLE)])
    asked = detector.asked
    strict = presence(["retention_ovd"], detector=detector, store=store, threshold=0.65)
    assert one(strict, item(SAMPLE, SAMPLE))["retention_ovd"].detail["in_sample"] == ["dog"]
    assert detector.asked == asked + 1, "another threshold needs no new look at the sample"


def test_an_unclear_answer_about_an_object_to_retain_unscores_fixed_and_counts_against_paper():
    edited = scene(dog=0.7, man=0.6)

    def found(unclear, protocol):
        def unsure(image, prompt):
            return "Perhaps" if image is unclear and asked_word(prompt) == "man" else yes_no(image, prompt)

        return one(presence(["retention_vqa"], unsure, protocol=protocol), item(edited, SAMPLE))[
            "retention_vqa"
        ]

    fixed, paper = found(edited, "fixed"), found(edited, "paper")
    assert fixed.value is None
    assert fixed.reason == "the answer 'Perhaps' about 'man' is neither yes nor no"
    assert paper.value == 0.5
    of_sample = found(SAMPLE, "fixed")  # that object is left out
    assert (of_sample.value, of_sample.detail["in_sample"]) == (1, ["dog"])
    assert of_sample.detail["before"]["man"] == "Perhaps"


def test_numbers_that_are_not_finite_are_no_verdict_of_absence():
    bad, good = scene(dog=0.7), scene(dog=0.6)

    def broken(image, label):
        return math.nan if image is bad else score_of(image, label)

    names = ["removal_ovd", "auc_removal", "retention_ovd"]
    items = [item(bad, SAMPLE, id="a"), item(good, SAMPLE, id="b")]
    rows = presence(names, detector=ScriptedDetector(broken)).score(items)
    for first, second in rows.values():
        assert first.value is None
        assert "ValueError: the model gave a number that is not finite" in first.reason
        assert second.value is not None
    with pytest.raises(ValueError, match="not finite"):
        Answer("Yes", 1, p_yes=math.nan, p_no=0.5)
    with pytest.raises(ValueError, match="not finite"):
        Reply(logprobs=(math.nan, -1.0))


def failing(picture, error):
    def rule(image, prompt):
        if image is picture:
            raise error
        return yes_no(image, prompt)

    return rule


def test_a_judge_that_fails_on_one_picture_takes_no_other_with_it_and_is_not_remembered_as_empty():
    bad, store = scene(man=0.6), MemoryStore()
    items = [item(scene(), SAMPLE, id="a"), item(bad, SAMPLE, id="b"), item(scene(car=1), SAMPLE, id="c")]
    rows = presence(["removal_vqa", "retention_vqa"], failing(bad, RuntimeError("out of memory"))).score(
        items
    )
    assert [s.value for s in rows["removal_vqa"]] == [1, None, 0]
    assert rows["removal_vqa"][1].reason.startswith("RuntimeError: out of memory (test_presence.py:")
    assert [s.value for s in rows["retention_vqa"]] == [0, None, 0]
    assert "out of memory" in rows["retention_vqa"][1].reason
    broken, healed = (
        one(presence(["retention_vqa"], rule, store=store), item(scene(dog=0.7), SAMPLE))["retention_vqa"]
        for rule in (failing(SAMPLE, OSError("gone")), yes_no)
    )
    assert (broken.value, healed.value) == (None, 0.5)
    assert "OSError: gone" in broken.reason
    with pytest.raises(TypeError):  # a mistake in the code
        presence(["removal_vqa"], failing(SAMPLE, TypeError("wrong"))).score([item(SAMPLE, SAMPLE)])
