"""The files of one run: one model on one set of questions.

OUT/<model>/   manifest.json, answers/*.jsonl (`nein.engine.folder`), scores.csv: every answer read under both
               protocols, figures.csv: every figure, which reports on edited pictures cite of their judge
OUT/cache/     answers of endpoints
OUT/report.html, .md, .csv, .tex, *.png
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nein.engine.folder import Folder, runs_below
from nein.engine.shapes import Shape

ANSWERS, BLIND, MATCHES = "answers", "blind", "matches"  # the stages and their outputs
#: Rows of a block: what was asked, what the model wrote, and what a matcher made of it.
_ANSWER = {
    "id": str, "variant": str, "subset": str, "category": str, "source": str, "question": str,
    "options": [str], "answer": str, "text": (str, None), "logprobs": ([(float, None)], None), "error": str,
}  # fmt: skip
_MATCH = {"id": str, "variant": str, "letter": (str, None), "reason": str, "error": str}
BLOCKS: Mapping[str, Shape] = {
    ANSWERS: _ANSWER, BLIND: {**_ANSWER, "baseline": str}, MATCHES: _MATCH,
}  # fmt: skip
_MANIFEST = {
    "preset": str, "protocol": str, "reference": str, "identity": {"prompt": str, "asking?": (str, None)},
    "scoring": [str], "letters": str, "matcher": str, "limit": (int, None),
    "data": {
        "kind": str, "sha256": str, "questions": int, "split?": str, "columns?": ({}, None), "name?": str,
        "revision?": (str, None), "file?": str, "world?": str,
    },
}  # fmt: skip


class AnswersDir(Folder):
    """The folder OUT/<model>."""

    benchmark = "negvqa"
    facts = _MANIFEST

    def __init__(self, path: Path) -> None:
        super().__init__(path, ANSWERS, BLOCKS)


def find(out: Path) -> list[AnswersDir]:
    """Every run at or below `out`, by name."""
    return [AnswersDir(path) for path in runs_below(out)]
