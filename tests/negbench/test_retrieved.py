import json
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from nein.benchmarks import finished
from nein.benchmarks.config import ReportConfig
from nein.benchmarks.negbench import judged, scoring
from nein.benchmarks.negbench.encoding import Encoded
from nein.benchmarks.negbench.folder import ResultsDir
from nein.benchmarks.nein.calibrations import Calibration
from nein.benchmarks.nein.config import EvalConfig as NeinConfig
from nein.datasets.negbench import drawn, loading, other_tests
from nein.datasets.negbench.records import NEGATED, RetrievalItem, RetrievalTask
from nein.engine import atomic
from nein.engine.images import write_png
from nein.judges import retrieved as command
from nein.judges.config import RetrievedConfig
from nein.loading.errors import UserError
from nein.metrics import MetricError
from nein.nano.scenes import render
from nein.reporting import figures as frames
from tests.negbench.conftest import NOTHING, asked_by, evaluate
from tests.rehearsal import ScriptedJudge


def truth(image, thing):
    _, split, name = image.split("/")
    return thing not in drawn.draw_scene(split, int(name[:-4])).categories


def test_a_negated_caption_is_held_against_its_original_one_and_chance():
    numbers = range(9)
    plain = [RetrievalItem(f"{k}", f"{k}.png", ("A cat.", "Cats."), source=f"s{k}") for k in numbers]
    said, things = ("A cat, no dog.", "A cat and nothing else."), ("dog", "cup")
    denied = [replace(item, captions=said, kind=NEGATED, negatives=things) for item in plain]
    task = RetrievalTask("x/retrieval", tuple(plain), tuple(denied), NOTHING)
    rows = {name: k for k, name in enumerate((*said, "A cat.", "Cats."))}
    texts = Encoded(np.eye(4, 9, dtype=np.float32), rows, {})
    shown = {name: k for k, name in enumerate(task.references)}
    pictures = Encoded(np.eye(9, dtype=np.float32), shown, {})
    asked = judged.make_queries(task, pictures, texts, most=4)
    assert [query.kind for query in asked] == ["negated"] * 4 + ["original"] * 4 + ["at random"] * 4
    assert {query.thing for query in asked} == {"dog"}  # what no caption names is denied by none
    assert [query.source for query in asked[:4]] == ["s0", "s2", "s4", "s6"]
    assert [query.images[0] for query in (asked[0], asked[4])] == ["0.png", "2.png"]
    assert [query.id for query in asked[:4]] == [query.id for query in asked[4:8]]


@pytest.fixture
def judged_world(tmp_path, monkeypatch):
    """A finished retrieval in the nano world, and a judge that errs in every tenth answer."""
    known = {
        render(drawn.draw_scene("val", k)).tobytes(): drawn.draw_scene("val", k).categories for k in range(40)
    }

    def rule(image, prompt):
        name = prompt.partition("contain ")[2].partition("?")[0].strip()
        there = name in known[image.tobytes()]
        wrong = random.Random(f"{name}/{image.tobytes().hex()}").random() < 0.1
        return "Yes" if there != wrong else "No"

    judge = ScriptedJudge(rule, "every tenth wrong")
    rows = [
        {"set": "x", "cluster": str(k), "role": "object", "present": k % 2 == 0, "score": None,
         "verdict_fixed": (k % 2 == 0) != (k % 20 in (0, 1))}
        for k in range(800)
    ]  # fmt: skip
    manifest = {"fingerprint": judge.fingerprint, "article": "none"}
    found, asked = Calibration("vqa", manifest, rows), NeinConfig(article="none")
    monkeypatch.setattr(command, "read_config", lambda path: (SimpleNamespace(out=tmp_path), asked))
    monkeypatch.setattr("nein.benchmarks.nein.calibrations.load", lambda *_, **how: [found])
    monkeypatch.setattr("nein.benchmarks.nein.stages.load_models", lambda *_: {"vqa": judge})
    evaluate(tmp_path, "nano", None, "--scenes", "40", "--model", "random", "--tasks", "retrieval")
    return RetrievedConfig(run=tmp_path / "out", queries=60, device="cpu")


def test_the_corrected_share_is_the_known_truth_of_the_scenes(judged_world):
    text = command.run(judged_world)
    assert "Retrieval judged: is what is found without the thing?" in text
    assert "without the thing@5" in text
    assert "the judge vqa was calibrated without controls" in (judged_world.run / "table.md").read_text()
    (folder,) = (path.parent for path in judged_world.run.glob("*/*/judged.csv"))
    figures = frames.read(folder / "judged.csv")
    (file,) = (folder / "judged").glob("*.jsonl")
    rows = atomic.read_lines(file)
    for kind in judged.KINDS:
        members = [row for row in rows if row["kind"] == kind]
        assert len(members) == 60 * 5
        share = np.mean([truth(row["image"], row["thing"]) for row in members])
        right = frames.pick(figures, metric="without@5", kind=kind, statistic="corrected")
        seen = frames.pick(figures, metric="without@5", kind=kind, statistic="judged")
        assert right["low"] <= share <= right["high"]
        assert seen["value"] < share  # most are without it, so a judge's errors are mostly false sightings
    again = frames.read(folder / "judged.csv")
    command.run(judged_world)  # what was answered is not asked again
    assert frames.read(folder / "judged.csv").equals(again)


def test_a_judge_without_a_calibration_is_a_sentence(judged_world, monkeypatch):
    monkeypatch.setattr("nein.benchmarks.nein.calibrations.load", lambda folders, explicit: [])
    with pytest.raises(UserError, match="no calibration of its vqa judge; run nein calibrate"):
        command.run(judged_world)
    with pytest.raises(UserError, match="has no finished retrieval"):
        command.run(RetrievedConfig(run=judged_world.run / "nothing", device="cpu"))


def triples(tmp_path, *rows):
    for k in range(6):
        write_png(tmp_path / f"val2014/COCO_val2014_{k:012d}.png", np.full((8, 8, 3), 40 * k, np.uint8))
    (tmp_path / "simpleneg.json").write_text(json.dumps(rows), encoding="utf-8")
    return tmp_path / "simpleneg.json"


DESK = ["a desk with no lamp", "is there a lamp on the desk?", "is there a desk in the image?"]


def test_another_form_of_simpleneg_or_no_picture_is_one_sentence(tmp_path):
    for rows, said in (
        ([DESK[:2]], "row 0 is not .caption, question"),
        ([], "has no captions"),
        ([["a", "", "b"]], "row 0"),
    ):
        with pytest.raises(UserError, match=said):
            other_tests.simpleneg(triples(tmp_path, *rows))
    file = triples(tmp_path, DESK)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="pass their folder as --image-root"):
        loading.load(str(file), names=["simpleneg"], image_roots=[str(tmp_path / "empty")])


def lamp(image, prompt):
    """Of `triples`: a lamp in the two darkest pictures, a desk in the four darkest."""
    shade = int(image[0, 0, 0]) // 40
    return "yes" if shade < (2 if "lamp" in prompt else 4) else "no"


@pytest.fixture
def judge(monkeypatch):
    scripted = ScriptedJudge(lamp)
    monkeypatch.setattr("nein.models.judges.load", lambda kind, reference, **how: scripted)
    return scripted


def simpleneg(tmp_path, *words):
    file = tmp_path / "files/simpleneg.json"
    evaluate(tmp_path, file, file.parent, "--model", "random", "--datasets", "simpleneg", *words)
    (out,) = (tmp_path / "out").glob("*/simpleneg")
    asked = asked_by(ResultsDir(out))
    return [row for task in asked.tasks for row in scoring.read_rows(asked, task)]


def test_simpleneg_is_one_command_and_needs_no_calibration(tmp_path, judge):
    prompts = set()
    judge.rule = lambda image, prompt: lamp(image, (prompts.add(prompt), prompt)[1])
    triples(tmp_path / "files", DESK)
    rows = simpleneg(tmp_path)
    for row in rows:
        assert row["absent"] == float(int(row["image"][-8:-4]) in (2, 3))
    (made,) = (tmp_path / "out").glob("*/simpleneg/figures.csv")
    figures = frames.read(made)
    found = frames.pick(figures, metric="satisfied@5", kind="negated")
    assert found["n"] == 5
    assert not len(frames.select(figures, metric=("without@5", "avoided@5")))
    asked_with = "is there a lamp on the desk?\nAnswer the question with a yes or no."
    assert any(prompt.endswith(asked_with) for prompt in prompts)
    asked = judge.asked
    assert simpleneg(tmp_path) == rows
    assert judge.asked == asked  # what was answered is not asked again
    said = finished.report(ReportConfig(runs=[tmp_path / "out"], out=tmp_path / "page.html"))
    assert "Retrieval judged by the questions of a test" in said
    assert "Text to image retrieval" not in said  # there is no recall


def test_what_the_judge_fails_on_is_unscored_and_asked_again(tmp_path, judge):
    def fails(image, prompt):
        raise RuntimeError("out of order")

    triples(tmp_path / "files", DESK)
    judge.rule = fails
    rows = simpleneg(tmp_path)
    assert {row["absent"] for row in rows} == {None}
    assert all("out of order" in row["reason"] for row in rows)
    judge.rule = lambda image, prompt: "perhaps"
    assert {row["reason"] for row in simpleneg(tmp_path)} == {"neither yes nor no"}
    (made,) = (tmp_path / "out").glob("*/simpleneg/figures.csv")
    lost = frames.pick(frames.read(made), metric="satisfied@5", kind="negated")
    assert (lost["value"], lost["unscored"]) == (None, 5)
    judge.rule = fails  # an answer that cannot be read stays
    assert {row["reason"] for row in simpleneg(tmp_path)} == {"neither yes nor no"}
    with pytest.raises(UserError, match=r"judge nano:llava, not tests\.rehearsal:no"):
        simpleneg(tmp_path, "--judge", "tests.rehearsal:no")
    with pytest.raises(MetricError, match="nowhere"):
        simpleneg(tmp_path, "--judge", "./nowhere")
