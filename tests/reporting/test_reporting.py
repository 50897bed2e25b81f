"""The reporting room alone: figures of a counting benchmark, and every file of it."""

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from nein import statistics
from nein.engine import images
from nein.loading.errors import UserError
from nein.reporting import cards, figures, page, tables
from nein.reporting.scores import ScoreTable

VARIANTS = tables.Column(by="variant", where={"metric": "accuracy"})
TABLES = (tables.Table("accuracy", "Accuracy", (tables.Row("model"),), (VARIANTS, *tables.COUNTS), {}),)


def rows(right):
    """Forty answers about twenty pictures; one could not be read."""
    return [
        {
            "id": f"{number}-{variant}", "source": f"p{number}", "variant": variant,
            "value": None if number == 19 and variant == "negated" else float(number < right),
            "reason": "no number in the answer" if number == 19 and variant == "negated" else "",
        }
        for number in range(20)
        for variant in ("original", "negated")
    ]  # fmt: skip


@pytest.fixture
def frame():
    return figures.concat(
        figures.with_columns(ScoreTable.from_rows(rows(right)).figures(), benchmark="counting", model=model)
        for model, right in {"sure": 20, "unsure|er": 12}.items()
    )


def test_the_frame_is_tidy_and_keeps_every_digit_through_a_file(frame, tmp_path):
    assert list(frame.columns[:4]) == ["benchmark", "model", "metric", "variant"]
    assert len(frame) == 4
    negated = figures.pick(frame, model="unsure|er", variant="negated")
    assert negated is not None
    expected = statistics.bounded_mean([float(n < 12) for n in range(19)], list(range(19)))
    assert expected is not None
    assert {key: negated[key] for key in asdict(expected)} == asdict(expected)
    assert (negated["n"], negated["unscored"]) == (19, 1)
    assert figures.read_reasons(negated) == {"no number in the answer": 1}
    figures.write(tmp_path / "figures.csv", frame)
    pd.testing.assert_frame_equal(figures.read(tmp_path / "figures.csv"), frame)


def test_text_that_a_spreadsheet_would_run_is_quoted_and_comes_back(tmp_path):
    named = {"model": "=1+1", "metric": "NA", "variant": "|x"}
    given = figures.frame([figures.number(-0.5, unit="", **named)])
    text = figures.to_csv(given)
    assert "'=1+1,NA,'|x," in text
    assert "-0.5" in text.replace("'-0.5", "")
    figures.write(tmp_path / "figures.csv", given)
    pd.testing.assert_frame_equal(figures.read(tmp_path / "figures.csv"), given)
    for broken in ('value\n"no number', "model,metric\na,b\n", "", "n,value\n1,2\n"):
        (tmp_path / "broken.csv").write_text(broken)
        with pytest.raises(UserError, match="holds no figures"):
            figures.read(tmp_path / "broken.csv")


def test_nothing_scored_is_a_figure_without_a_value():
    found = ScoreTable.from_rows([{"id": "a", "value": None, "reason": "broken"}]).figures()
    assert figures.to_csv(found).splitlines()[1].startswith("accuracy,0,1,,,")
    assert tables.format_estimate(figures.records(found)[0]) == "–"
    assert len(figures.frame([])) == len(figures.concat([])) == 0


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        ((0.884, 0.871, 0.896), {}, "88.4 [87.1, 89.6]"),
        ((0.884, 0.871, 0.897), {"interval": "reach"}, "88.4 ± 1.3"),
        ((0.02, 0.001, 0.09), {"interval": "reach"}, "2.0 [0.1, 9.0]"),
        ((0.884, None, None), {"interval": "reach"}, "88.4"),
        ((0.884, 0.871, 0.896), {"interval": "none"}, "88.4"),
        ((0.8844, 0.5, 0.9), {"digits": 2}, "88.44 [50.00, 90.00]"),
        ((None, None, None), {}, "–"),
    ],
)
def test_a_figure_has_one_text(given, options, expected):
    value, low, high = given
    assert (
        tables.format_estimate({"value": value, "low": low, "high": high, "unit": "%"}, **options) == expected
    )


def test_units_decide_digits_and_counts_show_ranges():
    assert tables.format_number(0.4321, "") == "0.43"
    assert tables.format_number(0.4321, "points", sign=True) == "+43.2"
    assert tables.p_value()([{"p": 0.0004}]) == "< 0.001"
    assert tables.count()([{"n": 1234567}]) == "1234567"
    assert tables.count()([{"n": 48}, {"n": 46}, {"n": 12.5}]) == "12.5-48"
    assert tables.count()([{"n": None}]) == ""


def test_a_table_shows_what_is_there_and_leaves_out_what_says_nothing(frame):
    [table] = TABLES
    sheet = table.sheet(frame)
    assert sheet.columns == ["model", "original", "negated", "scored"]
    assert sheet.rows[1][0] == "unsure|er"
    assert sheet.rows[1][1].startswith("60.0 [")
    assert sheet.rows[1][3:] == ["19-20 of 20"]
    only = table.sheet(figures.select(frame, variant="negated"))
    assert only.columns == ["model", "negated", "scored"]
    assert tables.make_sheets([table], frame[:0]) == []
    assert "unsure\\|er" in tables.format_markdown([sheet], "t")
    assert "Accuracy\nmodel" in page.format_headline(frame, TABLES)


@pytest.mark.parametrize(("texts", "fit"), [([], 3), (["One sentence. " * 30], 2)])
def test_of_long_tables_a_screen_shows_the_first_rows(frame, texts, fit):
    many = figures.concat([figures.with_columns(frame, model=f"model {n}") for n in range(40)])
    lines = page.format_headline(many, TABLES * fit * 2, texts, ["the rest: table.md"]).splitlines()
    assert 20 <= len(lines) <= page.LINES
    assert lines.count("Accuracy") == fit
    assert lines[3].startswith("model 0 ")
    shown = sum(line.startswith("model ") for line in lines) - fit  # without the heads
    left = [int(line.split()[1]) for line in lines if line.startswith("... ")]
    assert shown + sum(left) == fit * 40
    assert lines[-1] == "the rest: table.md"


def test_the_widest_and_the_smallest_gap_are_a_sentence():
    def said(affirmed=(), **gaps):
        rows = []
        for name, gap in gaps.items():
            estimate = {"value": gap, "low": gap - 0.1, "high": gap + 0.1}
            rows += figures.gap(dict(affirmed).get(name, 0.6), 0.1, estimate, model=name)
        return tables.describe_widest(figures.frame(rows), quantity="accuracy", change="x becomes y")

    loss = "accuracy goes from 60.0 % to 10.0 % when x becomes y: a gap of 50.0 [40.0, 60.0] points"
    most = f"models, one loses most: {loss}"
    assert said(three=0.1, one=0.5, two=0.2) == f"Of 3 {most}; three loses least: 10.0 [0.0, 20.0]."
    assert said({"failing": 0.2}, failing=0.0, one=0.5) == f"Of 2 {most}."
    assert said(one=0.5) == f"With one, {loss}."
    assert said() is None


def test_a_thumbnail_stands_in_every_place_in_order_or_why_there_is_none(tmp_path):
    broken, failed = tmp_path / "broken.png", {"none": "failed: <b>é</b>\n"}
    broken.write_bytes(b"no picture")
    paths = [tmp_path / f"a\n{number}é.png" for number in range(12)]
    for number, path in enumerate(paths):
        images.write_png(path, np.full((9, 8, 3), 20 * number, np.uint8))
    samples = [[str(path), str(paths[0]), str(broken), failed] for path in paths]
    here = list(cards.read_thumbnails(iter(samples * 9), 128))
    assert len(here) == 108
    assert [row[3] for row in here] == [failed] * 108
    assert "this is not an image file" in here[0][2]["none"]
    assert len({row[0] for row in here}) == 12
    assert here[5][1] == here[0][0] == cards.make_thumbnail(np.zeros((9, 8, 3), np.uint8), 128)
    assert list(cards.read_thumbnails(samples, 0)) == [[]] * 12
