import csv
import json
import re
import shutil
from collections import Counter
from functools import partial

import numpy as np
import pytest

from nein.benchmarks.negvqa.data import AnswersDir
from nein.benchmarks.negvqa.scores import read_answer as score_of
from nein.benchmarks.negvqa.stages import QuestionForm
from nein.datasets import negvqa as data
from nein.engine import images
from nein.engine.folder import Folder, find_runs
from nein.loading.errors import UserError
from nein.metrics.choices import Reply
from nein.metrics.judges.base import Answer
from tests.helpers.commands import exit_code
from tests.metrics.tiny import picture
from tests.negvqa.tiny import answers as answers_of
from tests.negvqa.tiny import figure, records, run, scores, write_questions


@pytest.fixture
def questions(tmp_path):
    return write_questions(tmp_path / "data")


def ask(vlms, questions, out, *more):
    return run(
        "--model", vlms / "llava", "--data", questions, "--out", out, "--batch-size", 4,
        "--max-new-tokens", 3, "--device", "cpu", *more,
    )  # fmt: skip


def folder_of(out):
    [folder] = map(AnswersDir, find_runs(out))
    return folder


def test_a_run_writes_answers_scores_figures_and_a_report_that_agree(vlms, questions, tmp_path, capsys):
    out = tmp_path / "out"
    assert ask(vlms, questions, out) == 0
    folder = folder_of(out)
    answers, read = answers_of(folder.path), scores(folder.path)
    assert [(row.id, row.variant) for row in answers] == [
        (str(n), variant)
        for n in (*range(10, 22, 2), *range(11, 22, 2))
        for variant in ("original", "negated")
    ]
    read = [row for row in read if row["metric"] == "accuracy"]
    assert len(read) == 24 * 2 * 2
    assert all(len(row.logprobs) == 2 and not row.error for row in answers)
    # The headline figure again, from the canonical file alone.
    own = [
        float(row["value"]) for row in read
        if (row["scoring"], row["protocol"], row["variant"]) == ("logprob", "fixed", "negated")
    ]  # fmt: skip
    what = {"scoring": "logprob", "protocol": "fixed", "variant": "negated", "category": "Average"}
    entry = figure(folder.path, task="accuracy", interval="clustered", **what)
    assert entry["value"] == pytest.approx(sum(own) / len(own))
    assert (entry["n"], entry["clusters"]) == (12, 6)
    assert exit_code("report", out, "--data", questions, "-o", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text()
    assert "What is not number 3?" in page
    day = folder.manifest()["invocations"][-1]["started"][:10]
    head = f"Data: questions.jsonl. n = 12 questions, each original and negated. Date: {day}."
    assert head in page
    assert "NegVQA, Table 1, and the models measured here" not in page
    assert "no number here is comparable with its Table 1" in page
    assert page.count('"pictures":[[') == 12
    assert not re.search(r"(?:src|href)=\"https?:", page)
    assert str(tmp_path) not in page
    assert {p.name for p in out.glob("*.png")} == {
        "accuracy.png", "gap.png", "outcomes.png",
    }  # fmt: skip
    assert "Negation gap" in capsys.readouterr().out


def test_only_the_data_decide_what_stands_beside_table_1(vlms, questions, tmp_path, monkeypatch):
    model = shutil.copytree(vlms / "llava", tmp_path / "Qwen2-VL-7B-Instruct")
    more = ("--model", model, "--preset", "paper", "--dtype", "float32", "--scoring", "logprob")
    published, out = dict(Counter(row["category"] for row in records())), tmp_path / "out"
    monkeypatch.setattr("nein.benchmarks.negvqa.report.is_negvqa", lambda data: data["subsets"] == published)
    assert run("--data", questions, "--out", out, "--device", "cpu", *more) == 0
    with (out / "figures.csv").open(newline="") as file:
        table = [row for row in csv.DictReader(file) if row["task"] == "table1"]
    assert len({(row["model"], row["variant"]) for row in table}) == 42
    assert "measured here" in (out / "table.md").read_text()


def test_a_missing_and_a_broken_picture_are_unscored_and_counted(vlms, questions, tmp_path):
    (questions.parent / "p1.png").unlink()
    (questions.parent / "p2.png").write_bytes(b"no picture")
    out = tmp_path / "out"
    assert ask(vlms, questions, out, "--scoring", "logprob") == 0
    answers = answers_of(folder_of(out).path)
    assert [row.id for row in answers if row.error] == [str(n) for n in (12, 12, 14, 14, 13, 13, 15, 15)]
    assert all(row.error.startswith("no picture") for row in answers if row.error)
    entry = figure(folder_of(out).path, task="accuracy", category="Average", protocol="fixed")
    assert (entry["n"], entry["unscored"]) == (8, 4)
    # Once the pictures are there, the same command asks for them only.
    fresh = write_questions(tmp_path / "fresh")
    for name in ("p1.png", "p2.png"):
        shutil.copy(fresh.parent / name, questions.parent / name)
    assert ask(vlms, questions, out, "--scoring", "logprob") == 0
    assert not any(row.error for row in answers_of(folder_of(out).path))


class Seer:
    """A judge that says yes to cats, more surely where the question is negated; it never doubts."""

    template, fingerprint = "plain", "seer"

    def describe(self):
        return {"kind": "vqa", "class": "Seer"}

    def ask(self, images, questions):
        self.asked = [question for row in questions for question in row]
        return [[self._one(question) for question in row] for row in questions]

    def _one(self, question):
        yes = 0.9 if "cat" in question else 0.4 if "not" in question else 0.6
        return Answer("Yes" if yes > 0.5 else "No", 1, yes * 0.5, (1 - yes) * 0.5)


def test_a_judge_is_asked_about_each_option_in_its_own_yes_no_question(questions, tmp_path, monkeypatch):
    seer, out = Seer(), tmp_path / "out"
    monkeypatch.setattr("nein.metrics.models.load_judge", lambda *a, **k: seer)
    asked = ("--model", "judge", "--judge", "tests.rehearsal:yes", "--data", questions, "--out", out)
    asked += ("--blind", 0)
    assert run(*asked, "--batch-size", 24) == 0
    assert seer.asked[:2] == [
        f'<image>\nDoes the caption "What is number 0? {word} 0" describe this image? Answer only yes or no'
        for word in ("cat", "dog")
    ]
    answers = answers_of(out / "judge")
    assert answers[0].each == ("Yes", "Yes")
    assert answers[0].text == "A: Yes, B: Yes"
    assert answers[0].logprobs == pytest.approx((np.log(0.9), np.log(0.6)))
    rows = [row for row in scores(out / "judge") if row["id"] == "10"]
    first = {(row["scoring"], row["protocol"], row["variant"]): row for row in rows}
    # Yes to both options of the original question: no letter in what is said, but one yes is likelier.
    assert first["generated", "fixed", "original"]["value"] == ""
    assert first["generated", "fixed", "original"]["reason"] == "yes to several options"
    assert first["generated", "paper", "original"]["value"] == "0.0"
    assert first["logprob", "fixed", "original"]["letter"] == "A"
    assert first["generated", "fixed", "negated"]["letter"] == "A"
    overall = {"protocol": "fixed", "category": "Average", "headline": "yes"}
    grade = figure(out / "judge", task="accuracy", variant="original", **overall)
    assert (grade["scoring"], grade["value"]) == ("logprob", 0.5)
    assert figure(out / "judge", task="gap", metric="gap", **overall)["n"] == 12
    # The other way of asking is another run beside it.
    assert run(*asked, "--judge-asking", "letters", "--scoring", "logprob") == 2
    assert run(*asked, "--judge-asking", "letters") == 0
    assert seer.asked[0].startswith("<image>\nQuestion: What is number 0?\nOptions: A. cat 0 B. dog 0")
    assert {path.parent.name for path in out.glob("*/figures.csv")} == {"judge", "judge-letters"}


def test_pictures_of_one_name_in_two_folders_are_two_pictures(tmp_path):
    rows = records(2)
    for number, row in enumerate(rows):
        row["image"] = f"{'xy'[number % 2]}/p.png"
    for folder in "xy":
        images.write_png(tmp_path / folder / "p.png", picture(3 if folder == "x" else 4))
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    items = data.load(str(file)).items
    assert {item.source for item in items} == {"x/p.png", "y/p.png"}
    inside = items[0].source
    rows[0]["image"] = str(tmp_path / "x" / "p.png")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    absolute = data.load(str(file), image_folder="/").items[0].source
    assert absolute.startswith("p.png-")
    assert str(tmp_path) not in absolute != inside


def test_two_files_with_other_columns_are_joined_and_a_report_of_them_finds_the_pictures(tmp_path):
    rows = records(2)
    joined = data.load(str(write_questions(tmp_path, rows)))
    for variant in ("original", "negated"):
        rows.reverse()
        own = [
            {"number": r["index"], "set": r["category"], "image": r["image"], "A": r["A"], "B": r["B"],
             "question": r[f"{variant}_question"], "answer": r[f"{variant}_answer"]}
            for r in rows
        ]  # fmt: skip
        (tmp_path / f"{variant}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    files = ("--data", tmp_path / "original.jsonl", "--negated", tmp_path / "negated.jsonl")
    named = ("--columns.index", "number", "--columns.category", "set")
    out = tmp_path / "out"
    assert run("--model", "mine=judge", "--judge", "tests.rehearsal:yes", *files, *named, "--out", out) == 0
    assert Folder(out / "mine").manifest()["identity"]["role"] == "judge"
    assert exit_code("report", out, *files, "-o", tmp_path / "page.html", "--formats", "html,csv") == 0
    assert (tmp_path / "page.csv").read_text() == (out / "figures.csv").read_text()
    assert (tmp_path / "page.html").read_text().count('"pictures":[[') == 4
    halves = partial(
        data.load, str(files[1]), negated=str(files[3]), columns={"index": "number", "category": "set"}
    )
    assert {item.id: item.questions for item in halves().items} == {i.id: i.questions for i in joined.items}
    files[3].write_text("")
    with pytest.raises(UserError, match=r"lacks question 1\d"):
        halves()


def test_a_judge_asked_for_letters_and_people_answer_the_same_questions(questions, tmp_path):
    file = tmp_path / "people.csv"
    file.write_text('index,original,negated\n10,A,the dog 0\n11,"(A)",A\n13,B,\n')
    out = tmp_path / "out"
    asked = ("--model", "judge", "--judge", "tests.rehearsal:b", "--judge-asking", "letters")
    assert run(*asked, "--answers-from", file, "--data", questions, "--out", out) == 0
    for variant, value, n, unscored in (("original", 2 / 3, 3, 0), ("negated", 1.0, 2, 1)):
        what = {"variant": variant, "category": "Average", "interval": "clustered", "protocol": "fixed"}
        entry = figure(out / "people", task="accuracy", **what)
        assert (entry["value"], entry["n"], entry["unscored"]) == (pytest.approx(value), n, unscored)
    # The judge says one letter to everything: right on one question of every pair.
    for name, share in {"both": 0.0, "only_original": 0.5, "only_negated": 0.5, "neither": 0.0}.items():
        entry = figure(out / "judge-letters", task="outcomes", metric=name, category="Average")
        assert (entry["value"], entry["n"]) == (share, 12)
    position = {"task": "position", "variant": "negated"}
    shares = [
        figure(out / "judge-letters", metric=name, **position)["value"] for name in ("answered", "right")
    ]
    assert shares == [0.0, 0.5]  # of A: it never says it
    assert Folder(out / "judge-letters").manifest()["models"]["model"]["judge"]
    assert "n = 3 to 12 of 12 questions" in (out / "table.md").read_text()
    file.write_text("index,original,negated\n10,B,B\n")
    assert run("--model", "", "--answers-from", file, "--data", questions, "--out", out) == 2
    assert run("--model", "", "--answers-from", f"new={file}", "--data", questions, "--out", out) == 0
    assert figure(out / "new", task="outcomes", metric="only_negated", category="Average")["n"] == 1


def test_options_that_pandas_takes_for_missing_vanish_under_paper_only(tmp_path):
    rows = [{**row, "A": "None"} for row in records(1)]
    [item, _] = data.load(str(write_questions(tmp_path, rows))).items
    form = QuestionForm("original")
    shown, hidden = (form.write(item, "paper", hide_missing).prompt.text for hide_missing in (False, True))
    assert "Options: A. None B. dog 0\n" in shown
    assert "Options: B. dog 0\n" in hidden
    [row] = form.make_rows(item, Reply("A"))
    read = {p: score_of(row, "generated", p)["value"] for p in ("paper", "fixed")}
    assert read == {"paper": 0.0, "fixed": 1.0}
    asked = ("--data", tmp_path / "questions.jsonl", "--model", "judge", "--judge", "tests.rehearsal:b",
             "--judge-asking", "letters", "--protocol", "paper")  # fmt: skip
    assert run(*asked, "--out", tmp_path / "out") == 0
    assert Folder(tmp_path / "out/judge-letters").manifest()["identity"]["missing"] == "not shown"
