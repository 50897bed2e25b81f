"""Minimal pairs for editors: the instruction affirmed or denied, the object there or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from nein.benchmarks.nein import figures
from nein.benchmarks.nein import runs as of_runs
from nein.benchmarks.nein.config import EvalConfig
from nein.benchmarks.nein.reporting import sample_browser, sections
from nein.datasets.nein.families import in_families
from nein.datasets.nein.samples import Dataset, Sample, records_hash
from nein.engine.errors import UserError
from nein.reporting import figures as frames
from nein.statistics import two_way
from nein.wording.families import CELLS, MINIMAL_PAIRS
from tests.helpers import commands, runs


def dataset(*families):
    samples = [
        Sample(f"n{n}", f"s{n}", "A cat.", "The image lacks owl.", "Add an owl.", "owl", 8,
               Path(f"s{n}.png"), Path(f"n{n}.png"), family)
        for n, family in enumerate(families, 1)
    ]  # fmt: skip
    return Dataset(tuple(samples), {"kind": "folder"}, records_hash(samples))


def test_a_sample_becomes_four_with_the_picture_and_the_target_that_the_sentence_says():
    made = in_families(dataset(None, "double_negation"), [MINIMAL_PAIRS])
    found = [(s.id, s.family, s.negative, s.sample_path.stem, s.source_path.stem) for s in made.samples]
    assert found == [
        ("n1_affirmed_there", "affirmed, there", "The image has an owl.", "n1", "n1"),
        ("n1_affirmed_absent", "affirmed, absent", "The image has an owl.", "s1", "n1"),
        ("n1_denied_there", "denied, there", "The image lacks owl.", "n1", "s1"),
        ("n1_denied_absent", "denied, absent", "The image lacks owl.", "s1", "s1"),
    ]
    assert {one.source_id for one in made.samples} == {"s1"}
    assert made.origin["not said"] == 1


def test_minimal_pairs_go_with_no_other_family_and_no_other_track():
    with pytest.raises(UserError, match="minimal_pairs goes with no other"):
        in_families(dataset(None), [MINIMAL_PAIRS, "implicit"])
    with pytest.raises(UserError, match="no sample whose sentence only denies its object"):
        in_families(dataset("double_negation"), [MINIMAL_PAIRS])
    words = ["--families", MINIMAL_PAIRS, "--control", "remove,add", "--editor", "identity"]
    assert EvalConfig.parse(words).tracks == ["negative"]


#: An editor -> whether the object is there afterwards, by (affirmed, there); its parts; share of four obeyed.
EDITORS = {
    "obeys": (lambda affirmed, there: affirmed, (1, -1, 0), 1.0),
    "does nothing": (lambda affirmed, there: there, (0, 0, 0), 0.0),
    "removes": (lambda affirmed, there: False, (0, -1, 0), 0.0),
    "adds": (lambda affirmed, there: True, (0, -1, 0), 0.0),
    "removes what is denied": (lambda affirmed, there: there and affirmed, (0.5, -0.5, 0.5), 0.0),
}


def measured(rule, count=5, lost="", before=lambda n, there: there):
    """The figures of an editor; before: what the judge says of the unedited picture of a pair."""
    edits, scores = [], []
    for number in range(count):
        for label, (caption, picture) in CELLS.items():
            name = f"n{number}_{label.replace(', ', '_')}"
            edits.append({"id": name, "source_id": f"s{number}", "family": label})
            gone = None if name == lost else 1.0 - float(rule(caption == 0, picture == 0))
            detail = {"present_before": before(number, picture == 0)}
            row = {"id": name, "metric": "removal_vqa", "value": gone, "reason": "", "detail": detail}
            scores.append(row)
    return figures.of_table(runs.table(edits, scores), {})


def pick(frame, statistic, group=None):
    where = {"group": group} if group else {}
    return frames.pick(frame, task="minimal_pairs", metric="removal_vqa", statistic=statistic, **where)


def parts(frame):
    return [pick(frame, "part", part)["value"] for part in two_way.PARTS]


@pytest.mark.parametrize("name", EDITORS)
def test_an_editor_of_one_kind_has_the_parts_that_theory_demands(name):
    rule, expected, obeyed = EDITORS[name]
    frame = measured(rule)
    by_name = dict(zip(("text", "picture", "interaction"), expected, strict=True))
    assert parts(frame) == pytest.approx([by_name[part] for part in two_way.PARTS])
    for part in two_way.PARTS:
        assert pick(frame, "part", part)["low"] <= by_name[part] <= pick(frame, "part", part)["high"]
    four = pick(frame, "obeyed", "all four")
    assert (four["value"], four["n"]) == (obeyed, 5)
    assert pick(frame, "change", "denied, there")["value"] == float(rule(False, True)) - 1
    removal = frames.pick(frame, task="results", metric="removal_vqa")  # of the cell "denied, there" alone
    assert (removal["value"], removal["n"]) == (1.0 - float(rule(False, True)), 5)


def test_a_pair_without_a_verdict_before_or_after_is_unscored():
    frame = measured(EDITORS["obeys"][0], lost="n2_denied_absent")
    unseen = measured(EDITORS["obeys"][0], before=lambda number, there: None if number == 1 else there)
    for figure in (pick(frame, "part", "text"), pick(unseen, "change", "denied, there")):
        assert (figure["n"], figure["unscored"]) == (4, 1)


def test_a_judge_that_errs_alike_before_and_after_sees_no_change():
    """An editor that does nothing, and a judge that misses the object of one picture of five."""
    missed = measured(lambda affirmed, there: False, count=1, before=lambda number, there: False)
    assert parts(missed) == [0, 0, 0]
    assert pick(missed, "agrees")["value"] == 0.5


def test_what_is_seen_before_decides_the_picture_part_alone():
    sure = measured(EDITORS["obeys"][0])
    erring = measured(EDITORS["obeys"][0], before=lambda number, there: there and number > 1)
    for part, values in {"text": (1, 1), "picture": (-1, -0.6), "interaction": (0, 0)}.items():
        assert [pick(f, "part", part)["value"] for f in (sure, erring)] == pytest.approx(values)
    assert [pick(f, "agrees")["value"] for f in (sure, erring)] == pytest.approx([1.0, 0.8])


def test_the_whole_command_measures_what_a_judge_says_that_sees_everything(make_data, tmp_path):
    out = tmp_path / "out"
    code = commands.exit_code(
        "eval", "--editor", "identity", "--families", MINIMAL_PAIRS, "--data", make_data(3, 1),
        "--metrics", "removal_vqa", "--models.vqa", "tests.rehearsal:yes", "--device", "cpu",
        "--out", out,
    )  # fmt: skip
    assert code == 0
    frame = frames.read(out / "identity" / "negative" / "figures.csv")
    assert parts(frame) == [0, 0, 0]  # it sees everything before as well
    assert (pick(frame, "part", "text")["n"], pick(frame, "agrees")["value"]) == (3, 0.5)
    table = sections.MINIMAL_PAIRS.sheet(frames.label(frame, model="identity"))
    assert {"denied, absent (change)", "text part", "judge right before %"} <= set(table.columns)
    shown = sample_browser.Browser.of(of_runs.load([out])[0])
    samples, details = shown.described(), list(shown.details(iter([[]] * len(shown.ids))))
    cells = [labels for [labels] in samples.facets["Family"]]
    [[values]] = samples.values  # of one run by one metric
    for cell, value, detail in zip(cells, values, details, strict=True):
        [[metric, number, reason, said]] = detail.said[0].rows
        assert value == (0 if cell == "denied, there" else "no removal asked")
        assert (metric, number, reason) == (0, 0.0, "the judge answered 'Yes'")
        assert said["before"]
