"""One run directory: one model on one data set. It describes itself, resumes, and refuses mixtures.

OUT/<model>/<data set>/
  manifest.json              configuration, model, data, environment, counts, status
  journal/pictures-*.jsonl   append-only: per block of pictures, what was read and encoded
  journal/answers-*.jsonl    append-only: per block of questions, what a generative model said
  samples/<task>.<variant>.jsonl   canonical: one line per caption, picture or question
  summary.json               every figure, with interval, n and unscored
OUT/cache/                   features of pictures and sentences, shared by all tasks and runs
OUT/table.md, figures.csv, *.png
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nein.generate.nein.folder import BuildDir


@dataclass(frozen=True)
class EvalDir(BuildDir):
    """Paths and manifest of a run; holds no open file."""

    @property
    def manifest_path(self) -> Path:
        return self.path / "manifest.json"

    @property
    def parts(self) -> tuple[str, ...]:
        return ("journal", "samples", "summary.json")

    @property
    def what(self) -> str:
        return "results"

    @property
    def journals(self) -> Path:
        return self.path / "journal"

    @property
    def model(self) -> str:
        return self.path.parent.name

    @property
    def dataset(self) -> str:
        return self.path.name

    def samples(self, task: str, variant: str) -> Path:
        return self.path / "samples" / f"{task.partition('/')[2]}.{variant}.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"


def find(out: Path) -> list[EvalDir]:
    """Every run below `out`, ordered by model, then data set."""
    return [EvalDir(path.parent) for path in sorted(out.glob("*/*/manifest.json"))]
