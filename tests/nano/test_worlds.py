"""The worlds: what is held out is in nothing that is taught, and a sketch is as true as a drawing."""

import re
from pathlib import Path

import pytest
import yaml

from nein.datasets.negbench import drawn, sentences
from nein.datasets.nein import load
from nein.nano import data
from nein.nano.scenes import AXES, CATEGORIES, HELD_OUT, SKETCH, WORLDS
from nein.nano.sentences import ASKED, iter_questions

TAUGHT = WORLDS["nano:taught"]
OLD = [name for name in AXES if WORLDS[name].named == TAUGHT.named]
NEW = [name for name in AXES if WORLDS[name].named == set(HELD_OUT)]


def named(texts, words=CATEGORIES):
    joined = " ".join(texts)
    return {word for word in words if re.search(rf"\b{word}\b", joined)}


def test_the_axes_hold_out_one_thing_each_and_the_last_three():
    assert OLD == ["nano:taught", "nano:wording", "nano:negator", "nano:style"]
    assert NEW == ["nano:objects", "nano:unlike"]
    assert [name for name in AXES if WORLDS[name].style == SKETCH] == ["nano:style", "nano:unlike"]
    assert TAUGHT.named | set(HELD_OUT) == set(CATEGORIES)


@pytest.mark.parametrize("wordings", [("code",), ("code", *sentences.VARIED)])
def test_what_clip_is_taught_names_no_held_out_object_and_no_held_out_wording(wordings):
    captions = drawn.draw_negcap(120, 0, TAUGHT, wordings, originals=1)
    questions = drawn.draw_negmcq(120, 0, TAUGHT, wordings, hard=True)
    texts = [text for item in captions for text in item.captions]
    texts += [option.text for question in questions for option in question.options]
    assert named(texts, HELD_OUT) == set()
    assert not re.search(r"includ|\black", " ".join(texts))
    assert len(named(texts)) > 15
    shown = {thing for item in captions for thing in item.positives or ()}
    assert not shown & set(HELD_OUT)


def test_clip_is_tested_in_other_sentences_about_the_same_scenes():
    tasks = {name: drawn.make_tasks("val", 40, 0, WORLDS[name]) for name in OLD}
    originals = [item.captions for item in tasks["nano:taught"][0].original]
    for name, (retrieval, choice) in tasks.items():
        assert [item.captions for item in retrieval.original] == originals
        texts = [text for item in retrieval.negated for text in item.captions]
        word = {"nano:wording": "does not include", "nano:negator": "lacks"}.get(name, "There is no")
        assert all(word in text for text in texts)
        assert len({task.correct for task in choice.questions}) == 1
    taught, sketch = (
        drawn.draw_image(tasks[name][0].references[0]) for name in ("nano:taught", "nano:style")
    )
    assert (taught != sketch).any()


@pytest.mark.parametrize("name", NEW)
def test_clip_is_asked_about_held_out_objects_alone(name):
    world = WORLDS[name]
    retrieval, choice = drawn.make_tasks("val", 80, 0, world)
    questions = choice.questions
    assert len(questions) > 20
    assert named(option.text for q in questions for option in q.options) <= set(HELD_OUT)
    for item in retrieval.negated:
        assert set(item.negatives or ()) <= set(HELD_OUT)


def test_a_caption_question_has_one_true_claim_among_its_options():
    asked = [
        (one, drawn.make_caption_question(one, 0, "has")) for one in drawn.draw_concepts("train", 60, TAUGHT)
    ]
    questions = [(image, question) for image, question in asked if question is not None]
    assert len(questions) > 40
    for image, question in questions:
        truth = []
        for option in question.options:
            sentence = next(s for s in re.split(r"(?<=\.) ", option.text) if s.startswith("The scene has"))
            denied = " no " in sentence
            noun = re.sub(r"^The scene has (no )?|\.$", "", sentence)
            truth.append((noun in image.positives) != denied)
        assert sum(truth) == 1
        assert truth[question.correct]


@pytest.mark.parametrize("name", AXES)
def test_questions_of_a_world_name_its_objects_in_its_wording_and_are_right(name):
    world = WORLDS[name]
    made = list(iter_questions("val", 60, world))
    for _, scene, question in made:
        assert named([question.question, question.right, question.wrong]) <= world.named
        if question.kind == "presence":
            assert question.right in scene.categories
            assert question.wrong not in scene.categories
    # Every question is one of its wordings, whatever stands in the slots.
    wordings = [re.escape(denied) for pairs in ASKED[world.wording].values() for _, denied in pairs]
    pattern = re.sub(r"\\\{\w+\\\}", "[a-z ]+", "|".join(wordings))
    assert all(re.fullmatch(pattern, question.negated) for _, _, question in made)


@pytest.mark.parametrize("name", AXES)
def test_editors_are_told_about_the_objects_of_a_world_in_its_wording(name):
    world = WORLDS[name]
    samples = list(data.iter_samples("val", 25, world))
    assert {s.object for s in samples} <= world.named
    sentences = {data.fill_pattern(text, s.object) for s in samples for text in data.NEGATIVES[world.wording]}
    assert {s.negative for s in samples} <= sentences
    assert all(s.object not in s.source.categories for s in samples)
    taught = {data.fill_pattern(text, s.object) for s in samples for text in data.NEGATIVES["taught"]}
    assert ({s.negative for s in samples} <= taught) == (world.wording == "taught")


@pytest.mark.parametrize("recipe", ["nano", "nano-varied"])
def test_the_editors_recipe_holds_out_what_the_worlds_do(recipe):
    file = Path(__file__).resolve().parents[2] / "configs" / "train" / f"{recipe}.yaml"
    options = yaml.safe_load(file.read_text())
    assert tuple(options["hold_out_objects"]) == HELD_OUT
    assert tuple(map(int, options["hold_out_templates"])) == data.HELD_OUT_TEMPLATES


def test_neins_layout_holds_a_world(tmp_path, monkeypatch):
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path))
    monkeypatch.setitem(data.DEFAULT_SOURCES, "val", 4)
    style, plain = load("nano:style"), load("nano:taught")
    assert [s.negative for s in style.samples] == [s.negative for s in plain.samples]
    assert style.samples[0].sample_path.read_bytes() != plain.samples[0].sample_path.read_bytes()
