"""Questions about images as a task of another harness, and the answers in that harness's log.

vlmevalkit  NAME.tsv: `index`, `image` (base64), `question`, `A`, `B` ..., `answer`, `category`. Put it
            into $LMUData and give --data NAME. Source: github.com/open-compass/VLMEvalKit (0f27427e),
            vlmeval/dataset/image_base.py and image_mcq.py.
lmms-eval   NAME.yaml and NAME.parquet: --include_path FOLDER --tasks NAME. Source: lmms-eval 0.7.3,
            docs/task_guide.md and lmms_eval/api/task.py.
inspect     eval.yaml and NAME.parquet: a data set of the hub, and a task by its id: inspect eval
            hf/OWNER/DATASET. Source: inspect_ai 0.3, _eval/task/hf.py.

What one question is called there (`Question.key`) is in every log; so an answer is known by it again.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase as LETTERS
from typing import Any

import numpy as np
import pandas as pd
import yaml
from PIL import Image

from nein.engine import atomic
from nein.loading.errors import UserError, message

#: Files of answers that are logs.
LOGS = (".xlsx", ".tsv", ".jsonl", ".json")
FORMATS = ("vlmevalkit", "lmms-eval", "inspect")
#: The prompt of NegVQA (section 4.1); lmms-eval and inspect are given it, VLMEvalKit has one for each model.
PROMPT = "{question}\n{options}\nAnswer with the option's letter from the given choices directly."


@dataclass(frozen=True)
class Question:
    """One question with options.

    key       Unique in its file; `id/variant` of a pair.
    image     A whole PNG, JPEG or WebP file.
    answer    The right letter.
    category  What results are grouped by there.
    """

    key: str
    image: bytes
    text: str
    options: tuple[str, ...]
    answer: str
    category: str

    @property
    def prompt(self) -> str:
        return prompt(self.text, self.options)


def png(image: np.ndarray) -> bytes:
    """A PNG file of (H, W, 3) uint8."""
    Image.fromarray(image).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def prompt(text: str, options: Sequence[str]) -> str:
    lines = (f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))
    return PROMPT.format(question=text, options="\n".join(lines))


def write(questions: Iterable[Question], form: str, folder: Path, name: str) -> list[Path]:
    """Writes the task `name` in the format `form` of FORMATS below `folder`; returns its files."""
    atomic.make_folder(folder)
    if form == "vlmevalkit":
        rows = [_tsv_row(question) for question in questions]
        path = folder / f"{name}.tsv"
        atomic.write_text(path, pd.DataFrame(rows).to_csv(sep="\t", index=False, lineterminator="\n"))
        return [path]
    rows = [_parquet_row(question) for question in questions]
    data = folder / f"{name}.parquet"
    _write_parquet(rows, data)
    if form == "lmms-eval":
        path, facts = folder / f"{name}.yaml", _lmms_eval(name, data)
    else:
        path, facts = folder / "eval.yaml", _inspect(name)
    atomic.write_text(path, yaml.safe_dump(facts, sort_keys=False, allow_unicode=True))
    return [path, data]


def _tsv_row(question: Question) -> dict[str, str]:
    image = base64.b64encode(question.image).decode()
    options = dict(zip(LETTERS, question.options, strict=False))
    about = {"index": question.key, "image": image, "question": question.text}
    return {**about, **options, "answer": question.answer, "category": question.category}


def _parquet_row(question: Question) -> dict[str, Any]:
    """`image` is decoded by lmms-eval, `image_uri` is sent by inspect."""
    kind = {b"\x89PNG": "png", b"RIFF": "webp"}.get(question.image[:4], "jpeg")
    uri = f"data:image/{kind};base64,{base64.b64encode(question.image).decode()}"
    image = {"bytes": question.image, "path": None}
    about = {"key": question.key, "image": image, "image_uri": uri, "question": question.text}
    choices = {"choices": list(question.options), "prompt": question.prompt}
    return {**about, **choices, "answer": question.answer, "category": question.category}


def _write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    try:
        import datasets
    except ImportError as error:
        raise UserError("These formats need the package datasets: pip install -e '.[hub]'.") from error
    table = datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())
    buffer = io.BytesIO()
    table.to_parquet(buffer)
    atomic.write_bytes(path, buffer.getvalue())


def _lmms_eval(name: str, data: Path) -> dict[str, Any]:
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


def _inspect(name: str) -> dict[str, Any]:
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


def read_answers(path: Path, prompts: Mapping[str, str]) -> dict[str, str]:
    """The answers of a log by the key of the question; those of epoch 1 where a question was asked again.

    .xlsx, .tsv  of VLMEvalKit: columns `index` and `prediction`
    .jsonl       of lmms-eval --log_samples
    .json        of inspect --log-format json
    prompts      Key -> prompt of all questions, in the order in which the task was written.

    Raises UserError for a file without answers, or with those of other questions.
    """
    readers = {".xlsx": _predictions, ".tsv": _predictions, ".jsonl": _samples, ".json": _log}
    try:
        answers = dict(readers[path.suffix](path, prompts))
    except (OSError, ValueError, KeyError, TypeError, IndexError, ImportError) as error:
        raise UserError(f"'{path}' cannot be read as a log: {message(error)}") from error
    strange = next((key for key in answers if key not in prompts), None)
    if strange is not None or not answers:
        raise UserError(f"'{path}' has answers to other questions" + (f": '{strange}'." if strange else "."))
    return answers


def _predictions(path: Path, prompts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if path.suffix == ".xlsx":
        table = pd.read_excel(path, dtype=str, keep_default_na=False)
    else:
        table = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
    yield from zip(table["index"], table["prediction"], strict=True)


def _samples(path: Path, prompts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    keys = [*prompts]
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        key = keys[row["doc_id"]]  # the log names a question by its place alone
        if row["input"] != prompts[key]:
            raise ValueError(f"document {row['doc_id']} is not the question '{key}'")
        reply = row["filtered_resps"]
        yield key, str(reply[0] if isinstance(reply, list) else reply)


def _log(path: Path, prompts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for row in json.loads(path.read_text(encoding="utf-8"))["samples"]:
        if row["epoch"] == 1:
            yield row["metadata"]["key"], str(row["output"].get("completion") or "")
