"""Splitting results by family of negation, and the family's way from the annotation file into the results."""

from __future__ import annotations

import json

import pytest

from nein.benchmarks.nein import figures
from nein.benchmarks.nein.reporting import sections
from nein.benchmarks.nein.runs import asked
from nein.datasets.nein import loading
from nein.datasets.nein.samples import records_hash
from nein.engine.errors import UserError
from nein.reporting import figures as frames
from tests.helpers import runs


def with_families(folder, families):
    rows = json.loads((folder / "val.json").read_text())
    for record, family in zip(rows, families, strict=True):
        record |= {"family": family} if family else {}
    (folder / "val.json").write_text(json.dumps(rows))
    return folder


VALUES = {
    "removal_vqa": {"a": 1.0, "b": 0.0, "c": 1.0, "d": None},
    "l1": {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4},
}
FAMILIES = {"a": "plain", "b": "double_negation", "c": "implicit", "d": "implicit"}
SCORES = [
    {"id": key, "metric": metric, "value": value, "reason": "" if value is not None else "no answer"}
    for metric, column in VALUES.items()
    for key, value in column.items()
]
STAYS = " (object must stay: Removal ↓)"
OTHERS, DEPTH = "other things", "denials above"


def edits(families=FAMILIES, levels=None):
    """levels: id -> (other things, denials above)."""
    rows = [{"id": key, "source_id": key, "family": families.get(key)} for key in "abcd"]
    for row in rows:
        row |= {"stays": True} if row["family"] == "double_negation" else {}
        row |= {"difficulty": dict(zip((OTHERS, DEPTH), levels[row["id"]], strict=True))} if levels else {}
    return rows


def figures_of(edits, scores=SCORES):
    return figures.of_table(runs.table(edits, scores), {})


def told(frame, *columns, **where):
    rows = frames.records(frames.select(frame, **where))
    return [tuple(row[name] for name in columns) for row in rows]


def test_a_removal_that_should_not_be_is_left_out_of_the_whole():
    def column(families, metric):
        rows = asked(runs.table(edits(families), SCORES)).where(metric=metric)
        values = (None if value != value else value for value in rows.values.tolist())
        return dict(zip(rows.frame["id"], values, strict=True))

    assert column(FAMILIES, "removal_vqa") == {"a": 1.0, "c": 1.0, "d": None}
    assert column(FAMILIES, "l1") == VALUES["l1"]
    assert {metric: column({}, metric) for metric in VALUES} == VALUES
    whole = {"task": "results", "metric": "removal_vqa"}
    assert told(figures_of(edits()), "value", "n", "unscored", **whole) == [(1.0, 2, 1)]


def test_every_family_has_its_own_figures_unscored_samples_counted():
    found = frames.select(figures_of(edits()), task="families")
    assert frames.values(found, "group") == ["plain", f"double_negation{STAYS}", "implicit"]
    rows = told(found, "group", "metric", "value", "n", "unscored")
    assert (f"double_negation{STAYS}", "removal_vqa", 0.0, 1, 0) in rows
    assert ("implicit", "removal_vqa", 1.0, 1, 1) in rows
    assert ("implicit", "l1", pytest.approx(0.35), 2, 0) in rows
    assert told(figures_of(edits({})), "group", task="families") == []


def test_a_family_is_read_hashed_and_turns_the_target_round(make_data):
    plain = loading.load(str(make_data(2, 1)))
    folder = with_families(make_data(2, 1, name="other"), ["double_negation", "implicit"])
    found = loading.load(str(folder))
    first, second = found.samples
    assert (first.family, first.stays, second.family, second.stays) == (
        "double_negation", True, "implicit", False,
    )  # fmt: skip
    assert first.source_path == first.sample_path
    assert second.source_path != second.sample_path
    assert found.records_sha256 != plain.records_sha256 == records_hash(plain.samples)
    assert plain.samples[0].family is None
    with pytest.raises(UserError, match=r"'implict' in .*did you mean 'implicit'"):
        loading.load(str(with_families(make_data(2, 1), ["implicit", "implict"])))


def test_the_table_has_a_row_per_family_and_says_what_must_stay(make_data, evaluate, tmp_path):
    def run(data, name):
        return evaluate(
            "--editor", "identity", "--data", data, "--out", tmp_path / name, "--device", "cpu", "--metrics",
            "removal_vqa", "--models.vqa", "tests.rehearsal:no", "--control", "none",
        )  # fmt: skip

    folder = make_data(4, 1)
    assert "By family" not in run(folder, "plain").stdout
    assert not any("family" in edit for edit in runs.edits_of(tmp_path / "plain" / "identity" / "negative"))
    done = run(with_families(folder, ["plain", "double_negation", "implicit", "implicit"]), "out")
    assert done.code == 0, done.stderr
    table = done.stdout.split("## By family of negation")[1]
    assert table.index("| plain") < table.index(f"double_negation{STAYS}")
    found = frames.read(tmp_path / "out" / "identity" / "negative" / "figures.csv")
    assert told(found, "n", task="results", metric="removal_vqa") == [(3,)]
    assert told(found, "n", task="families", metric="removal_vqa") == [(1,), (1,), (2,)]


def test_edits_have_a_figure_for_every_difficulty_by_family_and_of_all_together():
    levels = {"a": (0, 0), "b": (0, 0), "c": (0, 0), "d": (2, 1)}
    made = told(
        figures_of(edits(levels=levels)), "group", "axis", "level", "value", task="difficulty", metric="l1"
    )
    assert made == [
        (group, axis, level, pytest.approx(value))
        for group, axis, level, value in (
            ("all families", OTHERS, "0", 0.2), ("plain", OTHERS, "0", 0.1),
            ("double_negation", OTHERS, "0", 0.2), ("implicit", OTHERS, "0", 0.3),
            ("all families", DEPTH, "0", 0.2), ("all families", DEPTH, "1", 0.4), ("plain", DEPTH, "0", 0.1),
            ("double_negation", DEPTH, "0", 0.2), ("implicit", DEPTH, "0", 0.3),
            ("implicit", DEPTH, "1", 0.4),
        )
    ]  # fmt: skip
    assert told(figures_of(edits()), "group", task="difficulty") == []


def test_removal_by_difficulty_is_that_of_objects_that_must_go():
    made = figures_of(edits(levels=dict.fromkeys("abcd", (0, 0))))
    where = {"task": "difficulty", "metric": "removal_vqa", "axis": DEPTH}
    rows = told(made, "group", "value", "n", "unscored", **where)
    assert [group for group, *_ in rows] == ["all families", "plain", "implicit"]
    assert rows[0] == ("all families", 1.0, 2, 1)


def test_below_a_denial_a_family_has_figures_of_its_own():
    levels = {"a": (0, 0), "b": (0, 1), "c": (0, 0), "d": (0, 1)}
    rows = edits(dict.fromkeys("abcd", "neither_nor"), levels)
    rows[3]["stays"] = True
    assert told(figures_of(rows), "group", "n", task="families", metric="l1") == [
        ("neither_nor", 2), ("neither_nor below a denial", 1), (f"neither_nor below a denial{STAYS}", 1),
    ]  # fmt: skip


def test_both_difficulties_of_edits_are_drawn_and_stand_in_a_table():
    rows = edits(dict.fromkeys("abcd", "scoped"), {"a": (0, 0), "b": (1, 0), "c": (0, 1), "d": (0, 1)})
    obeyed = [{"id": key, "metric": "obeyed", "value": 1.0, "reason": ""} for key in "abcd"]
    made = frames.label(figures_of(rows, obeyed), model="magicbrush", variant="negative")
    section = sections.families()
    assert [plot.key for plot in section.plots if len(plot.shown(made))] == ["other_things", "denials_above"]
    assert "how many" in section.tables[1].sheet(made).columns
