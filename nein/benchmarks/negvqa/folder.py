"""The files of one run: one model on one set of questions.

OUT/<model>/manifest.json, answers/*.jsonl   see `nein.engine.folder`
OUT/<model>/answers.jsonl        canonical: one line per question and variant, in data order
OUT/<model>/scores.jsonl         canonical: the same read under both protocols, value or reason
OUT/<model>/blind.jsonl          of some questions: without the picture, and without the question
OUT/<model>/figures.csv          every figure with intervals, n and unscored; reports on edited pictures cite
                                 those of their judge
OUT/cache/                       answers of endpoints
OUT/report.html, .md, .csv, .tex, *.png
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from nein.benchmarks.runner import FIGURES
from nein.engine import atomic
from nein.engine.folder import Folder, Row, runs_below
from nein.engine.shapes import Shape

_QUESTION = {"id": str, "variant": str, "subset": str, "category": str}
_ANSWER = {
    **_QUESTION, "question": str, "options": [str], "answer": str, "text": (str, None),
    "logprobs": ([(float, None)], None), "error": str,
}  # fmt: skip
#: Rows of a block: what the model wrote, and what a matcher made of it.
_WRITTEN = {
    "id": str, "variant": str, "text": (str, None), "logprobs": ([(float, None)], None), "error": str,
}  # fmt: skip
_MATCH = {"id": str, "variant": str, "letter": (str, None), "reason": str, "error": str}
BLOCKS: Mapping[str, Shape] = {
    "answers": _WRITTEN, "blind": {**_WRITTEN, "baseline": str}, "matches": _MATCH,
}  # fmt: skip
SCORE_ROW = {
    **_QUESTION, "source": str, "scoring": str, "protocol": str, "letter": (str, None),
    "value": (float, None), "reason": str,
}  # fmt: skip
_MANIFEST = {
    "preset": str,
    "protocol": str,
    "reference": str,
    "identity": {"prompt": str, "asking?": (str, None)},
    "letters": str,
    "matcher": str,
    "limit": (int, None),
    "data": {
        "kind": str,
        "sha256": str,
        "questions": int,
        "split?": str,
        "columns?": ({}, None),
        "name?": str,
        "revision?": (str, None),
        "file?": str,
        "world?": str,
    },
}


class AnswersDir(Folder):
    """The folder OUT/<model>."""

    benchmark = "negvqa"
    facts = _MANIFEST

    def __init__(self, path: Path) -> None:
        super().__init__(path, "answers", BLOCKS)

    def read_answers(self) -> Iterator[Row]:
        """One at a time."""
        return atomic.checked_lines(answers(self), _ANSWER)

    def read_scores(self) -> Iterator[Row]:
        """One at a time, in the order of the answers."""
        return atomic.checked_lines(scores(self), SCORE_ROW)


def answers(folder: Folder) -> Path:
    return folder.path / "answers.jsonl"


def scores(folder: Folder) -> Path:
    return folder.path / "scores.jsonl"


def blind(folder: Folder) -> Path:
    return folder.path / "blind.jsonl"


def figures(folder: Folder) -> Path:
    return folder.path / FIGURES


def find(out: Path) -> list[AnswersDir]:
    """Every run at or below `out`, by name."""
    return [AnswersDir(path) for path in runs_below(out)]
