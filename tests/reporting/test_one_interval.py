"""Every interval that is shown is one of the CSV, and the tests of a table are those that were asked for."""

import csv
import html
import io
import re

import pytest

from nein.benchmarks.compare import COMPARISONS, make_table
from nein.benchmarks.finished import compare
from nein.benchmarks.nein.config import CompareConfig
from nein.loading.errors import UserError
from nein.reporting import tables
from tests.helpers.commands import outcome
from tests.reporting import made

#: "75.0 [66.1, 82.3]", "11.2 ± 0.4".
SHOWN = re.compile(r"-?\d+\.\d+ (?:\[-?\d+\.\d+, -?\d+\.\d+\]|± \d+\.\d+)")


def rows_of(path):
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def visible(page):
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"(?s)<(script|style|svg)\b.*?</\1>", " ", text)
    return re.sub(
        r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text)).replace("$\\pm$", "±").replace("$-$", "-")
    )


def texts(row):
    numbers = {name: float(row[name]) for name in ("value", "low", "high")}
    figure = {**numbers, "unit": row["unit"]}
    return {tables.format_estimate(figure, interval=way) for way in ("ends", "reach")}


def test_every_interval_on_the_page_in_latex_and_in_markdown_is_that_of_a_row_of_the_csv(page):
    rows = [row for row in rows_of(page.with_suffix(".csv")) if row["low"] and row["high"]]
    allowed = {text for row in rows for text in texts(row)}
    latex = sorted(page.with_name("report-tables").glob("*.tex"))
    for paths in ([page], [page.with_suffix(".md")], latex):
        shown = {found for path in paths for found in SHOWN.findall(visible(path))}
        assert len(shown) > 20, paths
        assert shown <= allowed, (paths, shown - allowed)


def compared(*words):
    rows = csv.DictReader(io.StringIO(compare(CompareConfig.parse([*words, "--format", "csv"]))))
    return [row for row in rows if row["statistic"] == "difference"]


def test_the_family_of_a_comparison_is_its_metric_or_with_all_the_whole_table(out):
    runs = (str(out), "--track", "all", "--metrics", "l1,removal_vqa,retention_vqa")
    by_metric = compared(*runs)
    together = compared(*runs, "--family", "all")
    assert len(by_metric) == len(together) == 3 * 3  # three pairs of runs, three metrics
    assert {row["family"] for row in by_metric} == {"3"}
    assert {row["family"] for row in together} == {"9"}
    assert [row["p"] for row in by_metric] == [row["p"] for row in together]


def test_against_a_baseline_only_its_pairs_are_compared_and_corrected_for(out):
    runs = (str(out), "--track", "all", "--metrics", "removal_vqa")
    found = compared(*runs, "--baseline", "ip2p/remove")
    assert {(row["first"], row["second"]) for row in found} == {
        ("ip2p/negative", "ip2p/remove"),
        ("magicbrush/negative", "ip2p/remove"),
    }
    assert {row["family"] for row in found} == {"2"}
    # An editor is compared on every track that both have.
    found = compared(*runs, "--baseline", "ip2p")
    assert {(row["first"], row["second"]) for row in found} == {("magicbrush/negative", "ip2p/negative")}
    assert [row["p"] for row in found] == [row["p_holm"] for row in found]
    with pytest.raises(UserError, match="magic"):
        compare(CompareConfig.parse([*runs, "--baseline", "magik"]))


@pytest.mark.parametrize(("points", "code"), [(10, 3), (24, 0)])
def test_a_run_that_is_worse_than_the_baseline_by_more_than_allowed_exits_with_3(
    tmp_path, rows, capsys, points, code
):
    """Removal falls from 100 to 70 % of 70 samples, by 30 points [20, 43]; L1 is better, and no failure."""
    for editor, removed, error in (("full", lambda i: 1.0, 0.2), ("small", lambda i: float(i % 10 < 7), 0.1)):
        values = {"removal_vqa": removed, "l1": lambda i, error=error: error + 0.001 * (i % 5)}
        made.write_run(tmp_path, tmp_path / "data", editor, "negative", rows, values, pictures=False)
    words = ("compare", tmp_path, "--baseline", "full", "--fail-if-worse", points)
    done = outcome(capsys, *words)
    assert (done.code, done.stdout.startswith("Paired comparisons")) == (code, True)
    failed = [line for line in done.stderr.splitlines() if "worse than" in line]
    assert len(failed) == (code == 3)
    if failed:
        assert failed[0].startswith(
            "small/negative is worse than full/negative by more than 10: Removal (VQA) -30.0 ["
        )
    assert outcome(capsys, *words[:2], *words[4:]).code == 2  # worse than what?


def test_where_no_difference_could_be_significant_a_sentence_says_so(tmp_path):
    """Four pictures of one sample: the least p of a share is above 2 / 2^4 = 0.125."""
    few = made.records(4, 1)
    data = made.write_data(tmp_path / "data", few)
    for editor, value in (("ip2p", 1.0), ("magicbrush", 0.0)):
        made.write_run(
            tmp_path / "runs", data, editor, "negative", few, {"removal_vqa": lambda i, v=value: v}
        )
    text = compare(CompareConfig.parse([str(tmp_path / "runs"), "--format", "md"]))
    assert "With 4 source images, p of a share cannot be below 0.12" in text
    assert "never below 0.12 here" in text


def test_a_comparison_of_few_images_says_nothing_of_one_of_many():
    few = {"statistic": "difference", "p_least": 0.125, "family": 2, "clusters": 4}
    many = {**few, "p_least": 1e-9, "clusters": 100}
    assert "no difference can be significant" in make_table([few, few]).note
    assert make_table([few, many]).note == COMPARISONS.note
