from dataclasses import replace

import numpy as np
import pytest

from nein.benchmarks.negbench import scores, scoring
from nein.datasets.negbench.records import ChoiceTask, RetrievalItem, RetrievalTask
from nein.reporting import figures as frames
from tests.negbench.conftest import NOTHING, brute_force, encode, encoded, items, measured, questions


def of(figures_, **about):
    (found,) = [f for f in figures_ if all(f.get(key) == value for key, value in about.items())]
    return found


@pytest.fixture
def retrieval():
    return RetrievalTask("x/retrieval", *items(30), NOTHING)


@pytest.fixture
def choice():
    return ChoiceTask("x/mcq", questions(60, 30), NOTHING)


def test_recall_equals_the_full_matrix_both_ways(retrieval):
    pictures, texts = encode(retrieval)
    found = measured(scoring.score_retrieval(retrieval, pictures, texts))
    for kind, own in (("original", retrieval.original), ("negated", retrieval.negated)):
        captions = [(text, i) for i, item in enumerate(own) for text in item.captions]
        matrix = brute_force(
            pictures.features[[pictures.rows[item.image] for item in own]],
            texts.features[[texts.rows[text] for text, _ in captions]],
        )
        owner = np.array([i for _, i in captions])
        for k in (1, 5):
            t2i = np.mean([i in np.argsort(-column)[:k] for column, i in zip(matrix.T, owner, strict=True)])
            i2t = np.mean([i in owner[np.argsort(-row)[:k]] for i, row in enumerate(matrix)])
            about = {"metric": f"recall@{k}", "kind": kind}
            assert of(found, **about, direction="text_to_image")["value"] == pytest.approx(t2i)
            assert of(found, **about, direction="image_to_text")["value"] == pytest.approx(i2t)
            assert of(found, **about, direction="text_to_image")["n"] == 60
            assert of(found, **about, direction="image_to_text")["n"] == 30


def test_the_gap_is_the_paired_difference(retrieval):
    pictures, texts = encode(retrieval)
    rows = list(scoring.score_retrieval(retrieval, pictures, texts))
    found = measured(rows)
    for k in (1, 5):
        gap = of(found, metric=f"gap@{k}", direction="text_to_image")
        first, second = (
            of(found, metric=f"recall@{k}", direction="text_to_image", kind=kind)
            for kind in ("original", "negated")
        )
        assert gap["value"] == pytest.approx(first["value"] - second["value"])
        assert gap["low"] < gap["value"] < gap["high"]
        assert gap["clusters"] == 30
    same = replace(retrieval, negated=tuple(replace(i, kind="negated") for i in retrieval.original))
    again = measured(scoring.score_retrieval(same, pictures, texts))
    assert of(again, metric="gap@5", direction="text_to_image")["value"] == 0
    alone = measured(scoring.score_retrieval(replace(retrieval, negated=()), pictures, texts))
    assert {f["metric"].partition("@")[0] for f in alone} == {"recall", "text only", "picture only"}


def test_accuracy_equals_the_full_matrix(choice):
    pictures, texts = encode(choice)
    rows = list(scoring.score_choices(choice, pictures, texts))
    for question, row in zip(choice.questions, rows, strict=True):
        matrix = brute_force(
            pictures.features[[pictures.rows[question.image]]],
            texts.features[[texts.rows[option.text] for option in question.options]],
        )[0]
        assert row["scores"] == pytest.approx(matrix, abs=1e-6)
        assert row["credit"] == float(np.argmax(matrix) == question.correct)
    found = measured(rows)
    for type_ in ("affirmation", "negation", "hybrid", "all"):
        own = [row["credit"] for row in rows if type_ in (row["type"], "all")]
        assert of(found, metric="accuracy", type=type_)["value"] == pytest.approx(np.mean(own))
    assert of(found, metric="chance")["value"] == 0.25


def test_choices_and_wrong_answers_are_counted_by_template(choice):
    rows = list(scoring.score_choices(choice, *encode(choice)))
    found = measured(rows)
    taken = [row["templates"][int(np.argmax(row["shares"]))] for row in rows]
    wrong = [(row["type"], t) for row, t in zip(rows, taken, strict=True) if row["credit"] == 0]
    for template in ("affirmation", "negation", "hybrid"):
        share = taken.count(template) / len(taken)
        assert of(found, metric="selected", template=template)["value"] == pytest.approx(share)
        for type_ in ("affirmation", "negation", "hybrid", "all"):
            own = [t for y, t in wrong if type_ in (y, "all")]
            entry = of(found, metric="wrong", type=type_, template=template)
            assert entry["value"] == pytest.approx(own.count(template) / len(own))
            assert entry["n"] == len(own)
    assert sum(of(found, metric="selected", template=t)["value"] for t in set(taken)) == pytest.approx(1)


def test_scaling_features_changes_no_row_and_the_unnormalised_switch_does(choice):
    pictures, texts = encode(choice)
    scale = np.random.default_rng(4).choice([0.25, 8.0, 64.0], (len(texts.features), 1))
    scaled = replace(texts, features=(texts.features * scale).astype(np.float32))
    plain = list(scoring.score_choices(choice, pictures, texts))
    louder = replace(pictures, features=pictures.features * 32)
    assert list(scoring.score_choices(choice, louder, scaled)) == plain
    own = list(scoring.score_choices(choice, pictures, texts, scale=10.0, bias=-3.0))  # is what is kept
    assert own[0]["scores"] == pytest.approx([10 * x - 3 for x in plain[0]["scores"]])
    assert [row["credit"] for row in own] == [row["credit"] for row in plain]
    raw = list(scoring.score_choices(choice, pictures, scaled, features="unnormalised"))
    assert [row["credit"] for row in raw] != [row["credit"] for row in plain]
    again = list(scoring.score_choices(choice, pictures, texts, features="unnormalised"))
    words = texts.features[[texts.rows[option.text] for option in choice.questions[0].options]]
    own = words @ pictures.features[pictures.rows[choice.questions[0].image]]
    assert again[0]["scores"] == pytest.approx(own.tolist(), rel=1e-4)
    assert [row["credit"] for row in raw] != [row["credit"] for row in again]


def test_what_cannot_be_read_is_unscored_and_counted(retrieval, choice):
    gone = {"003.png": "the picture is unusable: it is gone"}
    text = retrieval.negated[5].captions[0]
    pictures, texts = encode(retrieval, pictures=gone, texts={text: "no finite feature"})
    rows = list(scoring.score_retrieval(retrieval, pictures, texts))
    lost = {row["id"]: row["reason"] for row in rows if row["recall@1"] is None}
    assert lost == {
        "003.png#0": gone["003.png"], "003.png#1": gone["003.png"], "003.png": gone["003.png"],
        "005.png#0": "no finite feature",
    }  # fmt: skip
    assert {row["id"] for row in scores.tabulate_retrieval(rows) if row["failed"]} == lost.keys()
    found = measured(rows)
    entry = of(found, metric="recall@1", direction="text_to_image", kind="negated")
    assert (entry["n"], entry["unscored"]) == (57, 3)
    assert frames.read_reasons(entry) == {gone["003.png"]: 2, "no finite feature": 1}
    gap = of(found, metric="gap@1", direction="text_to_image")
    assert (gap["n"], gap["unscored"]) == (57, 3)
    rows = list(scoring.score_choices(choice, *encode(choice, pictures=gone)))
    assert [row["id"] for row in rows if row["credit"] is None] == ["q3", "q33"]
    entry = of(measured(rows), metric="accuracy", type="all")
    assert (entry["n"], entry["unscored"]) == (58, 2)


def _retrieval_of(original, negated, picture=lambda name: name):
    """A task from item -> captions, with random features of every picture and caption."""

    def made(captions, kind):
        return tuple(RetrievalItem(name, picture(name), own, kind) for name, own in captions.items())

    task = RetrievalTask("x/retrieval", made(original, "original"), made(negated, "negated"), NOTHING)
    return task, encoded(task.references, 5), encoded(task.sentences, 6)


def test_a_picture_in_several_rows_is_one_picture_and_as_many_as_released():
    # One row per caption: the copies of a picture must not push each other down.
    captions = {f"{i}#{k}": (f"caption {k} of {i}",) for i in range(12) for k in range(3)}
    denied = {name: (f"no. {own[0]}",) for name, own in captions.items()}
    task, pictures, texts = _retrieval_of(captions, denied, lambda name: name.partition("#")[0])
    rows = list(scoring.score_retrieval(task, pictures, texts))
    matrix = brute_force(
        texts.features[[texts.rows[own[0]] for own in captions.values()]],
        pictures.features[[pictures.rows[str(i)] for i in range(12)]],
    )
    owner = np.repeat(np.arange(12), 3)
    own = [r for r in rows if r["kind"] == "original"]
    better = [int((row > row[i]).sum()) for row, i in zip(matrix, owner, strict=True)]
    # One query per picture, which any of its three captions answers.
    best = [int((matrix[:, i] > matrix[owner == i, i].max()).sum()) for i in range(12)]
    for direction, above in (("text_to_image", better), ("image_to_text", best)):
        found = [r for r in own if r["direction"] == direction]
        for k in (1, 5):
            assert [r[f"recall@{k}"] for r in found] == [float(count < k) for count in above]
    filed = list(scoring.score_retrieval(task, pictures, texts, protocol="paper"))
    text = [r for r in filed if r["kind"] == "original" and r["direction"] == "text_to_image"]
    assert sum(r["recall@1"] for r in text) < sum(r["recall@1"] for r in own if "#0" in r["id"])
    assert len([r for r in filed if r["direction"] == "image_to_text"]) == 2 * 36


def test_both_kinds_search_the_same_gallery_and_only_their_own_file_as_released():
    captions = {f"{i}": (f"caption of {i}",) for i in range(40)}
    denied = {name: (f"no. {own[0]}",) for name, own in list(captions.items())[:10]}
    task, pictures, texts = _retrieval_of(captions, denied)
    said = texts.features[[texts.rows[own[0]] for own in denied.values()]]
    for protocol, size in (("fixed", 40), ("paper", 10)):
        rows = scoring.score_retrieval(task, pictures, texts, protocol=protocol)
        own = [r for r in rows if r["kind"] == "negated" and r["direction"] == "text_to_image"]
        matrix = brute_force(said, pictures.features[[pictures.rows[str(i)] for i in range(size)]])
        better = [int((row > row[i]).sum()) for i, row in enumerate(matrix)]
        for k in (1, 5):
            assert [r[f"recall@{k}"] for r in own] == [float(count < k) for count in better]


def test_lost_captions_neither_shift_the_pairs_nor_vanish():
    captions = {f"{i}": tuple(f"caption {k} of {i}" for k in range(3)) for i in range(20)}
    denied = {name: tuple(f"no. {text}" for text in own) for name, own in captions.items()}
    denied["4"] = denied["4"][1:]  # the first paraphrase was lost
    denied["7"] = ()
    denied["9"] = ("", *denied["9"][1:])
    task, pictures, texts = _retrieval_of(captions, denied)
    rows = list(scoring.score_retrieval(task, pictures, texts))
    reasons = {(r["id"], r["direction"]): r["reason"] for r in rows if r["reason"]}
    assert reasons == {
        ("7", "image_to_text"): "it has no caption", ("9#0", "text_to_image"): "the caption is empty",
    }  # fmt: skip
    assert not any(row["failed"] for row in scores.tabulate_retrieval(rows))
    found = measured(rows)
    gap = of(found, metric="gap@5", direction="text_to_image")
    assert (gap["n"], gap["unscored"]) == (60 - 3 - 1, 4)  # all of 7, and the empty one of 9 with its partner
    kept = [r for r in rows if r["direction"] == "text_to_image" and r["item"] != "7" and r["id"] != "9#0"]
    first, second = ([r["recall@5"] for r in kept if r["kind"] == kind] for kind in ("original", "negated"))
    assert (len(first), len(second)) == (56, 55)
    assert gap["value"] == pytest.approx(np.mean(first) - np.mean(second))
