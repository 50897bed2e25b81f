"""A report on edited pictures cites how well its judge answers negated questions."""

import csv

import pytest

from nein.engine.errors import UserError
from nein.engine.folder import Folder
from tests.negvqa.tiny import run, write_questions
from tests.reporting import made
from tests.reporting.conftest import report


@pytest.fixture(scope="module")
def grade(tmp_path_factory):
    root = tmp_path_factory.mktemp("grade")
    questions = write_questions(root)
    assert run("--model", "judge", "--judge", "tests.rehearsal:b", "--judge-asking", "letters",
               "--data", questions, "--out", root / "out", "--formats", "csv") == 0  # fmt: skip
    return root / "out" / "judge-letters"


def runs(root, fingerprint):
    rows = made.records(4, 2)
    data = made.write_data(root / "data", rows)
    values = {"removal_vqa": lambda i: float(i % 2)}
    made.write_run(root / "runs", data, "ip2p", "negative", rows, values,
                   models={"vqa": {"fingerprint": fingerprint}})  # fmt: skip
    return root / "runs"


def test_the_grade_of_the_very_judge_is_cited_with_its_figures(grade, tmp_path):
    known = Folder(grade).manifest()["models"]["model"]
    out = tmp_path / "report.html"
    assert "Report: " in str(
        report([str(runs(tmp_path, known["judge"])), "-o", str(out), "--judge-grade", str(grade)])
    )
    assert "The judge on NegVQA" in out.read_text()
    with out.with_suffix(".csv").open(newline="") as file:
        rows = {r["statistic"]: r for r in csv.DictReader(file) if r["task"] == "negvqa"}
    assert float(rows["original questions"]["value"]) == float(rows["negated questions"]["value"]) == 0.5
    assert float(rows["negation gap"]["value"]) == 0.0
    assert int(rows["negated questions"]["n"]) == 12
    markdown = out.with_suffix(".md").read_text()
    assert "| ip2p/negative" in markdown.partition("## The judge on NegVQA")[2]
    assert "for the letter" in markdown.partition("## The judge on NegVQA")[2]


def test_every_grade_of_a_folder_is_cited_with_how_the_judge_was_asked(tmp_path):
    questions = write_questions(tmp_path / "data-of-grade")
    for asking in ("options", "letters"):
        how = ("--judge", "tests.rehearsal:no", "--judge-asking", asking, "--scoring", "generated")
        where = ("--data", questions, "--out", tmp_path / "g", "--formats", "csv")
        assert run("--model", "judge", *how, *where) == 0
    out = tmp_path / "report.html"
    assert "Report: " in str(
        report([str(runs(tmp_path, "other")), "-o", str(out), "--judge-grade", str(tmp_path / "g")])
    )
    table = out.with_suffix(".md").read_text().partition("## The judge on NegVQA")[2]
    rows = [line for line in table.splitlines() if "none of these runs" in line]
    assert ["about each option" in row for row in rows] == [True, False]
    # No to every option, and no letter: nothing is scored.
    assert [row.split("|")[-2].strip() for row in rows] == ["24", "24"]


def test_a_folder_without_a_grade_is_refused(grade, tmp_path):
    where = runs(tmp_path, "other")
    with pytest.raises(UserError, match="no grade of a judge"):
        report([str(where), "-o", str(tmp_path / "r.html"), "--judge-grade", str(grade / "answers")])
