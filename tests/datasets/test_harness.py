"""Questions as tasks of other harnesses, and their logs.

Each log is of the form that VLMEvalKit, lmms-eval 0.7.3 and inspect_ai 0.3 write.
"""

import base64
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
    return harness.Question(key, file.getvalue(), f"What is not {shade}?", ("dog", "cat"), answer, "presence")


QUESTIONS = [
    question("a/1/original", 10, "A"),
    question("a/1/negated", 10, "B"),
    question("b/original", 200, "A"),
]
PROMPTS = {one.key: one.prompt for one in QUESTIONS}
SAID = {"a/1/original": "A", "a/1/negated": "B.", "b/original": ""}


def test_a_task_holds_the_questions_and_their_images(tmp_path):
    [path] = harness.write(QUESTIONS, "vlmevalkit", tmp_path, "mine")
    table = pd.read_csv(path, sep="\t", dtype=str)
    assert [*table.columns] == ["index", "image", "question", "A", "B", "answer", "category"]
    assert [*table["index"]] == [*PROMPTS]
    assert base64.b64decode(table["image"][2]) == QUESTIONS[2].image
    description, data = harness.write(QUESTIONS, "lmms-eval", tmp_path, "mine")
    columns = pd.read_parquet(data)
    facts = yaml.safe_load(description.read_text())
    assert {facts[f"doc_to_{name}"] for name in ("visual", "text", "target")} <= {*columns.columns}
    assert [*columns["prompt"]] == [*PROMPTS.values()]
    assert columns["image"][1]["bytes"] == QUESTIONS[1].image
    description, data = harness.write(QUESTIONS, "inspect", tmp_path / "hub", "mine")
    [task] = yaml.safe_load(description.read_text())["tasks"]
    columns = pd.read_parquet(data)
    assert columns[task["field_spec"]["input_image"]][0].startswith("data:image/png;base64,iVBOR")
    assert [*columns[task["field_spec"]["target"]]] == ["A", "B", "A"]
    assert QUESTIONS[0].prompt.splitlines()[1:3] == ["A. dog", "B. cat"]


def write_log(kind, path):
    rows = list(SAID.items())
    if kind == "tsv":
        table = pd.DataFrame({"index": [*SAID], "prediction": [*SAID.values()], "A": "dog"})
        table.to_csv(path, sep="\t", index=False)
    elif kind == "jsonl":
        lines = [
            {"doc_id": number, "target": "A", "filtered_resps": text, "input": PROMPTS[key]}
            for number, (key, text) in enumerate(rows)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        samples = [
            {"id": number, "epoch": epoch, "metadata": {"key": key}, "output": {"completion": text * epoch}}
            for number, (key, text) in enumerate(rows)
            for epoch in (1, 2)
        ]
        path.write_text(json.dumps({"version": 2, "samples": samples}))


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "json"])
def test_a_log_gives_the_answers_back(kind, tmp_path):
    write_log(kind, path := tmp_path / f"log.{kind}")
    assert harness.read_answers(path, PROMPTS) == SAID
    others = dict(reversed(PROMPTS.items())) if kind == "jsonl" else {"c": PROMPTS["b/original"]}
    with pytest.raises(UserError, match=r"is not the question|answers to other questions"):
        harness.read_answers(path, others)
    path.write_text("no log")
    with pytest.raises(UserError, match="cannot be read as a log"):
        harness.read_answers(path, PROMPTS)


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


def test_multiple_choice_and_the_presence_in_edits_are_tasks(tmp_path):
    asked = ["--model", "random", "--scenes", "6", "--limit", "3", "--tasks", "mcq", "--device", "cpu"]
    assert exit_code("negbench", "eval", *asked, "--out", tmp_path / "negbench") == 0
    edited = ["--editor", "solid", "--metrics", "l1", "--control", "none", "--limit", "3", "--device", "cpu"]
    assert exit_code("eval", *edited, "--out", tmp_path / "nein") == 0
    for name, options, right in (("negbench", 4, None), ("nein", 2, {"B"})):
        words = ["--format", "vlmevalkit", "--out", tmp_path / "tasks"]
        assert exit_code("export", tmp_path / name, *words) == 0
        table = pd.read_csv(tmp_path / "tasks" / f"nein_{name}.tsv", sep="\t", dtype=str)
        assert len(table["index"].unique()) == len(table) == 3
        assert table[list("ABCD"[:options])].notna().all(None)
        assert set(table["answer"]) == (right or set(table["answer"]))
        for row in table.to_dict("records"):
            Image.open(io.BytesIO(base64.b64decode(row["image"]))).load()
