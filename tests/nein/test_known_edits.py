"""Judges of edits against pairs of known truth, drawn and pasted."""

from __future__ import annotations

import json

import pytest

from nein.benchmarks.nein import records
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

    def __init__(self, pairs, hears):
        super().__init__(None)
        self._hears, self.asked = hears, 0
        self.fingerprint = "deaf"
        self._right = {
            (one.pictures().right.tobytes(), told) for one in pairs for told in one.sentences.values()
        }

    def describe(self):
        return {"kind": "deaf"}

    def prefer(self, sources, first, second, instructions):
        self.asked += len(instructions)
        assert all(
            (one.tobytes(), told) in self._right for one, told in zip(first, instructions, strict=True)
        )
        values = [self._hears(told) for told in instructions]
        return [Score(None, "no word") if value is None else Score(value) for value in values]

    def score(self, *pictures):
        raise AssertionError("a calibration compares")


def test_what_a_judge_loses_by_the_negation_is_the_gap_and_asking_again_asks_nothing(pairs, tmp_path):
    judge = Deaf(pairs, lambda told: 1.0 if told.startswith("Remove") else 0.5 if "lacks" in told else 0.0)
    file = preferences.calibrate("pairwise:deaf", judge, pairs, tmp_path)
    result = json.loads(file.read_text())
    for name in ("unedited", "other", "along"):
        of_set = [pair for pair in pairs if pair.set == name]
        half = sum("lacks" in pair.sentences["negated"] for pair in of_set)
        one = result["sets"][name]
        assert one["affirmed"]["value"] == 1
        assert one["negated"]["value"] == pytest.approx(half / 2 / len(of_set))
        assert one["gap"]["value"] == pytest.approx(1 - half / 2 / len(of_set))
        assert one["gap"]["low"] < one["gap"]["value"] <= one["gap"]["high"]
        assert (one["ties"], one["n_unscored"], one["position"]) == (half, 0, None)
    asked = judge.asked
    assert asked == 2 * len(pairs)
    assert preferences.calibrate("pairwise:deaf", judge, pairs, tmp_path).read_text() == file.read_text()
    assert judge.asked == asked


def test_what_a_judge_does_not_say_is_unscored_and_in_no_share(pairs, tmp_path):
    judge = Deaf(pairs, lambda told: 1.0 if told.startswith("Remove") else None)
    some = pairs[:6]
    result = json.loads(preferences.calibrate("pairwise:deaf", judge, some, tmp_path).read_text())
    one = result["sets"]["unedited"]
    assert (one["affirmed"]["value"], one["negated"], one["gap"], one["n_unscored"]) == (1, None, None, 6)


def test_a_preference_for_a_place_is_a_difference_of_shares():
    letters = [["A", "A"], ["A", "B"], ["B", "A"], ["A", None]]
    rows = [
        {"id": f"{k}", "cluster": f"{k}", "wording": "affirmed", "right": 0.5, "detail": {"letters": row}}
        for k, row in enumerate(letters)
    ]
    position = preferences.rates(rows)["position"]
    assert position["value"] == pytest.approx((5 - 2) / 7)


def test_the_right_edit_is_the_picture_without_the_object_and_the_wrong_one_lacks_another(pairs, world):
    samples = {sample.nein: sample for sample in nano_data.iter_samples("val", 6)}
    for pair in (one for one in pairs if one.set == "unedited"):
        source, right, wrong = pair.pictures()
        assert (source == wrong).all()
        assert pair.object == samples[pair.id].object
        assert (source != right).any()
    other = [pair for pair in pairs if pair.set == "other"]
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
    for one, same in zip((pair for pair in pairs if pair.set == "along"), other, strict=True):
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
    out = tmp_path / "out"
    done = evaluate(
        "--editor", "identity", "--mend", "best-of:2:removal", "--data", world, "--control", "none",
        "--metrics", "removal_vqa", "--models.vqa", "tests.rehearsal:no", "--device", "cpu", "--limit", 4,
        "--out", out,
    )  # fmt: skip
    assert done.code == 0
    loaded, _ = records.load([out])
    [alone] = judge_tables.rewarded(loaded, {})
    assert (alone["model"], alone["statistic"], alone["value"]) == ("identity+best-of-2-removal", "gain", 0)
    given = ["--judges", "reward", "--device", "cpu", "--limit", "4", "--data", str(world)]
    assert commands.exit_code("calibrate", out, *given) == 0
    target = tmp_path / "report.html"
    assert commands.exit_code("report", out, "-o", target, "--formats", "html,csv") == 0
    rows = frames.records(frames.read(target.with_suffix(".csv")))
    shares = {(r["group"], r["metric"]): r for r in rows if r["task"] == "rewards"}
    assert {family for family, _ in shares} == {"unedited", "other", "along"}
    assert shares["other", "negated"]["value"] == 0.5  # it says "No" to everything
    assert shares["other", "negated"]["judge"] == "removal"
    assert 0 < shares["other", "negated"]["low"] < shares["other", "gap"]["high"]
    chosen = {(r["metric"], r["group"]): r["value"] for r in rows if r["task"] == "best-of"}
    assert chosen == {
        ("removal_vqa", ""): 0, **{("preferred", name): 0.5 for name in ("unedited", "other", "along")},
    }  # fmt: skip
    page = target.read_text()
    assert "Judges of edits on known truth" in page
    assert "The best of several edits, and the judge that chose" in page


@pytest.mark.parametrize(("given", "said"), [
    (["--judge", "reward=pairwise:nano:negvqa"], "say --judges reward"),
    (["--judges", "reward", "--judge", "reward=best"], "'best' is no judge of edits"),
    (["--judges", "reward", "--sets", "instances"], "takes sources and pasted"),
    (["--judge", "wow=x"], "reward=REFERENCE"),
])  # fmt: skip
def test_what_cannot_be_calibrated_is_a_sentence(given, said, tmp_path):
    with pytest.raises(UserError, match=said):
        CalibrateConfig.parse([str(tmp_path), *given])


def test_a_perfect_judge_of_objects_is_a_perfect_judge_of_pastes(pairs, tmp_path):
    other = [pair for pair in pairs if pair.set == "other"]
    there = {}
    for pair in other:
        pictures = pair.pictures()
        there[pixel_hash(pictures.wrong), pair.object] = True

    def rule(image, prompt):
        name = prompt.partition("contain ")[2].partition("?")[0]
        return "Yes" if there.get((pixel_hash(image), name)) else "No"

    judge = rewards.RemovalReward(ScriptedJudge(rule))
    result = json.loads(preferences.calibrate("removal", judge, other, tmp_path).read_text())
    one = result["sets"]["other"]
    assert one["affirmed"]["value"] == 1
    # The rule that reads the sentence takes "any stop sign" for "any stop": asked for that, it sees none.
    assert one["negated"]["value"] == 1 - one["ties"] / 2 / len(other) > 0.7
