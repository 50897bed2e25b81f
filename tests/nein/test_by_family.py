"""Splitting results by family of negation, and the family's way from the annotation file into the results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nein.benchmarks.nein import figures, records
from nein.benchmarks.nein.reporting import sections
from nein.datasets.nein import loading
from nein.datasets.nein.samples import records_hash
from nein.engine.errors import UserError
from nein.reporting import figures as frames
from nein.reporting.scores import ScoreTable
from tests.helpers import runs

Make = Callable[..., Path]


def with_families(folder: Path, families: list[str | None]) -> Path:
    records = json.loads((folder / "val.json").read_text())
    for record, family in zip(records, families, strict=True):
        if family is not None:
            record["family"] = family
    (folder / "val.json").write_text(json.dumps(records))
    return folder


VALUES = {
    "removal_vqa": {"a": 1.0, "b": 0.0, "c": 1.0, "d": None},
    "l1": {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4},
}
FAMILIES = {"a": "plain", "b": "double_negation", "c": "implicit", "d": "implicit"}


def edits(families: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "id": key,
            "source_id": key,
            "family": families.get(key),
            **({"stays": True} if families.get(key) == "double_negation" else {}),
        }
        for key in "abcd"
    ]


def scores() -> list[dict[str, Any]]:
    return [
        {"id": key, "metric": metric, "value": value, "reason": "" if value is not None else "no answer"}
        for metric, column in VALUES.items()
        for key, value in column.items()
    ]


def read(edits: list[dict[str, Any]], rows: list[dict[str, Any]] | None = None) -> ScoreTable:
    return runs.table(edits, scores() if rows is None else rows)


def figures_of(edits: list[dict[str, Any]], rows: list[dict[str, Any]] | None = None) -> pd.DataFrame:
    return figures.of_table(read(edits, rows), {})


def column(table: ScoreTable, metric: str) -> dict[str, float | None]:
    rows = table.where(metric=metric)
    return {
        key: None if np.isnan(value) else value
        for key, value in zip(rows.frame["id"], rows.values, strict=True)
    }


def test_a_removal_that_should_not_be_is_left_out_of_the_whole():
    left = records.asked(read(edits(FAMILIES)))
    assert column(left, "removal_vqa") == {"a": 1.0, "c": 1.0, "d": None}
    assert column(left, "l1") == VALUES["l1"]
    assert {metric: column(records.asked(read(edits({}))), metric) for metric in VALUES} == VALUES
    whole = frames.pick(figures_of(edits(FAMILIES)), task="results", metric="removal_vqa")
    assert (whole["value"], whole["n"], whole["unscored"]) == (1.0, 2, 1)


def test_every_family_has_its_own_figures_unscored_samples_counted():
    found = frames.select(figures_of(edits(FAMILIES)), task="families")
    stays = "double_negation (object must stay: Removal ↓)"
    assert frames.values(found, "group") == ["plain", stays, "implicit"]
    by = {(f["group"], f["metric"]): (f["value"], f["n"], f["unscored"]) for f in frames.records(found)}
    assert by[stays, "removal_vqa"] == (0.0, 1, 0)
    assert by["implicit", "removal_vqa"] == (1.0, 1, 1)
    assert by["implicit", "l1"] == (pytest.approx(0.35), 2, 0)
    assert not len(frames.select(figures_of(edits({})), task="families"))


def test_a_family_is_read_hashed_and_turns_the_target_round(make_data):
    plain = loading.load(str(make_data(2, 1)))
    folder = with_families(make_data(2, 1, name="other"), ["double_negation", "implicit"])
    found = loading.load(str(folder))
    first, second = found.samples
    assert (first.family, second.family) == ("double_negation", "implicit")
    assert first.stays
    assert first.source_path == first.sample_path
    assert not second.stays
    assert second.source_path != second.sample_path
    assert found.records_sha256 != plain.records_sha256
    assert plain.samples[0].family is None
    assert records_hash(plain.samples) == plain.records_sha256


def test_an_unknown_family_is_refused_with_a_near_match(make_data):
    folder = with_families(make_data(2, 1), ["implicit", "implict"])
    with pytest.raises(UserError, match=r"'implict' in .*did you mean 'implicit'"):
        loading.load(str(folder))


def test_the_table_has_a_row_per_family_and_says_what_must_stay(make_data, evaluate, tmp_path):
    folder = with_families(make_data(4, 1), ["plain", "double_negation", "implicit", "implicit"])
    done = evaluate(
        *("--editor", "identity", "--data", folder, "--out", tmp_path / "out", "--device", "cpu"),
        *("--metrics", "removal_vqa", "--models.vqa", "tests.rehearsal:no", "--control", "none"),
    )
    assert done.code == 0, done.stderr
    table = done.stdout.split("## By family of negation")[1]
    assert table.index("| plain") < table.index("double_negation (object must stay: Removal ↓)")
    found = frames.read(tmp_path / "out" / "identity" / "negative" / "figures.csv")
    assert frames.pick(found, task="results", metric="removal_vqa")["n"] == 3  # type: ignore[index]
    split = frames.select(found, task="families", metric="removal_vqa")
    assert list(split["n"]) == [1, 1, 2]


def test_data_without_families_have_no_such_table(make_data, evaluate, tmp_path):
    done = evaluate(
        *("--editor", "identity", "--data", make_data(2, 1), "--out", tmp_path / "out", "--device", "cpu"),
        *("--metrics", "removal_vqa", "--models.vqa", "tests.rehearsal:no", "--control", "none"),
    )
    assert done.code == 0, done.stderr
    assert "By family" not in done.stdout
    assert not any("family" in edit for edit in runs.edits_of(tmp_path / "out" / "identity" / "negative"))


OTHERS, DEPTH = "other things", "denials above"


def told(levels: dict[str, tuple[int, int]], families: dict[str, str] = FAMILIES) -> list[dict[str, Any]]:
    return [
        {**edit, "difficulty": dict(zip((OTHERS, DEPTH), levels[edit["id"]], strict=True))}
        for edit in edits(families)
    ]


def test_edits_have_a_figure_for_every_difficulty_by_family_and_of_all_together():
    levels = {"a": (0, 0), "b": (0, 0), "c": (0, 0), "d": (2, 1)}
    every = figures_of(told(levels))
    made = frames.select(every, task="difficulty", metric="l1")
    assert [(f["group"], f["axis"], f["level"], f["value"]) for f in frames.records(made)] == [
        ("all families", OTHERS, "0", pytest.approx(0.2)),
        ("plain", OTHERS, "0", pytest.approx(0.1)),
        ("double_negation", OTHERS, "0", pytest.approx(0.2)),
        ("implicit", OTHERS, "0", pytest.approx(0.3)),
        ("all families", DEPTH, "0", pytest.approx(0.2)),
        ("all families", DEPTH, "1", pytest.approx(0.4)),
        ("plain", DEPTH, "0", pytest.approx(0.1)),
        ("double_negation", DEPTH, "0", pytest.approx(0.2)),
        ("implicit", DEPTH, "0", pytest.approx(0.3)),
        ("implicit", DEPTH, "1", pytest.approx(0.4)),
    ]
    assert not len(frames.select(figures_of(edits(FAMILIES)), task="difficulty"))


def test_removal_by_difficulty_is_that_of_objects_that_must_go():
    made = figures_of(told(dict.fromkeys("abcd", (0, 0))))
    removal = frames.select(made, task="difficulty", metric="removal_vqa", axis=DEPTH)
    assert frames.values(removal, "group") == ["all families", "plain", "implicit"]
    together = frames.pick(removal, group="all families")
    assert (together["value"], together["n"], together["unscored"]) == (1.0, 2, 1)


def test_below_a_denial_a_family_has_figures_of_its_own():
    rows = told({"a": (0, 0), "b": (0, 1), "c": (0, 0), "d": (0, 1)}, dict.fromkeys("abcd", "neither_nor"))
    rows[3]["stays"] = True
    found = frames.select(figures_of(rows), task="families", metric="l1")
    assert [(f["group"], f["n"]) for f in frames.records(found)] == [
        ("neither_nor", 2),
        ("neither_nor below a denial", 1),
        ("neither_nor below a denial (object must stay: Removal ↓)", 1),
    ]


def test_both_difficulties_of_edits_are_drawn_and_stand_in_a_table():
    rows = told({"a": (0, 0), "b": (1, 0), "c": (0, 1), "d": (0, 1)}, dict.fromkeys("abcd", "scoped"))
    obeyed = [{"id": key, "metric": "obeyed", "value": 1.0, "reason": ""} for key in "abcd"]
    made = frames.label(figures_of(rows, obeyed), model="magicbrush", variant="negative")
    section = sections.families()
    assert [plot.key for plot in section.plots if len(plot.shown(made))] == ["other_things", "denials_above"]
    shown = section.tables[1].sheet(made)
    assert "how many" in shown.columns
