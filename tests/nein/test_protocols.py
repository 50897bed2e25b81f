from __future__ import annotations

import numpy as np
import pytest

from nein import metrics
from nein.benchmarks.nein import runs as of_runs
from nein.benchmarks.nein.reporting import protocols
from nein.benchmarks.nein.reporting.protocols import NoEvidence, Rules, verdict
from nein.benchmarks.nein.runs import RunDir
from nein.metrics import METRICS, Batch, EditPair, Settings
from tests.rehearsal import ScriptedDetector, ScriptedJudge

CAPTIONS = [
    "A couple of dogs and a cat; it sits near the cars.",
    "Two fire hydrants by a dog and a dog.",
    "Blue.",
]
ANSWERS = ["Yes", "yes", "Yes.", "No", "no", "No.", "Perhaps"]


def items():
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (24, 6, 6, 3), dtype=np.uint8)
    return [
        EditPair(
            f"s{i}",
            pictures[2 * i],
            sample=pictures[2 * i + 1],
            object=("cat", "dog", "car")[i % 3],
            caption=CAPTIONS[i % 3],
            sample_key=f"k{i}",
        )
        for i in range(12)
    ]


def pick(image, text):
    return int(image.astype(int).sum()) + sum(map(ord, text))


def scored(protocol, evidence="both"):
    judge = ScriptedJudge(lambda image, prompt: ANSWERS[pick(image, prompt) % 7], "mixed")
    detector = ScriptedDetector(lambda image, label: pick(image, label) % 20 / 100 + 0.00000003, "mixed")
    names = ["removal_vqa", "retention_vqa", "removal_ovd", "auc_removal", "retention_ovd"]
    batch = Batch(items(), {"vqa": judge, "ovd": detector}, Settings(protocol=protocol, evidence=evidence))
    return metrics.score([METRICS[name] for name in names], batch)


@pytest.mark.parametrize("own", ["fixed", "paper"])
@pytest.mark.parametrize("other", ["fixed", "paper"])
def test_the_evidence_of_one_protocol_gives_the_scores_of_the_other(own, other):
    recorded, expected = scored(own), scored(other, "own")
    for metric in protocols.MOVES:
        if metric == "fid":
            continue
        rows = [{"value": s.value, "reason": s.reason, "detail": dict(s.detail)} for s in recorded[metric]]
        values = [verdict(metric, row, Rules.of(other)) for row in rows]
        assert values == [score.value for score in expected[metric]], metric
    assert expected["removal_vqa"] != scored("fixed" if other == "paper" else "paper")["removal_vqa"]


def test_asking_for_the_record_changes_no_score():
    for protocol in ("fixed", "paper"):
        both, own = scored(protocol), scored(protocol, "own")
        for metric in both:
            assert [(s.value, s.reason) for s in both[metric]] == [(s.value, s.reason) for s in own[metric]]


def test_quirks_apart_differ_from_quirks_together():
    rows = [
        {"value": s.value, "reason": s.reason, "detail": dict(s.detail)}
        for s in scored("fixed")["retention_vqa"]
    ]
    settings = [Rules(), Rules(answers="paper"), Rules(objects="paper"), Rules.of("paper")]
    assert len({tuple(verdict("retention_vqa", row, rules) for row in rows) for rules in settings}) == 4


def test_without_the_other_protocols_answers_there_is_no_guess():
    row = scored("fixed", "own")["retention_vqa"][0]
    record = {"value": row.value, "reason": row.reason, "detail": dict(row.detail)}
    assert verdict("retention_vqa", record, Rules()) == row.value
    with pytest.raises(NoEvidence, match="--evidence own"):
        verdict("retention_vqa", record, Rules.of("paper"))


def test_a_run_is_read_under_both_protocols_and_failures_move_the_denominator(evaluate, make_data, tmp_path):
    data = make_data(6, 2)
    done = evaluate(
        "--editor", "flaky", "--data", data, "--device", "cpu", "--control", "none",
        "--out", tmp_path / "out", "--models.vqa", "tests.rehearsal:lower_case_no",
        "--models.ovd", "tests.rehearsal:score_05",
        "--metrics", "removal_vqa,retention_vqa,removal_ovd,retention_ovd",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    run = RunDir(tmp_path / "out", "flaky", "negative")
    rules = protocols.Rules.of("fixed")
    for row in run.scores():  # what is stored is what the evidence gives
        assert not row["detail"] or protocols.verdict(row["metric"], row, rules) == row["value"]
    rows = protocols.rows(of_runs.read(run))
    found = {(row["metric"], row["quirk"], row["statistic"]): (row["value"], row["n"]) for row in rows}
    failed = sum(edit["image"] is None for edit in run.read_edits())
    assert 0 < failed < 12
    # "no" removes only where case does not matter
    assert found["removal_vqa", "answers", "fixed"] == (1.0, 12 - failed)
    assert found["removal_vqa", "answers", "paper"] == (0.0, 12 - failed)
    assert found["removal_vqa", "answers", "flips"][0] == 12 - failed
    value, n = found["removal_vqa", "denominator", "paper"]
    assert (value, n) == (pytest.approx((12 - failed) / 12), 12)
    assert found["removal_vqa", "denominator", "fixed"][1] == 12 - failed
    assert found["removal_vqa", "denominator", "flips"][0] == failed
    assert found["removal_ovd", "denominator", "paper"][0] == 0.0
