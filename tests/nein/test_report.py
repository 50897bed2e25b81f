"""The tables of finished runs, the published figures beside them, and a run under both protocols."""

import functools

import numpy as np
import pytest

from nein import metrics, statistics
from nein.benchmarks.nein import estimates, paper_numbers, protocols, report
from nein.benchmarks.nein.protocols import NoEvidence, recompute
from nein.benchmarks.nein.runs import EDIT, CorpusRow, RunDir, score_output
from nein.loading.errors import UserError
from nein.metrics import METRICS, Batch, EditPair, Settings
from nein.reporting import figures as frames
from tests.helpers import runs
from tests.helpers.runs import write_block
from tests.rehearsal import ScriptedDetector, ScriptedJudge
from tests.reporting import made


def write_run(out, editor, track, scores, *, preset="nano", status="complete", fid=None):
    rows = made.records(2, 2)[: len(next(iter(scores.values())))]
    values = {metric: column.__getitem__ for metric, column in scores.items()}
    run = made.write_run(out, out / "data", editor, track, rows, values, pictures=False)
    if fid:
        runs.write_fid(run, fid)
        runs.finish(run)
    run.update(status=status, config={"preset": preset, "protocol": "fixed", "align": "stretch"})
    return run


def table(out):
    runs.report(out)
    return (out / "table.md").read_text()


def test_the_table_has_arrows_intervals_and_counts_and_figures_are_unscaled(tmp_path):
    scores = {"l1": [0.1, 0.1, 0.3, None], "removal_vqa": [0.0, 0.0, 0.0, 0.0], "removal_ovd": [None] * 4}
    write_run(tmp_path, "ip2p", "negative", scores)
    text = table(tmp_path)
    for said in (
        "| L1 ↓", "| Removal (VQA) ↑", "16.7 ± ",
        "| 0.0 [0.0, 77.1]",  # two source images: almost nothing is known
        "nano (miniature models on drawn scenes; not comparable with the paper)",
        "ip2p/negative: 1 of 4 are unscored in L1: 1 × no answer",
        "4 of 4 are unscored in Removal (OVD)", "| 0-4 of 4",  # missing, not zero
    ):  # fmt: skip
        assert said in text


def test_only_complete_runs_are_shown_and_rows_that_cannot_be_compared_are_pointed_out(tmp_path):
    write_run(tmp_path, "hqedit", "negative", {"l1": [0.7, 0.7]}, status="incomplete")
    with pytest.raises(UserError, match="No run is complete"):
        runs.report(tmp_path)
    write_run(tmp_path, "ip2p", "negative", {"l1": [0.1, 0.2]})
    write_run(tmp_path, "zone", "negative", {"l1": [0.1, 0.2, 0.3]})
    text = table(tmp_path)
    assert "70.0" not in text
    assert "not shown because not complete: hqedit/negative." in text
    assert "the rows differ in size" in text


def test_a_run_gives_values_by_sample_and_blocks_of_other_samples_are_a_sentence(tmp_path):
    run = write_run(tmp_path, "ip2p", "negative", {"l1": [0.1, None], "l2": [0.1, 0.2]})
    read = RunDir(run.path)
    kept, lost = runs.edits_of(run.path)
    assert (read.values("l1"), read.values("dino")) == ({kept["id"]: 0.1, lost["id"]: None}, {})
    assert read.metrics == ["l1", "l2"]
    write_block(run, EDIT, 0, [kept, {**lost, "id": "other"}])
    with pytest.raises(UserError, match=f"has scores of the sample '{lost['id']}' but no edit of it"):
        RunDir(run.path).make_scores()
    write_block(run, EDIT, 0, [kept, kept])
    with pytest.raises(UserError, match="is damaged: records are missing or repeated"):
        runs.edits_of(run.path)
    write_block(run, EDIT, 0, [kept, lost])
    with pytest.raises(UserError, match=r"3\.0 by removal_vqa, which is out of range"):
        write_run(tmp_path, "odd", "negative", {"removal_vqa": [1.0, 3]})
    write_block(run, score_output("l2"), 0, reversed(run.read(score_output("l2"), 0)))
    with pytest.raises(
        UserError, match=f"has a row of '{lost['id']}' where other metrics have '{kept['id']}'"
    ):
        RunDir(run.path).make_scores()


def test_a_remedy_that_changes_no_picture_did_not_act(tmp_path, make_data, evaluate):
    line = ["--data", make_data(2, 1), "--out", tmp_path, "--metrics", "l1", "--control", "none"]
    done = evaluate("--editor", "identity", "--mend", "rewrite", *line, "--device", "cpu")
    assert done.code == 0, done.stderr
    edits = runs.edits_of(tmp_path / "identity+rewrite" / "negative")
    assert [edit["rewritten"] for edit in edits] == [f"Remove the {edit['object']}." for edit in edits]
    said = "identity+rewrite/negative: --mend rewrite did not act: all 2 images are byte for byte those of"
    assert said in (tmp_path / "table.md").read_text()
    done = evaluate("--editor", "ip2p", "--mend", "negative-prompt", "--editor-options.steps", "2", *line)
    assert done.code == 0, done.stderr
    assert "ip2p+negative-prompt/negative: --mend" not in (tmp_path / "table.md").read_text()


def test_what_rewriter_and_painter_lose_comes_back_and_adds_up(tmp_path):
    """Of 40 samples the rewriter asks for the removal in 16, keeps the denial in 4, drops X in 10, affirms it
    in 5, and is unreadable in 5. The painter removes X where it is told to, but in every 4th sample; of one
    there is no verdict. Told "Remove the X.", it fails in every 8th."""
    texts = ["Remove the {}."] * 16 + ["There is no {}."] * 4 + ["Keep it."] * 10 + ["A big {} is there."] * 5
    texts += ["It will {} slowly."] * 5
    values = [float(k < 20 and k % 4 > 0) for k in range(40)]
    values[1] = None
    rows, metric = made.records(40, 1), "removal_vqa"
    how = {"pictures": False, "rewritten": lambda k, thing: texts[k].format(thing)}
    write = functools.partial(made.write_run, tmp_path, tmp_path / "data")
    write("ip2p+rewrite-x", "negative", rows, {metric: values.__getitem__}, **how)
    write("ip2p+rewrite-x", "remove", rows, {metric: lambda k: 0.0}, **how)  # it too is rewritten
    write("ip2p", "remove", rows, {metric: lambda k: float(k % 8 > 0)}, pictures=False)
    loaded = [RunDir(tmp_path / name) for name in ("ip2p+rewrite-x/negative", "ip2p+rewrite-x/remove")]
    frame = frames.frame(estimates.estimate_losses([*loaded, RunDir(tmp_path / "ip2p/remove")]))
    cases = {  # of 34: 35 texts can be read, and one has no verdict
        (estimates.STILL_THERE, "rewriter"): 15,
        (estimates.STILL_THERE, "painter"): 5,
        (estimates.GAP, "rewriter"): 15 - 2,  # samples 24 and 32: the painter cannot remove X at all
        (estimates.GAP, "painter"): 5 - 3,  # 0, 8, 16
    }
    for (group, part), expected in cases.items():
        row = frames.pick(frame, metric=metric, group=group, statistic=part)
        assert row["value"] == pytest.approx(expected / 34), (group, part)
        assert (row["n"], row["unscored"], row["cannot_tell"]) == (34, 6, "5")
        assert row["low"] < row["value"] < row["high"]
    for group in (estimates.STILL_THERE, estimates.GAP):
        parts = {row["statistic"]: row["value"] for row in frames.records(frame, group=group)}
        assert parts["rewriter"] + parts["painter"] == pytest.approx(parts["whole"])
    assert "| ip2p+rewrite-x | VQA     | objects still there" in table(tmp_path)


def test_a_small_fid_carries_a_warning(tmp_path):
    entry = {"value": 12.5, "low": 10.0, "high": 15.0, "standard_error": 1.0, "n": 2, "n_unscored": 0}
    entry |= {"clusters": 2, "columns": 4, "left_out": [], "reference": "per sample", "sources": "x"}
    write_run(tmp_path, "ip2p", "negative", {"l1": [0.1, 0.2]}, fid={**entry, "reasons": {}})
    text = table(tmp_path)
    assert "12.50 ± 2.50" in text
    assert "FID of 2 images is biased upward" in text


@pytest.mark.parametrize(("clusters", "refused"), [(11, "needs 12 source images"), (12, "")])
def test_the_limit_of_fid_takes_three_source_images_for_each_column(clusters, refused):
    left_out = np.linspace(12, 13, 12).tolist()
    entry = {"value": 12.5, "n": 24, "n_unscored": 0, "reasons": {}, "clusters": clusters, "columns": 4}
    frame = estimates.make_estimates(runs.table([], []), {"fid": CorpusRow(**entry, left_out=left_out)})
    row = frames.pick(frame, task="limit")
    assert refused in row.get("refused", "")
    assert (row["value"] is None) == bool(refused)


def test_published_figures_are_those_of_table_3():
    assert paper_numbers.COLUMNS == tuple(name for name in METRICS if name not in ("clip_t", "obeyed"))
    table = paper_numbers.paper_estimates("table3", {"editor": "ip2p", "track": "negative"})
    found = {row.key["metric"]: row.value for row in table}
    wanted = {"l1": 0.1124, "fid": 10.6, "lpips": 0.43, "removal_vqa": 0.0383}
    assert {metric: found[metric] for metric in wanted} == pytest.approx(wanted)
    # AUC-Removal is 100 - (100 - Removal) * mean score of what is detected, so it is never below Removal.
    assert all(row[9] >= row[8] for row in paper_numbers.TABLE_3.values())


@pytest.mark.parametrize(("pictures", "said"), [(29, True), (30, False), (1, False)])
def test_means_without_a_range_from_few_pictures_are_said_to_be_covered_less(pictures, said):
    few = {"metric": "l1", "clusters": pictures, "low": None if pictures == 1 else 0.1}
    others = [{"metric": metric, "clusters": 5, "low": 0.1} for metric in ("fid", "removal_vqa")]
    found = [*report.note_few_clusters([few, *others])]
    assert bool(found) == said
    assert not said or found[0].startswith("L1: intervals from 29 source images.")


def test_without_a_gap_minimal_pairs_are_what_was_found_and_without_these_removal():
    def row(model, value, **where):
        share = None if value is None else statistics.bounded_mean([value] * 8, range(8))
        same = {"benchmark": "nein", "metric": "removal_ovd", "variant": "negative", "unit": "%"}
        return frames.figure(share, model=model, **same, **where)

    removal = [row("a", 1.0, task="results"), row("b", 0.0, task="results")]
    assert report.make_finding(frames.frame(removal)) == [
        "Told that X is absent, b removes it in 0.0 [0.0, 36.9] % of the samples, a in 100.0 % "
        "(judged by OVD)."
    ]
    pairs = [row("a", 0.5, task="minimal_pairs", statistic="part", group="text")]
    [said] = report.make_finding(frames.frame([*removal, *pairs]))
    assert said.startswith("Of 100 points by which a sentence and its denial should make edited pictures")
    assert "a makes 50.0" in said
    assert report.make_finding(frames.frame([row("a", None, task="results")])) == []


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
    for metric in protocols.QUIRKS_OF:
        if metric != "fid":
            quirks = ("answers", "objects") if other == "paper" else ()
            values = [recompute(metric, score, quirks) for score in recorded[metric]]
            assert values == [score.value for score in expected[metric]], metric
    assert expected["removal_vqa"] != scored("fixed" if other == "paper" else "paper")["removal_vqa"]
    if own == other:  # asking for the record changes no score
        for metric in recorded:
            both, alone = ([(s.value, s.reason) for s in side[metric]] for side in (recorded, expected))
            assert both == alone


def test_quirks_apart_differ_and_without_the_other_protocols_answers_there_is_no_guess():
    rows = scored("fixed")["retention_vqa"]
    settings = [(), ("answers",), ("objects",), ("answers", "objects")]
    assert len({tuple(recompute("retention_vqa", row, quirks) for row in rows) for quirks in settings}) == 4
    record = scored("fixed", "own")["retention_vqa"][0]
    assert recompute("retention_vqa", record) == record.value
    with pytest.raises(NoEvidence, match="evidence: own"):
        recompute("retention_vqa", record, ("answers", "objects"))
