"""A benchmark of one module, one YAML file and one entry point is known to every command."""

import csv
import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

import nein
from nein.engine.run import Executor
from tests.benchmarks import counting
from tests.helpers import commands, packages


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    packages.install(folder, {"nein.benchmarks": {"counting": "tests.benchmarks.counting:COUNTING"}})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


@pytest.fixture(scope="module")
def whole(plugin, tmp_path_factory):
    out = tmp_path_factory.mktemp("counting") / "whole"
    assert commands.exit_code("counting", "--out", out) == 0
    return out


def figures(out, task="results"):
    with (out / "figures.csv").open(newline="") as file:
        return {row["variant"]: row for row in csv.DictReader(file) if row["task"] == task}


def test_table_csv_page_and_resumable_folder_come_by_themselves(whole):
    assert "| nano:negvqa" in (whole / "table.md").read_text()
    rows = figures(whole)
    assert set(rows) == {"affirmed", "denied"}
    assert all(int(row["n"]) + int(row["unscored"]) == 48 for row in rows.values())
    assert commands.exit_code("report", whole, "-o", whole.with_name("page.html"), "--formats", "html") == 0
    page = whole.with_name("page.html").read_text()
    assert "Accuracy" in page
    assert not re.search(r"(?:src|href)=\"https?:", page)
    assert len(list(whole.glob("*/answers/*/*.jsonl"))) == 6


def test_a_folder_with_runs_of_another_benchmark_is_refused_and_stays(whole, capsys):
    before = (whole / "table.md").read_bytes()
    for out in (whole, whole / "nano-negvqa"):
        refused = commands.outcome(capsys, "eval", "--editor", "identity", "--limit", "1", "--out", out)
        assert (refused.code, "holds runs of counting; choose another --out" in refused.stderr) == (2, True)
    assert (whole / "table.md").read_bytes() == before


LINES = {
    "counting": ("counting", "--limit", "2"),
    "eval": ("eval", "--editor", "identity", "--metrics", "l1", "--control", "none", "--limit", "2"),
    "negvqa": ("negvqa", "--model", "nano:negvqa", "--questions", "1", "--blind", "0"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_finished_command_given_again_reads_its_manifest_and_no_block(name, tmp_path, capsys):
    line, opened = [*LINES[name], "--device", "cpu", "--out", str(tmp_path / "out")], []

    def audit(event, given):
        if event == "open" and opened is not None and str(given[0]).startswith(str(tmp_path)):
            opened.append(Path(str(given[0])).relative_to(tmp_path).as_posix())

    first = commands.outcome(capsys, *line)
    assert first.code == 0, first.stderr
    sys.addaudithook(audit)
    opened.clear()
    again = commands.outcome(capsys, *line)
    counted = Counter(opened)
    assert (again.code, again.stdout) == (0, first.stdout)
    assert "Nothing was computed" in again.stderr
    assert not [file for file in counted if re.search(r"/\d{6}\.jsonl$|\.png$|/notes/|table\.md$", file)]
    manifests = {file: count for file, count in counted.items() if file.endswith("manifest.json")}
    assert manifests
    assert max(manifests.values()) <= 2
    files = (min((tmp_path / "out").rglob("000000.jsonl")), tmp_path / "out" / "table.md")
    before = [file.read_bytes() for file in files]
    for file in files:  # what is not as it was left is made again
        file.unlink()
    assert commands.exit_code(*line) == 0
    assert [file.read_bytes() for file in files] == before


def test_a_report_may_be_of_every_finished_run_of_the_folder(whole, tmp_path):
    shutil.copytree(whole, out := tmp_path / "out")
    shutil.copytree(whole / "nano-negvqa", out / "half")
    manifest = out / "half" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "status": "running"}))

    class Whole(counting.Counting):
        reports_all, headline = True, ()

    config = counting.CountingConfig.create(model="nano:negvqa-negated", out=out, device="cpu", limit=8)
    said = Whole()(config, Executor("cpu"))
    assert isinstance(said, str)
    for words in ("nano:negvqa ", "nano:negvqa-negated ", "not complete: out/half."):
        assert words in said


@pytest.fixture(scope="module")
def two(whole):
    words = ("counting", "--model", "nano:negvqa-negated", "--out", whole.parent / "two")
    assert commands.exit_code(*words) == 0
    return whole.parent / "two"


def test_the_gap_is_paired_and_in_the_report_of_finished_runs(whole, two, tmp_path, capsys):
    code, said, _ = commands.outcome(capsys, "report", whole, two, "--out", tmp_path / "page.html")
    assert code == 0
    assert "nano:negvqa-negated" in said
    assert "Negation gap" in (tmp_path / "page.html").read_text()
    gap = figures(whole, "gap")
    assert float(gap["gap"]["value"]) == pytest.approx(
        float(gap["affirmed"]["value"]) - float(gap["denied"]["value"])
    )
    words = ("report", whole, "--labels", "x.csv", "--out", tmp_path / "page.html")
    assert "--labels does not apply to runs of Counting" in commands.outcome(capsys, *words).stderr


def test_runs_are_compared_sample_by_sample_and_by_their_gaps(whole, two, capsys):
    code, said, _ = commands.outcome(capsys, "compare", whole, two, "--format", "csv")
    assert code == 0
    rows = [row for row in csv.DictReader(said.splitlines()) if row["statistic"] == "difference"]
    assert {row["variant"] for row in rows} == {"affirmed", "denied", "gap"}
    assert {row["variant"]: row["family"] for row in rows} == {"affirmed": "2", "denied": "2", "gap": "1"}
    own = [float(figures(out, "gap")["gap"]["value"]) for out in (whole, two)]
    [gap] = [row for row in rows if row["variant"] == "gap"]
    assert float(gap["value"]) == pytest.approx(own[0] - own[1])
    assert "Paired comparisons" in commands.outcome(capsys, "compare", whole, two).stdout


def test_it_is_listed_fetched_and_a_function(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "nein counting --preset nano" in commands.outcome(capsys, "list", "benchmarks").stdout
    assert "nein counting " in commands.outcome(capsys, "--help").stdout
    words = ("fetch", "counting", "--preset", "nano", "--dry-run")
    assert commands.exit_code(*words) == 0
    assert counting.CountingConfig(model="owner/name").needs()[0].reference == "owner/name"
    result = nein.run("counting", limit=8, device="cpu", out=tmp_path / "out")
    assert list(result.table()["model"]) == ["nano:negvqa"]
    assert set(result.figures["task"]) == {"results", "gap"}
    with pytest.raises(ValueError, match="did you mean 'counting'"):
        nein.run("countin")
