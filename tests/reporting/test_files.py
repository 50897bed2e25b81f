import csv
import io
import json
import re
from pathlib import Path

import pytest

from nein.loading.errors import UserError
from nein.reporting import page as pages
from nein.reporting import tables
from nein.reporting.tables import Sheet
from tests.helpers import drawings
from tests.helpers.commands import outcome
from tests.reporting import made
from tests.reporting.conftest import report


def test_the_page_is_one_file_with_a_policy_and_without_any_address(page):
    html = page.read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    text = policy.group(1).replace("&#39;", "'")
    assert text.startswith("default-src 'none'; script-src 'sha256-")
    assert "file:" not in text
    assert "unsafe" not in text
    assert not re.search(r'(?:src|href)="(?:https?:)?//', html)
    assert not (page.parent / "report-data").exists()


def test_the_headline_table_stands_open_above_the_samples(page):
    html = page.read_text()
    [table] = re.findall(r'<table id="answer-(\w+)">', html)
    assert html.index(f'id="answer-{table}"') < html.index('id="cards"') < html.index("<details")
    same = [
        re.search(rf'<table id="{name}-{table}">(.*?)</table>', html, re.DOTALL)
        for name in ("answer", "table")
    ]
    assert len({match.group(1) for match in same}) == 1


def test_writing_twice_gives_the_same_bytes(out, page, tmp_path):
    report([str(out), "-o", str(tmp_path / "report.html"), "--protocols"])
    for path in filter(Path.is_file, tmp_path.iterdir()):
        assert path.read_bytes() == (page.parent / path.name).read_bytes(), path.name
    assert {p.suffix for p in tmp_path.iterdir()} == {".html", ".md", ".csv", ".png", ".svg", ".pdf", ""}


def test_old_side_car_files_go_and_strangers_stay(tmp_path, monkeypatch):
    drawings.sketch(monkeypatch)
    few = made.records(2, 1)
    data = made.write_data(tmp_path / "data", few)
    made.write_run(tmp_path / "runs", data, "ip2p", "negative", few, {"l1": lambda i: 0.1})
    line = [str(tmp_path / "runs"), "-o", str(tmp_path / "r.html"), "--formats", "html"]
    report([*line, "--embed", "0"])
    folder = tmp_path / "r-data"
    (folder / "00099.js").write_text("old")
    report([*line, "--embed", "0"])
    assert not (folder / "00099.js").exists()
    report(line)
    assert not folder.exists()
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    report(line)
    assert (folder / "thesis.txt").read_text() == "mine"


def test_a_page_without_pictures_and_without_data_still_has_its_numbers(out, tmp_path, rows):
    alone = tmp_path / "alone"
    made.write_run(
        alone, tmp_path / "nowhere", "ip2p", "negative", rows, {"l1": lambda i: 0.1 * (i % 3)}, pictures=False
    )
    report([str(alone), "-o", str(tmp_path / "r.html"), "--formats", "html,csv"])
    html = (tmp_path / "r.html").read_text()
    assert "Images of samples and targets are missing" in html
    assert "the file is missing" in html
    report([str(alone), "-o", str(tmp_path / "bare.html"), "--formats", "html", "--thumbnails", "0"])
    assert "the file is missing" not in (tmp_path / "bare.html").read_text()


def test_json_in_a_script_element_cannot_end_it():
    assert pages.script_json({"x": [float("nan"), 0.1]}) == '{"x":[null,0.1]}'  # no JSON has it
    text = pages.script_json({"x": "</script><!--\u2028&"})
    assert "<" not in text
    assert "\u2028" not in text
    assert json.loads(text) == {"x": "</script><!--\u2028&"}


NASTY = Sheet("k", "T & t", ["a|b", "c"], [["x|y<b>\n\x1b[31m", "50% _{}^~\\$#"]], "n")


def test_tables_escape_what_their_format_would_obey():
    markdown = tables.format_markdown([NASTY], "t")
    assert "x\\|y&lt;b>" in markdown
    assert "\x1b" not in markdown
    assert tables.escape_markdown("[a](b)") == "[a]\\(b)"  # no link, and one backslash only
    assert tables.escape_latex("50% _{}^~\\$#&") == (
        r"50\% \_\{\}\textasciicircum{}\textasciitilde{}\textbackslash{}\$\#\&"
    )
    long = Sheet("long", "L", ["a"], [[str(i)] for i in range(50)])
    assert r"\begin{longtable}{r}" in tables.format_latex(long)
    assert r"\begin{table}" in tables.format_latex(NASTY)


def test_latex_has_numbers_at_the_right_the_best_in_bold_and_a_real_minus():
    rows = [
        ["a", "told", "24.6 [18.9, 31.0]", "1.5 ± 0.2", "-3.1 [-4.0, 2.0]", "5-6"],
        ["b", "told", "20.4 [15.1, 26.7]", "0.5 ± 0.1", "2.0 [1.0, 3.0]", "6"],
        ["a", "denied", "99.0 [98.0, 99.9]", "–", "0.0", "6"],
    ]
    sheet = Sheet("t", "T", ["model", "how", "Removal ↑", "FID ↓", "change", "n"], rows, names=2)
    text = tables.format_latex(sheet)
    assert r"\begin{tabular}{llrrrr}" in text
    assert r"a & told & \textbf{24.6 [18.9, 31.0]} & 1.5 $\pm$ 0.2 & $-$3.1 [$-$4.0, 2.0] & 5-6 \\" in text
    assert r"b & told & 20.4 [15.1, 26.7] & \textbf{0.5 $\pm$ 0.1} & 2.0" in text
    assert "a & denied & 99.0 [98.0, 99.9] & -- &" in text  # nothing to be better than
    assert r"a & told & \textbf{24.6} & 1.5 & $-$3.1 & 5-6 \\" in tables.format_latex(sheet, compact=True)


def test_compare_has_the_gap_between_editors_as_a_row(tmp_path, rows, capsys):
    told = {"ip2p": lambda i: float(i % 4 != 0), "magicbrush": lambda i: float(i % 5 != 0)}
    denied = {
        "ip2p": lambda i: float(i % 4 == 0), "magicbrush": lambda i: None if i == 2 else float(i % 2 == 0),
    }  # fmt: skip
    for track, of in (("remove", told), ("negative", denied)):
        for editor, value in of.items():
            made.write_run(
                tmp_path, tmp_path / "data", editor, track, rows, {"removal_vqa": value}, pictures=False
            )
    code, text, _ = outcome(capsys, "compare", tmp_path, "--format", "csv")
    assert code == 0
    shown = [row for row in csv.DictReader(io.StringIO(text)) if row["variant"] == "gap"]
    gaps = {row["statistic"]: float(row["value"]) for row in shown}
    scored = [i for i in range(len(rows)) if i != 2]
    own = [sum(told[e](i) - denied[e](i) for i in scored) / len(scored) for e in ("ip2p", "magicbrush")]
    first, second = own if shown[0]["first"] == "ip2p/negative" else own[::-1]
    assert gaps == pytest.approx({"first": first, "second": second, "difference": first - second})
    assert {row["unscored"] for row in shown if row["statistic"] == "difference"} == {"1"}


def test_runs_on_different_data_and_unfinished_runs_are_not_mixed(out, tmp_path, rows):
    other = made.write_run(
        tmp_path / "o", tmp_path / "d", "ip2p", "negative", rows, {"l1": lambda i: 0.1}, pictures=False
    )
    other.update(data={**(other.manifest() or {})["data"], "records_sha256": "y"})
    with pytest.raises(UserError, match="different data"):
        report([str(out), str(tmp_path / "o"), "-o", str(tmp_path / "r.html")])
    other.update(status="incomplete")
    with pytest.raises(UserError, match="is not complete"):
        report([str(tmp_path / "o"), "-o", str(tmp_path / "r.html")])
