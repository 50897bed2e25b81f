"""The files of one run: one model on one set of questions.

OUT/<model>/manifest.json, answers/*.jsonl   see `nein.engine.folder`
OUT/<model>/answers.jsonl        canonical: one line per question and variant, in data order
OUT/<model>/scores.jsonl         canonical: the same read under both protocols, value or reason
OUT/<model>/summary.json         every figure with intervals, n and unscored
<<<<<<< HEAD
OUT/judge/grade.json             the judge's figures, for nein-report --judge-grade
OUT/cache/                       answers of endpoints
=======
OUT/judge/grade.json             the judge's figures, for nein report --judge-grade
>>>>>>> main
OUT/report.html, .md, .csv, .tex, *.png
"""

from __future__ import annotations

from pathlib import Path

from nein.engine.folder import Folder, runs_below


<<<<<<< HEAD
def answers(folder: Folder) -> Path:
    return folder.path / "answers.jsonl"
=======
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
>>>>>>> main


def scores(folder: Folder) -> Path:
    return folder.path / "scores.jsonl"


def summary(folder: Folder) -> Path:
    return folder.path / "summary.json"


def grade(folder: Folder) -> Path:
    """Of a judge only: what `nein-report --judge-grade` reads."""
    return folder.path / "grade.json"


def find(out: Path) -> list[Folder]:
    """Every run at or below `out`, by name."""
    return [Folder(path, "answers") for path in runs_below(out)]
