"""The files of one run: one model on one set of questions.

OUT/<model>/manifest.json, answers/*.jsonl   see `nein.engine.folder`
OUT/<model>/answers.jsonl        canonical: one line per question and variant, in data order
OUT/<model>/scores.jsonl         canonical: the same read under both protocols, value or reason
OUT/<model>/figures.csv          every figure with intervals, n and unscored; reports on edited pictures cite
                                 those of their judge
OUT/cache/                       answers of endpoints
OUT/report.html, .md, .csv, .tex, *.png
"""

from __future__ import annotations

from pathlib import Path

from nein.benchmarks.runner import FIGURES
from nein.engine.folder import Folder, runs_below


def answers(folder: Folder) -> Path:
    return folder.path / "answers.jsonl"


def scores(folder: Folder) -> Path:
    return folder.path / "scores.jsonl"


def figures(folder: Folder) -> Path:
    return folder.path / FIGURES


def find(out: Path) -> list[Folder]:
    """Every run at or below `out`, by name."""
    return [Folder(path, "answers") for path in runs_below(out)]
