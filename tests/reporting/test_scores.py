"""The table of scores: rows in, estimates and pairs out."""

import pytest

from nein import statistics
from nein.loading.errors import UserError
from nein.reporting import figures as frames
from nein.reporting.scores import ScoreTable

ROWS = [
    {"id": "b", "source": "p", "variant": "told", "kind": "x", "value": 1.0},
    {"id": "a", "source": "p", "variant": "told", "value": None, "reason": "=broken"},
    {"id": "c", "source": "q", "variant": "told", "kind": "y", "value": 0.5},
    {"id": "c", "source": "q", "variant": "denied", "kind": "x", "value": 0.0},
    {"id": "b", "source": "p", "variant": "denied", "kind": "x", "value": 1.0},
]


@pytest.fixture
def table():
    return ScoreTable.from_rows(iter(ROWS), ["kind"])


def test_rows_are_chosen_by_their_entries_and_by_having_none(table):
    assert table.where(id="b").values.tolist() == [1.0, 1.0]
    assert table.where(id="b", variant="told").values.tolist() == [1.0]
    assert len(table.where(kind=None)) == 1
    assert len(table.where(kind=("x", "y"))) == 4
    assert len(table.where(kind="z")) == len(ScoreTable.from_rows([]).where(id="b")) == 0
    assert table.names("kind") == ["x", "y"]
    assert table.where(variant="denied").names("id") == ["c", "b"]
    assert [(key, len(part)) for key, part in table.groups("variant", "kind")] == [
        (("told", "x"), 1), (("told", ""), 1), (("told", "y"), 1), (("denied", "x"), 2),
    ]  # fmt: skip


def test_a_file_of_scores_is_the_table_to_the_last_digit(table, tmp_path):
    table.frame["value"] *= 1 / 3
    table.write(tmp_path / "scores.csv")
    assert "'=broken" in (tmp_path / "scores.csv").read_text()
    read = ScoreTable.read(tmp_path / "scores.csv", ["kind", "extra"])
    same = table.frame.assign(extra=None)[[*read.frame]].astype(object).fillna("")
    assert read.frame.astype(object).fillna("").values.tolist() == same.values.tolist()
    assert [read.names(name) for name in ("id", "kind")] == [table.names(name) for name in ("id", "kind")]
    assert read.estimate() == table.estimate()
    for text, said in (("value\nx\n", "holds no scores"), (None, "does not exist")):
        (tmp_path / "scores.csv").unlink() if text is None else (tmp_path / "scores.csv").write_text(text)
        with pytest.raises(UserError, match=said):
            ScoreTable.read(tmp_path / "scores.csv")


def test_an_estimate_counts_what_is_unscored_with_the_reason(table):
    told = table.where(variant="told")
    assert told.estimate() == statistics.bounded_mean([1.0, 0.5], ["p", "q"])
    assert told.estimate(None) == statistics.mean([1.0, 0.5], ["p", "q"])
    figure = told.figure(task="results")
    assert (figure["value"], figure["n"], figure["unscored"]) == (0.75, 2, 1)
    assert figure["reasons"] == {"=broken": 1}
    assert table.where(id="a").estimate() is None
    by_variant = frames.records(table.figures(model="m"))
    assert [(row["metric"], row["variant"], row["value"]) for row in by_variant] == [
        ("accuracy", "told", 0.75), ("accuracy", "denied", 0.5),
    ]  # fmt: skip


def test_a_row_takes_some_tens_of_bytes(peak):
    def of(count):
        rows = ({**ROWS[n % 5], "id": str(n // 20), "source": str(n // 40)} for n in range(count))
        return peak(lambda: ScoreTable.from_rows(rows, ["kind"]))

    assert (of(22_000) - of(2_000)) / 20_000 < 120  # while it is made; a row alone takes 400
