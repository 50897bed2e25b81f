"""Minimal pairs for editors: the instruction affirmed or denied, the object there or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nein.benchmarks.nein import figures, records
from nein.benchmarks.nein.config import EvalConfig
from nein.benchmarks.nein.reporting import sample_browser, sections
from nein.datasets.nein.families import in_families
from nein.datasets.nein.samples import Dataset, Sample, records_hash
from nein.engine.errors import UserError
from nein.reporting import figures as frames
from nein.statistics import two_way
from nein.wording.families import CELLS, MINIMAL_PAIRS
from tests.helpers import commands, runs


def sample(number: int, family: str | None = None) -> Sample:
    return Sample(
        f"n{number}", f"s{number}", "A cat.", "The image lacks owl.", "Add an owl.", "owl", 8,
        Path(f"s{number}.png"), Path(f"n{number}.png"), family,
    )  # fmt: skip


def dataset(*samples: Sample) -> Dataset:
    return Dataset(samples, {"kind": "folder"}, records_hash(samples))


def test_a_sample_becomes_four_with_the_picture_and_the_target_that_the_sentence_says():
    made = in_families(dataset(sample(1), sample(2, "double_negation")), [MINIMAL_PAIRS])
    assert [(one.id, one.family, one.negative) for one in made.samples] == [
        ("n1_affirmed_there", "affirmed, there", "The image has an owl."),
        ("n1_affirmed_absent", "affirmed, absent", "The image has an owl."),
        ("n1_denied_there", "denied, there", "The image lacks owl."),
        ("n1_denied_absent", "denied, absent", "The image lacks owl."),
    ]
    assert [one.sample_path.stem for one in made.samples] == ["n1", "s1", "n1", "s1"]
    assert [one.source_path.stem for one in made.samples] == ["n1", "n1", "s1", "s1"]
    assert {one.source_id for one in made.samples} == {"s1"}
    assert made.origin["not said"] == 1


def test_minimal_pairs_go_with_no_other_family_and_no_other_track():
    with pytest.raises(UserError, match="minimal_pairs goes with no other"):
        in_families(dataset(sample(1)), [MINIMAL_PAIRS, "implicit"])
    with pytest.raises(UserError, match="no sample whose sentence only denies its object"):
        in_families(dataset(sample(1, "double_negation")), [MINIMAL_PAIRS])


#: An editor -> whether the object is there afterwards, by (affirmed, there).
EDITORS: dict[str, tuple[Any, dict[str, float], float]] = {
    "obeys": (lambda affirmed, there: affirmed, {"text": 1, "picture": -1, "interaction": 0}, 1.0),
    "does nothing": (lambda affirmed, there: there, {"text": 0, "picture": 0, "interaction": 0}, 0.0),
    "removes": (lambda affirmed, there: False, {"text": 0, "picture": -1, "interaction": 0}, 0.0),
    "adds": (lambda affirmed, there: True, {"text": 0, "picture": -1, "interaction": 0}, 0.0),
    "removes what is denied": (
        lambda affirmed, there: there and affirmed,
        {"text": 0.5, "picture": -0.5, "interaction": 0.5},
        0.0,
    ),
}


def measured(
    rule: Any,
    count: int = 5,
    lost: str = "",
    before: Callable[[int, bool], bool | None] = lambda n, there: there,
) -> Any:
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


@pytest.mark.parametrize("name", EDITORS)
def test_an_editor_of_one_kind_has_the_parts_that_theory_demands(name):
    rule, parts, obeyed = EDITORS[name]
    frame = measured(rule)
    pick = {"task": "minimal_pairs", "metric": "removal_vqa"}
    for part in two_way.PARTS:
        figure = frames.pick(frame, **pick, statistic="part", group=part)
        assert figure["value"] == pytest.approx(parts[part])
        assert figure["low"] <= figure["value"] <= figure["high"]
    figure = frames.pick(frame, **pick, statistic="obeyed", group="all four")
    assert (figure["value"], figure["n"]) == (obeyed, 5)
    change = frames.pick(frame, **pick, statistic="change", group="denied, there")
    assert change["value"] == float(rule(False, True)) - 1


def test_removal_is_that_of_the_cell_in_which_the_object_is_there_and_denied():
    frame = measured(EDITORS["removes"][0])
    figure = frames.pick(frame, task="results", metric="removal_vqa")
    assert (figure["value"], figure["n"]) == (1.0, 5)


def test_a_pair_without_a_verdict_is_unscored_and_one_that_a_limit_cut_is_none():
    frame = measured(EDITORS["obeys"][0], lost="n2_denied_absent")
    figure = frames.pick(frame, task="minimal_pairs", statistic="part", group="text")
    assert (figure["n"], figure["unscored"]) == (4, 1)


def test_a_judge_that_errs_alike_before_and_after_sees_no_change():
    """An editor that does nothing, and a judge that misses the object of one picture of five."""
    missed = measured(lambda affirmed, there: False, count=1, before=lambda number, there: False)
    for part in two_way.PARTS:
        figure = frames.pick(missed, task="minimal_pairs", statistic="part", group=part)
        assert figure["value"] == 0
    agrees = frames.pick(missed, task="minimal_pairs", statistic="agrees")
    assert agrees["value"] == 0.5


def test_what_is_seen_before_decides_the_picture_part_alone():
    sure = measured(EDITORS["obeys"][0])
    erring = measured(EDITORS["obeys"][0], before=lambda number, there: there and number > 1)
    for part, values in {"text": (1, 1), "picture": (-1, -0.6), "interaction": (0, 0)}.items():
        found = [frames.pick(f, task="minimal_pairs", statistic="part", group=part) for f in (sure, erring)]
        assert [figure and figure["value"] for figure in found] == pytest.approx(values)
    shares = [frames.pick(f, task="minimal_pairs", statistic="agrees") for f in (sure, erring)]
    assert [figure and figure["value"] for figure in shares] == pytest.approx([1.0, 0.8])


def test_a_pair_whose_unedited_picture_has_no_verdict_is_unscored():
    frame = measured(EDITORS["obeys"][0], before=lambda number, there: None if number == 1 else there)
    figure = frames.pick(frame, task="minimal_pairs", statistic="change", group="denied, there")
    assert (figure["n"], figure["unscored"]) == (4, 1)


def test_the_whole_command_measures_what_a_judge_says_that_sees_everything(make_data, tmp_path):
    out = tmp_path / "out"
    code = commands.exit_code(
        "eval", "--editor", "identity", "--families", MINIMAL_PAIRS, "--metrics", "removal_vqa", "--data",
        make_data(3, 1), "--models.vqa", "tests.rehearsal:yes", "--stages", "edit,score", "--device", "cpu",
        "--out", out,
    )  # fmt: skip
    assert code == 0
    frame = frames.read(out / "identity" / "negative" / "figures.csv")
    for part in two_way.PARTS:
        figure = frames.pick(frame, task="minimal_pairs", statistic="part", group=part)
        assert (figure["value"], figure["n"]) == (0, 3)  # it sees everything before as well
    agrees = frames.pick(frame, task="minimal_pairs", statistic="agrees")
    assert agrees["value"] == 0.5
    table = sections.MINIMAL_PAIRS.sheet(frames.label(frame, model="identity"))
    assert {"denied, absent (change)", "text part", "judge right before %"} <= set(table.columns)
    loaded, _ = records.load([out])
    shown = sample_browser.Browser.of(loaded)
    samples, details = shown.described(), list(shown.details(iter([[]] * len(shown.ids))))
    cells = [labels for [labels] in samples.facets["Family"]]
    [[values]] = samples.values  # of one run by one metric
    for cell, value, detail in zip(cells, values, details, strict=True):
        [[metric, number, reason, said]] = detail.said[0].rows
        assert value == (0 if cell == "denied, there" else "no removal asked")
        assert (metric, number, reason) == (0, 0.0, "the judge answered 'Yes'")
        assert said["before"]


def test_pairs_have_no_control():
    config = EvalConfig.parse(
        ["--families", MINIMAL_PAIRS, "--control", "remove,add", "--editor", "identity"]
    )
    assert config.tracks == ["negative"]
