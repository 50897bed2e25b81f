"""One run directory: one model on one set of questions. It describes itself, resumes, and refuses mixtures.

OUT/<model>/negvqa.json          manifest: configuration, model, data, environment, counts, status
OUT/<model>/journal/*.jsonl      append-only: what the model said, block by block or question by question
OUT/<model>/answers.jsonl        canonical: one line per question and variant, in data order
OUT/<model>/scores.jsonl         canonical: the same read under both protocols, value or reason
OUT/<model>/summary.json         every figure with intervals, n and unscored
OUT/judge/grade.json             the judge's figures, for nein report --judge-grade
OUT/report.html, .md, .csv, .tex, *.png
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nein.generate.nein.folder import BuildDir


@dataclass(frozen=True)
class AnswerDir(BuildDir):
    """Paths and manifest of a run; holds no open file."""

    @property
    def manifest_path(self) -> Path:
        return self.path / "negvqa.json"

    @property
    def parts(self) -> tuple[str, ...]:
        return ("journal", "answers.jsonl", "scores.jsonl", "summary.json", "grade.json")

    @property
    def what(self) -> str:
        return "answers"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def journals(self) -> Path:
        return self.path / "journal"

    @property
    def answers(self) -> Path:
        return self.path / "answers.jsonl"

    @property
    def scores(self) -> Path:
        return self.path / "scores.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def grade(self) -> Path:
        """Of a judge only: what `nein report --judge-grade` reads."""
        return self.path / "grade.json"


def find(out: Path) -> list[AnswerDir]:
    """Every run below `out`, or the one that `out` itself is; by name."""
    if (out / "negvqa.json").is_file():
        return [AnswerDir(out)]
    return [AnswerDir(path.parent) for path in sorted(out.glob("*/negvqa.json"))]
