"""Writes questions about images as a task of another harness, and reads the answers in that harness's log.

vlmevalkit  NAME.tsv in $LMUData: --data NAME. Source: ms-vlmeval 0.0.20, vlmeval/dataset/image_base.py
            and image_mcq.py (CustomMCQDataset)
lmms-eval   NAME.yaml and NAME.parquet: --include_path FOLDER --tasks NAME. Source: lmms-eval 0.7.3,
            docs/task_guide.md and lmms_eval/api/task.py
inspect     eval.yaml and NAME.parquet, as a data set of the hub: inspect eval hf/OWNER/DATASET. Source:
            inspect_ai 0.3, _eval/task/hf.py

`Question.key` names a question in the logs of VLMEvalKit and inspect. Logs of lmms-eval have its place among
the questions, which are therefore written and read in the order of their keys.
"""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase as LETTERS
from typing import Any

import pandas as pd
import yaml

from nein.engine import atomic
from nein.loading.errors import UserError, message

LOGS = (".xlsx", ".tsv", ".jsonl", ".json")  # endings of log files
FORMATS = ("vlmevalkit", "lmms-eval", "inspect")  # of `write`
#: The prompt of NegVQA (section 4.1), for lmms-eval and inspect; VLMEvalKit has a prompt for each model.
PROMPT = "{question}\n{options}\nAnswer with the option's letter from the given choices directly."


@dataclass(frozen=True)
class Question:
    """One question with options."""

    key: str  # unique in its file, such as "ID/negated"
    read_image: Callable[[], bytes]  # a whole PNG, JPEG or WebP file
    text: str
    options: tuple[str, ...]
    answer: str  # the right letter
    category: str  # groups results in the other harness

    @property
    def prompt(self) -> str:
        """The question and its options in NegVQA's words."""
        lines = (f"{letter}. {option}" for letter, option in zip(LETTERS, self.options, strict=False))
        return PROMPT.format(question=self.text, options="\n".join(lines))


def _by_key(questions: Iterable[Question]) -> dict[str, Question]:
    """Key -> question, in the order of keys; equal questions of several runs are one."""
    return dict(sorted({question.key: question for question in questions}.items()))


def write(questions: Iterable[Question], form: str, folder: Path, name: str) -> list[Path]:
    """Write a task in the format `form` of FORMATS; return its files. Raises UserError without questions."""
    questions = [*_by_key(questions).values()]
    if not questions:
        raise UserError("The run has no questions to export; give --data as in its own command.")
    atomic.make_folder(folder)
    if form == "vlmevalkit":
        rows = [_tsv_row(question) for question in questions]
        path = folder / f"{name}.tsv"
        atomic.write_text(path, pd.DataFrame(rows).to_csv(sep="\t", index=False, lineterminator="\n"))
        return [path]
    data = folder / f"{name}.parquet"
    _write_parquet([_parquet_row(question) for question in questions], data)
    if form == "lmms-eval":
        path, task = folder / f"{name}.yaml", _describe_lmms_eval(name, data)
    else:
        path, task = folder / "eval.yaml", _describe_inspect(name)
    atomic.write_text(path, yaml.safe_dump(task, sort_keys=False, allow_unicode=True))
    return [path, data]


def _tsv_row(question: Question) -> dict[str, str]:
    """The row of VLMEvalKit; options are in the columns A, B, ..."""
    image = base64.b64encode(question.read_image()).decode()
    row = {"index": question.key, "image": image, "question": question.text}
    row |= zip(LETTERS, question.options, strict=False)
    return {**row, "answer": question.answer, "category": question.category}


def _parquet_row(question: Question) -> dict[str, Any]:
    """`image` is for lmms-eval, which decodes it; `image_uri` for inspect, which sends it."""
    content = question.read_image()
    kind = {b"\x89PNG": "png", b"RIFF": "webp"}.get(content[:4], "jpeg")
    uri = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    image = {"bytes": content, "path": None}  # a cell of `datasets.Image`
    row = {"key": question.key, "image": image, "image_uri": uri, "question": question.text}
    row |= {"choices": list(question.options), "prompt": question.prompt}
    return {**row, "answer": question.answer, "category": question.category}


def _write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    try:
        import datasets
    except ImportError as error:
        raise UserError("These formats need the package datasets: pip install -e '.[hub]'.") from error
    table = datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())
    buffer = io.BytesIO()
    table.to_parquet(buffer)
    atomic.write_bytes(path, buffer.getvalue())


def _describe_lmms_eval(name: str, data: Path) -> dict[str, Any]:
    return {
        "task": name,
        "dataset_path": "parquet",
        "dataset_kwargs": {"data_files": {"test": str(data.resolve())}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_visual": "image",
        "doc_to_text": "prompt",
        "doc_to_target": "answer",
        "generation_kwargs": {"max_new_tokens": 16, "temperature": 0, "do_sample": False},
        "metric_list": [
            {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True,
             "ignore_case": True, "ignore_punctuation": True}
        ],
        "metadata": [{"version": 0.0}],
    }  # fmt: skip


def _describe_inspect(name: str) -> dict[str, Any]:
    fields = {"input": "prompt", "input_image": "image_uri", "target": "answer"}
    task = {
        "id": name,
        "config": "default",
        "split": "test",
        "field_spec": {**fields, "metadata": ["key", "category"]},
        "solvers": [{"name": "generate"}],
        "scorers": [{"name": "match", "args": {"location": "begin"}}],
    }
    return {"name": name, "evaluation_framework": "inspect-ai", "tasks": [task]}


# --- answers ------------------------------------------------------------------------------------------
def read_answers(path: Path, questions: Iterable[Question]) -> dict[str, str]:
    """The answers of a log (inspect: of its first epoch) by the key of the question; "": no answer.

    path       .xlsx or .tsv of VLMEvalKit, with the columns `index`, `prediction`, and maybe `answer`; .jsonl
               of lmms-eval --log_samples; .json of inspect --log-format json.
    questions  All questions of the task.

    Raises UserError for a file without answers, or of other questions or another order of options.
    """
    by_key = _by_key(questions)
    readers = {".xlsx": _read_table, ".tsv": _read_table, ".jsonl": _read_lmms_eval, ".json": _read_inspect}
    if path.suffix not in readers or not path.is_file():
        raise UserError(f"There is no log '{path}'; give a file that ends in {', '.join(LOGS)}.")
    try:
        rows = [*readers[path.suffix](path, by_key)]
    except (OSError, ValueError, LookupError, TypeError, ImportError, zipfile.BadZipFile) as error:
        raise UserError(f"'{path}' cannot be read as a log: {message(error)}") from error
    if not rows:
        raise UserError(f"'{path}' has no answers.")
    same = "give --data, --tasks, --limit, --seed as in the command of the exported run."
    for key, right, _ in rows:
        if key not in by_key:
            raise UserError(f"'{path}' has answers to other questions, such as '{key}'; {same}")
        if right not in (None, by_key[key].answer):
            wrong = f"takes {right} as the right answer to '{key}', not {by_key[key].answer}"
            raise UserError(f"'{path}' {wrong}; {same}")
    return {key: text for key, _, text in rows}


#: Of every row of a log: the key of its question, the right letter or None, and the answer.
LogRows = Iterator[tuple[str, str | None, str]]


def _read_table(path: Path, by_key: Mapping[str, Question]) -> LogRows:
    if path.suffix == ".xlsx":
        table = pd.read_excel(path, dtype=str, keep_default_na=False)
    else:
        table = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
    right = table["answer"] if "answer" in table else [None] * len(table)
    yield from zip(table["index"], right, table["prediction"], strict=True)


def _read_lmms_eval(path: Path, by_key: Mapping[str, Question]) -> LogRows:
    keys = [*by_key]
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        key = keys[row["doc_id"]]  # the log names a question by its place alone
        if row["input"] != by_key[key].prompt:
            raise ValueError(f"document {row['doc_id']} is not the question '{key}'")
        reply = row["filtered_resps"]
        yield key, row.get("target"), str(reply[0] if isinstance(reply, list) else reply)


def _read_inspect(path: Path, by_key: Mapping[str, Question]) -> LogRows:
    for row in json.loads(path.read_text(encoding="utf-8"))["samples"]:
        if row["epoch"] == 1:
            yield row["metadata"]["key"], row.get("target"), str(row["output"].get("completion") or "")
