"""Judges of edits against pairs of known truth, drawn and pasted."""

from __future__ import annotations

import json

import pytest

from nein.benchmarks.nein import runs as of_runs
from nein.benchmarks.nein.config import EvalConfig, ModelsConfig
from nein.benchmarks.nein.reporting import judge_tables
from nein.benchmarks.nein.runs import RunDir
from nein.datasets.nein import loading
from nein.engine.errors import UserError
from nein.engine.images import pixel_hash
from nein.judges import calibrate, known_edits, known_presence, preferences
from nein.judges.config import CalibrateConfig
from nein.metrics.base import Score
from nein.models import rewards
from nein.nano import data as nano_data
from nein.reporting import figures as frames
from tests.helpers import commands
from tests.rehearsal import ScriptedJudge

FAMILIES = ("unedited", "other", "along")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return nano_data.ensure("val", 6, tmp_path_factory.mktemp("nano"))


@pytest.fixture(scope="module")
def pairs(world):
    annotations = known_presence.read_instances(world / "instances.json", world)
    return [*known_edits.unedited(loading.load(str(world)), 512), *known_edits.pasted(annotations, seed=0)]


class Deaf(rewards.RewardJudge):
    """Prefers the edit that removed what it reads from the sentence, and hears "Remove" only.

    It knows the truth: the object that differs between the edits is where the pair says.
    """

    fingerprint, asked = "deaf", 0

    def __init__(self, pairs, hears):
        super().__init__(None)
        self._hears = hears
        self._right = {(p.pictures().right.tobytes(), told) for p in pairs for told in p.sentences.values()}

    def describe(self):
        return {"kind": "deaf"}

    def prefer(self, sources, first, second, instructions):
        self.asked += len(instructions)
        shown = zip(first, instructions, strict=True)
        assert all((one.tobytes(), told) in self._right for one, told in shown)
        values = [self._hears(told) for told in instructions]
        return [Score(None, "no word") if value is None else Score(value) for value in values]

    def score(self, *pictures):
        raise AssertionError("a calibration compares")


def sets_of(judge, pairs, out, name="pairwise:deaf"):
    return json.loads(preferences.calibrate(name, judge, pairs, out).read_text())["sets"]


def test_what_a_judge_loses_by_the_negation_is_the_gap_and_asking_again_asks_nothing(pairs, tmp_path):
    judge = Deaf(pairs, lambda told: 1.0 if told.startswith("Remove") else 0.5 if "lacks" in told else 0.0)
    result = sets_of(judge, pairs, tmp_path)
    for name in FAMILIES:
        of_set, one = [pair for pair in pairs if pair.set == name], result[name]
        half = sum("lacks" in pair.sentences["negated"] for pair in of_set)
        assert one["affirmed"]["value"] == 1
        assert one["negated"]["value"] == pytest.approx(half / 2 / len(of_set))
        assert one["gap"]["value"] == pytest.approx(1 - half / 2 / len(of_set))
        assert one["gap"]["low"] < one["gap"]["value"] <= one["gap"]["high"]
        assert (one["ties"], one["n_unscored"], one["position"]) == (half, 0, None)
    assert judge.asked == 2 * len(pairs)
    assert sets_of(judge, pairs, tmp_path) == result
    assert judge.asked == 2 * len(pairs)


def test_what_a_judge_does_not_say_is_unscored_and_in_no_share(pairs, tmp_path):
    judge = Deaf(pairs, lambda told: 1.0 if told.startswith("Remove") else None)
    one = sets_of(judge, pairs[:6], tmp_path)["unedited"]
    assert (one["affirmed"]["value"], one["negated"], one["gap"], one["n_unscored"]) == (1, None, None, 6)


def test_a_preference_for_a_place_is_a_difference_of_shares():
    letters = [["A", "A"], ["A", "B"], ["B", "A"], ["A", None]]
    rows = [
        {"id": f"{k}", "cluster": f"{k}", "wording": "affirmed", "right": 0.5, "detail": {"letters": row}}
        for k, row in enumerate(letters)
    ]
    assert preferences.rates(rows)["position"]["value"] == pytest.approx((5 - 2) / 7)


def test_the_right_edit_is_the_picture_without_the_object_and_the_wrong_one_lacks_another(pairs):
    samples = {sample.nein: sample for sample in nano_data.iter_samples("val", 6)}
    unedited, other, along = ([pair for pair in pairs if pair.set == name] for name in FAMILIES)
    for pair in unedited:
        source, right, wrong = pair.pictures()
        assert (source == wrong).all()
        assert (source != right).any()
        assert pair.object == samples[pair.id].object
    assert len(other) >= 6
    for one, turned in zip(other[::2], other[1::2], strict=True):
        source, right, wrong = one.pictures()
        _, also_right, also_wrong = turned.pictures()
        assert (right == also_wrong).all()  # what is right for one sentence is wrong for the other
        assert (wrong == also_right).all()
        left, far = ((source != edit).any(-1).any(0).nonzero()[0] for edit in (right, wrong))
        assert one.object != turned.object
        assert set(left).isdisjoint(far)  # each lacks one of two objects that do not touch
        assert one.object in one.sentences["affirmed"]
        assert one.sentences["negated"].lower().count(one.object) == 1
    for one, same in zip(along, other, strict=True):
        source, right, wrong = one.pictures()
        assert (right == same.pictures().right).all()
        assert (one.sentences, one.object) == (same.sentences, same.object)
        taken, kept = ((source != edit).any(-1) for edit in (wrong, right))
        assert (kept <= taken).all()  # what is to go is gone from both, and from one another thing as well
        assert taken.sum() > kept.sum()


def test_the_command_asks_the_runs_own_judge_of_removal(world, tmp_path, monkeypatch, capsys):
    config = EvalConfig(models=ModelsConfig(vqa="tests.rehearsal:no"))
    run = RunDir(tmp_path, "identity", "negative")
    monkeypatch.setattr(calibrate, "read_config", lambda *given: (run, config))
    given = ["--judges", "reward", "--device", "cpu", "--limit", "4", "--data", str(world)]
    calibrate.run(CalibrateConfig.parse([str(tmp_path), *given]))
    said = capsys.readouterr().out
    assert "removal, unedited: affirmed 50.0 %" in said  # it says "No" to everything: never a preference
    assert "ties 8, unscored 0" in said
    [file] = (tmp_path / "calibration" / "rewards").glob("*.json")
    assert json.loads(file.read_text())["reference"] == "removal"


def test_a_report_shows_judges_of_edits_on_known_truth_and_the_arms_that_they_chose_for(
    world, tmp_path, evaluate
):
    out, target = tmp_path / "out", tmp_path / "report.html"
    done = evaluate(
        "--editor", "identity", "--mend", "best-of:2:removal", "--data", world, "--control", "none",
        "--metrics", "removal_vqa", "--models.vqa", "tests.rehearsal:no", "--device", "cpu", "--limit", 4,
        "--out", out,
    )  # fmt: skip
    assert done.code == 0
    [alone] = judge_tables.rewarded(of_runs.load([out])[0], {})
    assert (alone["model"], alone["statistic"], alone["value"]) == ("identity+best-of-2-removal", "gain", 0)
    given = ["--judges", "reward", "--device", "cpu", "--limit", "4", "--data", str(world)]
    assert commands.exit_code("calibrate", out, *given) == 0
    assert commands.exit_code("report", out, "-o", target, "--formats", "html,csv") == 0
    rows = frames.records(frames.read(target.with_suffix(".csv")))
    shares = {(r["group"], r["metric"]): r for r in rows if r["task"] == "rewards"}
    assert {family for family, _ in shares} == set(FAMILIES)
    negated = shares["other", "negated"]
    assert (negated["value"], negated["judge"]) == (0.5, "removal")  # it says "No" to everything
    assert 0 < negated["low"] < shares["other", "gap"]["high"]
    chosen = {(r["metric"], r["group"]): r["value"] for r in rows if r["task"] == "best-of"}
    assert chosen == {("removal_vqa", ""): 0, **{("preferred", name): 0.5 for name in FAMILIES}}
    for title in ("Judges of edits on known truth", "The best of several edits, and the judge that chose"):
        assert title in target.read_text()


@pytest.mark.parametrize(("given", "said"), [
    ("--judge reward=pairwise:nano:negvqa", "say --judges reward"),
    ("--judges reward --judge reward=best", "'best' is no judge of edits"),
    ("--judges reward --sets instances", "takes sources and pasted"), ("--judge wow=x", "reward=REFERENCE"),
])  # fmt: skip
def test_what_cannot_be_calibrated_is_a_sentence(given, said, tmp_path):
    with pytest.raises(UserError, match=said):
        CalibrateConfig.parse([str(tmp_path), *given.split()])


def test_a_perfect_judge_of_objects_is_a_perfect_judge_of_pastes(pairs, tmp_path):
    other = [pair for pair in pairs if pair.set == "other"]
    there = {(pixel_hash(pair.pictures().wrong), pair.object) for pair in other}

    def rule(image, prompt):
        name = prompt.partition("contain ")[2].partition("?")[0]
        return "Yes" if (pixel_hash(image), name) in there else "No"

    one = sets_of(rewards.RemovalReward(ScriptedJudge(rule)), other, tmp_path, "removal")["other"]
    assert one["affirmed"]["value"] == 1
    # The rule that reads the sentence takes "any stop sign" for "any stop": asked for that, it sees none.
    assert one["negated"]["value"] == 1 - one["ties"] / 2 / len(other) > 0.7
