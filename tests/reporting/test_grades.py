"""A report on edited pictures cites how well its judge answers negated questions."""

import csv

import pytest

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


def test_grades_of_a_judge_are_cited_with_their_figures_and_how_it_was_asked(grade, tmp_path):
    asked = ("--judge", "tests.rehearsal:no", "--judge-asking", "options", "--scoring", "generated")
    where = ("--data", write_questions(tmp_path / "questions"), "--out", grade.parent, "--formats", "csv")
    assert run("--model", "judge", *asked, *where) == 0
    very, out = Folder(grade).manifest()["models"]["model"]["judge"], tmp_path / "report.html"
    made_of = str(runs(tmp_path, very))
    assert "Report: " in str(report([made_of, "-o", str(out), "--judge-grade", str(grade.parent)]))
    with out.with_suffix(".csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == "negvqa"]
    values = {(row["statistic"], row["value"], row["n"]) for row in rows}
    assert {("original questions", "0.5", "12"), ("negated questions", "0.5", "12")} <= values
    assert "The judge on NegVQA" in out.read_text()
    table = out.with_suffix(".md").read_text().partition("## The judge on NegVQA")[2]
    [other] = [line for line in table.splitlines() if "about each option" in line]
    assert "none of these runs" in other
    assert other.split("|")[-2].strip() == "24"  # no to every option: nothing is scored
    [ours] = [line for line in table.splitlines() if "for the letter" in line]
    assert "| ip2p/negative" in ours
