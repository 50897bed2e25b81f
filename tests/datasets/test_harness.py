"""Questions as tasks of other harnesses, and their logs.

Each log is of the form that VLMEvalKit, lmms-eval 0.7.3 and inspect_ai 0.3 write.
"""

import base64
import dataclasses
import io
import json

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from nein.datasets import harness
from nein.loading.errors import UserError
from tests.helpers.commands import exit_code


def question(key, shade, answer):
    Image.fromarray(np.full((4, 4, 3), shade, np.uint8)).save(file := io.BytesIO(), "PNG")
    return harness.Question(key, file.getvalue, f"What is not {shade}?", ("dog", "cat"), answer, "presence")


QUESTIONS = [  # in the order of their keys
    question("a/1/negated", 10, "B"),
    question("a/1/original", 10, "A"),
    question("b/original", 200, "A"),
]
PROMPTS = {one.key: one.prompt for one in QUESTIONS}
REPLIES = {"a/1/negated": "B.", "a/1/original": "A", "b/original": ""}


def test_a_task_holds_the_questions_and_their_images(tmp_path):
    [path] = harness.write([*reversed(QUESTIONS), QUESTIONS[0]], "vlmevalkit", tmp_path, "mine")
    table = pd.read_csv(path, sep="\t", dtype=str)
    assert [*table.columns] == ["index", "image", "question", "A", "B", "answer", "category"]
    assert [*table["index"]] == [*PROMPTS]
    assert base64.b64decode(table["image"][2]) == QUESTIONS[2].read_image()
    description, data = harness.write(QUESTIONS, "lmms-eval", tmp_path, "mine")
    columns = pd.read_parquet(data)
    facts = yaml.safe_load(description.read_text())
    assert {facts[f"doc_to_{name}"] for name in ("visual", "text", "target")} <= {*columns.columns}
    assert [*columns["prompt"]] == [*PROMPTS.values()]
    assert columns["image"][1]["bytes"] == QUESTIONS[1].read_image()
    description, data = harness.write(QUESTIONS, "inspect", tmp_path / "hub", "mine")
    [task] = yaml.safe_load(description.read_text())["tasks"]
    columns = pd.read_parquet(data)
    assert columns[task["field_spec"]["input_image"]][0].startswith("data:image/png;base64,iVBOR")
    assert [*columns[task["field_spec"]["target"]]] == ["B", "A", "A"]
    assert QUESTIONS[0].prompt.splitlines()[1:3] == ["A. dog", "B. cat"]
    with pytest.raises(UserError, match="no questions to export"):
        harness.write([], "vlmevalkit", tmp_path, "mine")


def write_log(path, task, replies):
    """The log of the harness of that suffix. task: a data frame, `key`, `prompt` and `answer`."""
    rows, lines = zip(task["key"], task["prompt"], task["answer"], replies, strict=True), []
    columns = {"index": task["key"], "A": "dog", "answer": task["answer"], "prediction": replies}
    if path.suffix == ".tsv":
        pd.DataFrame(columns).to_csv(path, sep="\t", index=False)
    elif path.suffix == ".xlsx":
        pd.DataFrame(columns).to_excel(path, index=False)
    elif path.suffix == ".jsonl":
        for number, (_, prompt, right, text) in enumerate(rows):
            line = {"doc_id": number, "target": right, "filtered_resps": text, "input": prompt}
            lines.append(json.dumps(line))
        path.write_text("\n".join(lines))
    else:
        samples = [
            {"epoch": k, "target": right, "metadata": {"key": key}, "output": {"completion": text * k}}
            for key, _, right, text in rows
            for k in (1, 2)
        ]
        path.write_text(json.dumps({"version": 2, "samples": samples}))


@pytest.mark.parametrize("kind", ["tsv", "xlsx", "jsonl", "json"])
def test_a_log_gives_the_answers_back(kind, tmp_path):
    if kind == "xlsx":
        pytest.importorskip("openpyxl")
    fields = [(one.key, one.prompt, one.answer) for one in QUESTIONS]
    task = pd.DataFrame(fields, columns=["key", "prompt", "answer"])
    write_log(path := tmp_path / f"log.{kind}", task, [*REPLIES.values()])
    assert harness.read_answers(path, reversed(QUESTIONS)) == REPLIES
    for others, error in (
        ([dataclasses.replace(one, key=f"c{one.key}", text="Why?") for one in QUESTIONS], "question"),
        ([dataclasses.replace(one, answer="A") for one in QUESTIONS], "takes B as the right answer"),
    ):
        with pytest.raises(UserError, match=error):
            harness.read_answers(path, others)
    path.write_text("PK\x03\x04 no log")
    with pytest.raises(UserError, match="cannot be read as a log"):
        harness.read_answers(path, QUESTIONS)
    with pytest.raises(UserError, match=r"no log '.*\.csv'; give a file that ends in .xlsx"):
        harness.read_answers(tmp_path / "log.csv", QUESTIONS)


def test_a_run_of_negvqa_is_a_task_and_answers_from_its_log_are_scored(tmp_path, capsys):
    words = ["--questions", "4", "--device", "cpu", "--model", "nano:negvqa", "--blind", "0"]
    assert exit_code("negvqa", *words, "--out", str(tmp_path / "run")) == 0
    exported = ["--format", "vlmevalkit", "--out", str(tmp_path)]
    assert exit_code("export", str(tmp_path / "run"), *exported) == 0
    table = pd.read_csv(tmp_path / "nein_negvqa.tsv", sep="\t", dtype=str)
    table["prediction"] = table["answer"].where(table["index"].str.endswith("original"), "A")
    table.drop(columns="image").to_csv(tmp_path / "log.tsv", sep="\t", index=False)
    asked = [*words[:4], "--model", "", "--answers-from", f"other={tmp_path / 'log.tsv'}"]
    assert exit_code("negvqa", *asked, "--out", str(tmp_path / "scored")) == 0
    scores = pd.read_csv(tmp_path / "scored" / "other" / "scores.csv", dtype={"id": str})
    scores = scores[(scores["metric"] == "accuracy") & (scores["protocol"] == "fixed")]
    negated = table[table["index"].str.endswith("negated")]
    assert [*scores[scores["variant"] == "original"]["value"]] == [1.0] * 4
    assert [*scores[scores["variant"] == "negated"]["value"]] == [*(negated["answer"] == "A").astype(float)]
    assert exit_code("export", str(tmp_path / "scored" / "other"), *exported[:1], "html") == 2
    assert "vlmevalkit" in capsys.readouterr().err


def export_task(run, folder, name):
    """The task of a run: `key`, `prompt` and `answer` of each question; all harnesses get the same."""
    for form in harness.FORMATS:
        assert exit_code("export", run, "--format", form, "--out", folder / form) == 0
    task = pd.read_parquet(folder / "inspect" / f"{name}.parquet")
    table = pd.read_csv(folder / "vlmevalkit" / f"{name}.tsv", sep="\t", dtype=str)
    assert [*table["index"]] == [*task["key"]]
    assert [*pd.read_parquet(folder / "lmms-eval" / f"{name}.parquet")["prompt"]] == [*task["prompt"]]
    assert [*table["answer"]] == [*task["answer"]]
    assert task["key"].is_unique
    for row in table.to_dict("records"):
        Image.open(io.BytesIO(base64.b64decode(row["image"]))).load()
        for letter, option in zip("ABCD", task["choices"][task["key"] == row["index"]].item(), strict=False):
            assert row[letter] == option
    return task


def test_multiple_choice_comes_back_from_every_log(tmp_path, capsys):
    words = ["negbench", "eval", "--scenes", "6", "--tasks", "mcq", "--device", "cpu"]
    out = ["--out", tmp_path / "run"]
    assert exit_code(*words, "--model", "random", *out) == 0
    task = export_task(tmp_path / "run", tmp_path, "nein_negbench")
    replies = [answer if number % 3 else "B" for number, answer in enumerate(task["answer"])]
    files = [tmp_path / f"{kind}.{kind}" for kind in ("tsv", "jsonl", "json")]
    for file in files:
        write_log(file, task, replies)
    answered = [*words, "--model", "none", "--answers-from"]
    assert exit_code(*answered, ",".join(map(str, files)), *out) == 0
    expected = [float(reply == answer) for reply, answer in zip(replies, task["answer"], strict=True)]
    for file in files:
        scores = pd.read_csv(tmp_path / "run" / file.stem / "nano" / "scores.csv", dtype={"id": str})
        scores = scores[scores["metric"] == "accuracy"].set_index("id")["value"]
        ids = [key.partition("/")[2].partition("/")[2] for key in task["key"]]
        assert [*scores[ids]] == expected
        assert 0 < sum(expected) < len(expected)
    write_log(files[0], task[2:], ["", *replies[3:]])
    capsys.readouterr()
    assert exit_code(*answered, f"part={files[0]}", "--fail-on-unscored", "--out", tmp_path / "part") == 3
    assert "3 have no score (3 x the log has no answer)" in capsys.readouterr().err
    write_log(files[0], task, ["I cannot tell."] * len(task))
    assert exit_code(*answered, f"none={files[0]}", "--out", tmp_path / "none") == 0  # plots without a bar
    for mistake in (["--seed", "7"], ["--limit", "2"], ["--protocol", "paper"]):
        assert exit_code(*answered, files[2], *mistake, "--out", tmp_path / "mistake") == 2


def test_the_presence_in_edits_comes_back_from_a_log(tmp_path, capsys):
    words = ["eval", "--editor", "solid,identity", "--control", "remove", "--limit", "3", "--device", "cpu"]
    words += ["--out", tmp_path / "run"]
    answered = [*words, "--metrics", "l1,removal_vqa", "--answers-from", tmp_path / "log.jsonl"]
    assert exit_code(*answered) == 2
    assert "has no edits that answers could be about" in capsys.readouterr().err
    assert exit_code(*words, "--metrics", "l1") == 0
    task = export_task(tmp_path / "run", tmp_path, "nein_nein")
    assert len(task) == 12  # two editors, two instructions
    assert {*task["answer"]} == {"B"}
    replies = ["B" if number % 4 else "yes" for number in range(11)]
    write_log(tmp_path / "log.jsonl", task[:11], replies)
    assert exit_code(*answered) == 0
    removed = []
    for key in task["key"]:
        run, _, sample = key.rpartition("/")
        scores = pd.read_csv(tmp_path / "run" / run / "scores.csv", index_col="id")
        removed.append(scores[scores["metric"] == "removal_vqa"]["value"][sample])
    np.testing.assert_array_equal(removed, [*(float(reply == "B") for reply in replies), np.nan])
    assert exit_code(*words, "--metrics", "l1", *answered[-2:]) == 2
    assert "add it to --metrics" in capsys.readouterr().err
