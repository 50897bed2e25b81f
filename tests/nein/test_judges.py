"""Calibration of judges on images whose objects are known: drawn and pasted."""

import json
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest

from nein.benchmarks.finished import report
from nein.benchmarks.nein import calibrations, estimates
from nein.benchmarks.nein import runs as of_runs
from nein.benchmarks.nein.config import ReportConfig
from nein.datasets import coco
from nein.datasets import nein as loading
from nein.engine import atomic
from nein.engine.answers import AnswerCache
from nein.engine.images import decode, write_png
from nein.judges import calibrate as known
from nein.judges.calibrate import CaseJudge, count_questions
from nein.loading.errors import UserError
from nein.models import judges
from nein.nano import data as nano_data
from nein.nano.scenes import render
from nein.reporting import figures as frames
from tests.helpers import commands
from tests.rehearsal import ScriptedJudge

SOURCES = 36


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return nano_data.ensure_data_set("val", SOURCES, tmp_path_factory.mktemp("nano"))


@pytest.fixture(scope="module")
def annotations(world):
    return coco.read(instances=world / "instances.json", folder=world)


@pytest.fixture(scope="module")
def inside():
    scenes = (scene for s in nano_data.iter_samples("val", SOURCES) for scene in (s.source, s.sample))
    return {np.asarray(render(scene)).tobytes(): set(scene.categories) for scene in scenes}


@pytest.fixture(scope="module")
def scored(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("scored") / "out"
    words = "--editor identity --metrics removal_vqa,removal_ovd --control none --device cpu --limit 4"
    judges = "--models.vqa tests.rehearsal:no --models.ovd tests.rehearsal:score_05"
    given = [*words.split(), *judges.split(), "--data", world, "--out", out]
    assert commands.exit_code("eval", *given) == 0
    return out


@pytest.fixture
def run(scored, tmp_path):
    return shutil.copytree(scored, tmp_path / "out")


def perfect(inside):
    def rule(image, prompt):
        name = prompt.partition("contain ")[2].partition("?")[0]
        return "Yes" if name in inside.get(image.tobytes(), ()) else "No"

    return ScriptedJudge(rule, "perfect")


def test_truth_of_the_sources_and_of_the_instances_is_that_of_the_scenes(world, annotations, inside):
    cases = known.make_source_cases(loading.load(str(world)))
    cases += known.make_instance_cases(annotations, seed=0)
    assert {case.set for case in cases} == {"sources", "instances"}
    for case in cases:
        there = inside[case.decode().tobytes()]
        for word in (word for word in case.words if word.role == "object"):
            assert word.present == (word.word in there), (case.id, word)
    questions = count_questions(cases)
    assert min(questions["sources"][1], *questions["instances"]) > 100
    again, other = ([c.words for c in known.make_instance_cases(annotations, seed=s)] for s in (0, 1))
    assert again == [case.words for case in cases if case.set == "instances"] != other


def test_pasting_puts_the_object_in_and_changes_nothing_else(annotations):
    cases = known.make_pasted_cases(replace(annotations, images=annotations.images[:20]), seed=0)
    assert cases
    for with_object, without in zip(cases[::2], cases[1::2], strict=True):
        assert (with_object.words[0].present, without.words[0].present) == (True, False)
        assert with_object.words[0].word == without.words[0].word
        changed = (with_object.decode() != without.decode()).any(-1).mean()
        assert 0.005 < changed <= 0.31
    canvas, donor = np.zeros((20, 30, 3), np.uint8), np.full((40, 40, 3), 200, np.uint8)
    thing = coco.Instance("cup", (4, 4, 10, 8))
    pasted = known.paste(lambda: canvas, lambda: donor, thing, (0.0, 1.0))
    assert (pasted[12:, :10] == 200).all()
    assert pasted.sum() == 200 * 3 * 80
    thing = coco.Instance("cup", (0, 0, 10, 10), polygons=[[0, 0, 10, 0, 0, 10]])
    triangle = known.paste(lambda: canvas, lambda: donor, thing, (0.0, 0.0))
    assert 0 < (triangle == 200).all(-1).sum() < 80


def test_a_crowd_is_there_but_is_never_cut_out(world, annotations, tmp_path):
    content = json.loads((world / "instances.json").read_text())
    for note in content["annotations"]:
        note["iscrowd"] = 1
    (tmp_path / "instances.json").write_text(json.dumps(content))
    after = coco.read(instances=tmp_path / "instances.json", folder=world)
    assert [p.categories for p in after.images] == [p.categories for p in annotations.images]
    assert known.make_instance_cases(after, 0)[0].words == known.make_instance_cases(annotations, 0)[0].words
    assert known.make_pasted_cases(annotations, seed=0)
    assert known.make_pasted_cases(after, seed=0) == []


def mirrored(picture):
    return np.ascontiguousarray(np.frombuffer(picture, np.uint8).reshape(64, 64, 3)[:, ::-1]).tobytes()


@pytest.mark.parametrize(("judge", "failed"), [
    ("perfect", []),
    ("always yes", ["black", "picture", "question", "negated"]),
    ("always no", ["black", "picture", "question", "negated"]),
    ("by the word alone", ["black", "picture", "question", "negated"]),
    ("deaf to not", ["negated"]),
    ("says the first option", ["black", "picture", "question", "negated", "reversed"]),
    ("blind to what is mirrored", ["mirrored"]),
])  # fmt: skip
def test_a_judge_that_does_not_look_or_read_is_flagged_by_a_control(
    world, annotations, inside, tmp_path, judge, failed
):
    seen = inside if "mirrored" in judge else inside | {mirrored(k): names for k, names in inside.items()}

    def rule(image, prompt):
        name = prompt.partition("contain ")[2].partition("?")[0]
        there = name in seen.get(image.tobytes(), ())
        yes = {
            "always yes": True, "always no": False, "by the word alone": len(name) % 2 == 0,
            "says the first option": "yes or no" in prompt, "deaf to not": there,
        }.get(judge, there != ("not contain" in prompt))  # fmt: skip
        return "Yes" if yes else "No"

    cases, how = known.make_instance_cases(annotations, seed=0), judges.JudgeOptions()
    asked = known.make_control_cases(cases, "vqa")
    assert {case.control for case in asked} == set(calibrations.CONTROLS)
    for case in asked:
        if case.control in ("picture", "question"):
            assert not inside[case.decode().tobytes()] & {word.word for word in case.words}
    asking = CaseJudge("vqa", ScriptedJudge(rule, judge), how, tmp_path)
    made = frames.frame(calibrations.check_controls(asking.ask([*cases, *asked]), "eye"))
    flags = {row["group"]: row["flag"] for row in frames.records(made) if row["metric"] in ("fall", "same")}
    assert [name for name in calibrations.CONTROLS if flags[name]] == failed
    said = calibrations.list_flags(made, ["eye"])
    assert len(said) == bool(failed)
    assert all(calibrations.CONTROLS[name] in said[0] for name in failed)
    if judge == "perfect":
        assert {row["value"] for row in frames.records(made) if row["metric"] in ("before", "same")} == {1.0}
    every = known.make_control_cases([*known.make_source_cases(loading.load(str(world))), *cases], "ovd")
    assert {case.control for case in every} == {"black", "picture", "question", "mirrored"}
    assert {case.set for case in every} == {"instances"}  # of which all is known
    assert "calibrated without controls" in calibrations.list_flags(frames.frame([]), ["eye"])[0]


@pytest.mark.parametrize(("kind", "name", "failed"), [("vqa", "llava", ["negated"]), ("ovd", "owlv2", [])])
def test_the_miniature_judges_look_and_the_vlm_does_not_hear_not(annotations, tmp_path, kind, name, failed):
    cases, how = known.make_instance_cases(annotations, seed=0)[:8], judges.JudgeOptions()
    judge = judges.load(kind, f"nano:{name}", services=None, device="cpu", dtype="float32")
    asked = known.make_control_cases(cases, kind)
    asking = CaseJudge(kind, judge, how, tmp_path)
    made = calibrations.check_controls(asking.ask([*cases, *asked]), kind)
    assert [row["group"] for row in made if row.get("flag")] == failed


def test_a_weakened_judge_is_found_out_and_its_removal_corrected_to_the_truth(
    world, inside, tmp_path, evaluate, monkeypatch
):
    # An editor that truly removes the object in 40 % of the samples: it gives back the source image there.
    rng, gone, samples = random.Random(0), 0, list(nano_data.iter_samples("val", SOURCES))
    for sample in samples:
        removed = rng.random() < 0.4
        gone += removed
        place = f"coco_for_val/{sample.coco}.png" if removed else f"nein_val/{sample.nein}.png"
        write_png(tmp_path / "edited" / "known" / f"{sample.nein}.png", decode(world / place))

    def erring(image, prompt):
        """Misses a quarter of what is there, and sees a tenth of what is not."""
        right = sharp.rule(image, prompt)
        chance = random.Random(f"{prompt}/{image.tobytes().hex()}").random()
        return ("No" if right == "Yes" else "Yes") if chance < {"Yes": 0.25, "No": 0.1}[right] else right

    sharp = perfect(inside)
    share, weak = gone / len(samples), ScriptedJudge(erring, "errs")
    monkeypatch.setattr("nein.benchmarks.nein.stages.load_models", lambda *_: {"vqa": weak})
    out = tmp_path / "out"
    done = evaluate("--edited", tmp_path / "edited", "--data", world, "--metrics", "removal_vqa", "--out",
                    out, "--device", "cpu", "--models.vqa", "tests.rehearsal:no")  # fmt: skip
    assert done.code == 0, done.stderr
    given = ("--judges", "vqa", "--sets", "instances", "--device", "cpu")
    assert commands.exit_code("calibrate", out, *given) == 0
    [calibration] = calibrations.load([out / "calibration"], explicit=True)
    rates = calibration.rates("fixed")
    for rate, expected in ((rates.sensitivity, 0.75), (rates.specificity, 0.9)):
        assert rate.low <= expected <= rate.high < 0.97  # found out
    [run] = of_runs.load_complete([out])
    assert calibration.fits(run.about)
    judged = frames.pick(estimates.make_estimates(run.all_scores, {}), task="results", metric="removal_vqa")
    assert not judged["low"] <= share <= judged["high"]  # what the weakened judge says is wrong
    _, line = calibrations.correct_runs([run], [calibration])
    assert line["low"] <= share <= line["high"]
    assert abs(line["value"] - share) < abs(judged["value"] - share) / 2
    labels, twice, page = (tmp_path / name for name in ("labels.csv", "twice.csv", "r.html"))
    truth = {
        s.nein: s.object not in inside[decode(run.image_path(run.edits[s.nein])).tobytes()] for s in samples
    }
    picked = [s.nein for s in random.Random(1).sample(samples, 60)]
    head = "editor,track,id,gone\n"
    labels.write_text(head + "".join(f"known,negative,{name},{int(truth[name])}\n" for name in picked))
    twice.write_text(f"{head}e,negative,s,1\ne,negative,s,yes\ne,negative,s,0\n")
    with pytest.raises(UserError, match=r"line 4: 's' of e/negative has another label"):
        calibrations.read_labels([twice])
    report(ReportConfig.parse([str(out), "-o", str(page), "--labels", str(labels)]))
    assert "Corrected for the judge" in page.read_text()
    assert "may lie outside of the raw interval" in page.read_text()  # beside the table
    assert "Removal with people" in page.read_text()
    made = calibrations.use_labels([run], calibrations.read_labels([labels]))
    labelled = next(one for one in made if one.get("statistic") == "labelled")
    assert labelled["low"] <= share <= labelled["high"]
    assert labelled["n"] == 60
    assert not (tmp_path / "r-reliability.png").exists()  # this judge gives no soft score


def test_calibration_goes_on_where_it_was_killed(scored, tmp_path, monkeypatch):
    line = [scored, "--limit", "12", "--batch-size", "4", "--device", "cpu"]
    assert commands.exit_code("calibrate", *line, "--out", tmp_path / "whole") == 0
    put_all, seen = AnswerCache.put_all, 0

    def killed(self, values):
        nonlocal seen
        seen += 1
        if seen == 4:
            raise KeyboardInterrupt
        put_all(self, values)

    with monkeypatch.context() as patch:
        patch.setattr(AnswerCache, "put_all", killed)
        assert commands.exit_code("calibrate", *line, "--out", tmp_path / "cut") == 130
    asked = []
    monkeypatch.setattr(AnswerCache, "put_all", lambda self, values: asked.extend(key for _, key in values))
    commands.exit_code("calibrate", *line, "--out", tmp_path / "cut")
    whole, cut = (
        {p.name: p.read_bytes() for p in (tmp_path / name).glob("*.json*")} for name in ("whole", "cut")
    )
    assert len(whole) == 4
    assert cut == whole
    questions = sum(len(p.read_text().splitlines()) for p in (tmp_path / "whole").glob("*.jsonl"))
    assert 0 < len(asked) < questions  # the three batches before the kill are not asked about again


def test_a_judge_with_one_answer_is_refused_and_flagged_and_a_foreign_calibration_does_not_count(
    run, tmp_path, capsys
):
    commands.exit_code("calibrate", run, "--limit", "12", "--device", "cpu", "--judges", "vqa")
    assert "Note: the judge vqa is not shown to notice a black picture" in capsys.readouterr().out
    [loaded] = of_runs.load_complete([run])
    [found] = calibrations.load([run / "calibration"], explicit=True)
    assert set(judges.VERDICTS) <= set(found.rows[0])
    rows = calibrations.correct_runs([loaded], [found])
    by_metric = {row["metric"]: row for row in rows if row["statistic"] == "corrected"}
    assert by_metric["removal_vqa"]["value"] is None
    assert "hardly tells present from absent" in by_metric["removal_vqa"]["refused"]
    assert by_metric["removal_ovd"]["refused"] == "this judge was not calibrated"
    other = calibrations.Calibration("vqa", {**found.manifest, "fingerprint": "another"}, found.rows)
    assert not other.fits(loaded.about)
    flag = "the judge VQA is not shown to notice a black picture or another picture or a question about"
    assert commands.exit_code("report", run, "-o", tmp_path / "page.html", "--formats", "html,md") == 0
    assert flag in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("entries", "expected"), [
    ({"kind": "vqa", "fingerprint": "x"}, "'article': Field required"),
    ({"kind": "ovd", "article": "none", "fingerprint": "x"}, "'threshold': Field required"),
    ({"kind": ["vqa"], "fingerprint": "x", "article": "none"}, "is not a calibration"),
])  # fmt: skip
def test_a_calibration_that_does_not_say_how_it_was_asked_is_refused(tmp_path, entries, expected):
    atomic.write_json(tmp_path / "vqa-1.json", entries)
    atomic.write_lines(tmp_path / "vqa-1.jsonl", [])
    with pytest.raises(UserError, match=expected):
        calibrations.load([tmp_path], explicit=True)
