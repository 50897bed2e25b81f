"""Removal and Retention: what is asked only once, and what is left unscored and why."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from nein.metrics.base import MemoryRecords
from nein.metrics.choices import Reply
from nein.metrics.judges.base import Answer
from nein.metrics.presence import NOTHING_FOUND
from tests.metrics.scripted import NAMES, SAMPLE, asked_word, item, one, presence, scene, score_of, yes_no
from tests.rehearsal import ScriptedDetector, ScriptedJudge

# ------------------------------------------------------------------------------------- asking only once


def test_the_unedited_sample_is_asked_about_once_for_all_editors() -> None:
    judge, detector, store = ScriptedJudge(yes_no), ScriptedDetector(score_of), MemoryRecords()
    values = []
    for n, ids in enumerate(("a", "b", "cd")):
        metric = presence(NAMES, vqa=judge, detector=detector, store=store)
        rows = metric.score([item(scene(dog=0.7), SAMPLE, id=id) for id in ids])
        values += [[row[k].value for row in rows.values()] for k in range(len(ids))]
        # man, dog in the sample; car, man, dog in every edit
        assert judge.asked == detector.asked == 2 + 3 * len(values), n
    assert values == [values[0]] * 4


def test_what_is_remembered_belongs_to_judge_question_and_picture() -> None:
    store = MemoryRecords()
    edited = scene(dog=0.7)
    one(presence(["retention_vqa"], store=store), item(edited, SAMPLE))
    other_judge = presence(["retention_vqa"], vqa=ScriptedJudge(lambda i, p: "No", name="other"), store=store)
    assert one(other_judge, item(edited, SAMPLE))["retention_vqa"].reason == NOTHING_FOUND
    other_picture = item(edited, scene(dog=0.7))
    assert one(presence(["retention_vqa"], store=store), other_picture)["retention_vqa"].value == 1
    counting = ScriptedJudge(yes_no)
    presence(["retention_vqa"], vqa=counting, store=store, article="a_an").score([item(edited, SAMPLE)])
    assert counting.asked == 2 + 2, "another wording is another question"


def test_another_threshold_needs_no_new_look_at_the_sample() -> None:
    store = MemoryRecords()
    detector = ScriptedDetector(score_of)
    presence(["retention_ovd"], detector=detector, store=store).score([item(SAMPLE, SAMPLE)])
    asked = detector.asked
    strict = presence(["retention_ovd"], detector=detector, store=store, threshold=0.65)
    found = one(strict, item(SAMPLE, SAMPLE))["retention_ovd"]
    assert found.detail["in_sample"] == ["dog"]
    assert detector.asked == asked + 1


# ---------------------------------------------------------------------------------------------- unscored


def test_a_caption_of_which_nothing_is_in_the_sample_is_unscored_with_that_reason() -> None:
    found = one(presence(), item(SAMPLE, SAMPLE, caption="A frisbee."))
    for name in ("retention_vqa", "retention_ovd"):
        assert (found[name].value, found[name].reason) == (None, NOTHING_FOUND)
    assert found["removal_vqa"].value == 0


def test_an_unclear_answer_about_an_object_to_retain_unscores_fixed_and_counts_against_paper() -> None:
    edited = scene(dog=0.7, man=0.6)

    def found(unclear: np.ndarray, protocol: str) -> Any:
        def unsure(image: np.ndarray, prompt: str) -> str:
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


def test_numbers_that_are_not_finite_are_no_verdict_of_absence() -> None:
    bad, good = scene(dog=0.7), scene(dog=0.6)

    def broken(image: np.ndarray, label: str) -> float:
        return math.nan if image is bad else score_of(image, label)

    names = ["removal_ovd", "auc_removal", "retention_ovd"]
    items = [item(bad, SAMPLE, id="a"), item(good, SAMPLE, id="b")]
    rows = presence(names, detector=ScriptedDetector(broken)).score(items)
    for first, second in rows.values():
        assert first.value is None
        assert first.reason.endswith("ValueError: the model gave a number that is not finite")
        assert second.value is not None
    with pytest.raises(ValueError, match="not finite"):
        Answer("Yes", 1, p_yes=math.nan, p_no=0.5)
    with pytest.raises(ValueError, match="not finite"):
        Reply(logprobs=(math.nan, -1.0))


def test_a_judge_that_fails_on_one_picture_does_not_take_the_others_with_it() -> None:
    bad = scene(man=0.6)

    def choking(image: np.ndarray, prompt: str) -> str:
        if image is bad:
            raise RuntimeError("CUDA out of memory")
        return yes_no(image, prompt)

    items = [item(scene(), SAMPLE, id="a"), item(bad, SAMPLE, id="b"), item(scene(car=1), SAMPLE, id="c")]
    rows = presence(["removal_vqa", "retention_vqa"], choking).score(items)
    assert [s.value for s in rows["removal_vqa"]] == [1, None, 0]
    assert rows["removal_vqa"][1].reason == "RuntimeError: CUDA out of memory"
    assert [s.value for s in rows["retention_vqa"]] == [0, None, 0]
    assert "CUDA out of memory" in rows["retention_vqa"][1].reason


def test_a_judge_that_fails_on_the_sample_is_not_remembered_as_an_empty_sample() -> None:
    def choking(image: np.ndarray, prompt: str) -> str:
        if image is SAMPLE:
            raise OSError("gone")
        return yes_no(image, prompt)

    store, work = MemoryRecords(), item(scene(dog=0.7), SAMPLE)
    broken, healed = (
        one(presence(["retention_vqa"], rule, store=store), work)["retention_vqa"]
        for rule in (choking, yes_no)
    )
    assert broken.value is None
    assert "OSError: gone" in broken.reason
    assert healed.value == 0.5


def test_a_mistake_in_a_judge_is_not_swallowed() -> None:
    def wrong(image: np.ndarray, prompt: str) -> str:
        raise TypeError("a mistake in the code")

    with pytest.raises(TypeError):
        presence(["removal_vqa"], wrong).score([item(SAMPLE, SAMPLE)])
