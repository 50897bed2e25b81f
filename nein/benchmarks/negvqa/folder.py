"""The files of one run: one model on one set of questions.

OUT/<model>/manifest.json, answers/*.jsonl   see `nein.engine.folder`
OUT/<model>/answers.jsonl        canonical: one line per question and variant, in data order
OUT/<model>/scores.jsonl         canonical: the same read under both protocols, value or reason
OUT/<model>/summary.json         every figure with intervals, n and unscored
OUT/judge/grade.json             the judge's figures, for nein report --judge-grade
OUT/cache/                       answers of endpoints
OUT/report.html, .md, .csv, .tex, *.png
"""

from __future__ import annotations

from pathlib import Path

from nein.engine.folder import Folder, runs_below


def answers(folder: Folder) -> Path:
    return folder.path / "answers.jsonl"


def scores(folder: Folder) -> Path:
    return folder.path / "scores.jsonl"


def summary(folder: Folder) -> Path:
    return folder.path / "summary.json"


def grade(folder: Folder) -> Path:
    """Of a judge only: what `nein report --judge-grade` reads."""
    return folder.path / "grade.json"


def find(out: Path) -> list[Folder]:
    """Every run at or below `out`, by name."""
    return [Folder(path, "answers") for path in runs_below(out)]
