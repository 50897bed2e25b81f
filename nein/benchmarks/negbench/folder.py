"""The files of one run: one model on one data set.

OUT/<model>/<data set>/
  manifest.json, pictures/, {sentences,answers,scores,verdicts}/<task>/*.jsonl   see `nein.engine.folder`
  samples/<task>.jsonl       canonical: one line per caption, picture or question
  figures.csv                every figure, with interval, n and unscored
OUT/cache/                   features of pictures and sentences, and answers of endpoints, shared by all runs
OUT/table.md, figures.csv, report.html, *.png

<task> is its name and its wording: "mcq.rephrased".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from nein.datasets.negbench.records import Task
from nein.engine.folder import Folder, runs_below
from nein.engine.shapes import Shape

PICTURES = "pictures"  # outputs
#: What a manifest's summary holds, as far as it is read back.
_SUMMARY = {
    "model": str, "dataset": str, "title": str, "preset": str, "protocol": str, "kind": str,
    "features": (str, None), "limit": (int, None), "row": (str, None),
}  # fmt: skip
#: A line of samples/<task>.jsonl of a task of multiple choice, as far as it is read back.
CHOICE_ROW = {
    "id": str, "shown": [int], "shares": ([float], None), "credit": (float, None), "reason": str,
    "scores?": ([float], None), "answer?": (str, None),
}  # fmt: skip
SENTENCES, ANSWERS, SCORES, VERDICTS = "sentences", "answers", "scores", "verdicts"  # of tasks
_ENCODED = {"name": str, "key": str, "reason": str}
_ANSWER = {
    "id": str, "answer": (str, None), "letter": (str, None), "chosen": (int, None), "reason": str,
    "failed": str,
}  # fmt: skip
_SCORED = {"id": str, "scores": ([float], None), "reason": str, "failed": str}
_JUDGED = {
    "id": str, "source": str, "kind": str, "thing": str, "asked": bool, "rank": int, "image": str,
    "absent": (float, None), "reason": str, "failed": str, "gallery": int,
}  # fmt: skip
BLOCKS: Mapping[str, Shape] = {
    PICTURES: _ENCODED, SENTENCES: _ENCODED, ANSWERS: _ANSWER, SCORES: _SCORED, VERDICTS: _JUDGED,
}  # fmt: skip


class ResultsDir(Folder):
    """The folder OUT/<model>/<data set>."""

    benchmark = "negbench"
    facts: ClassVar[Mapping[str, Shape]] = {
        "summary?": _SUMMARY,
        "data?": {"records_sha256": str},
    }


def task_name(task: Task) -> str:
    return f"{task.name.partition('/')[2]}.{task.variant}"


def samples(folder: Folder, task: str) -> Path:
    return folder.path / "samples" / f"{task}.jsonl"


def figures(folder: Folder) -> Path:
    return folder.path / "figures.csv"


def find(out: Path) -> list[ResultsDir]:
    """Every run below `out`, ordered by model, then data set."""
    return [ResultsDir(path) for path in runs_below(out)]
