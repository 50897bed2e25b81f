"""The evaluation of a sweep: the base and every alpha, by name and in order, whatever the command's order."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from nein.reporting import figures as frames
from nein.train.clip_finetuning import sweep
from nein.train.clip_finetuning.options import ContrastConfig


def models_of(text: str) -> list[str]:
    """The first column of a table."""
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")][2:]


def test_a_sweep_goes_by_alpha_with_the_base_first(clip_folder: Path, tmp_path: Path) -> None:
    config = ContrastConfig(base="random", out=str(tmp_path), preset="nano", device="cpu")
    config.alpha = ["0.9", "0.05"]
    text = sweep.write(sweep.evaluate(config, [clip_folder, clip_folder], scenes=8), config.out_dir)
    assert models_of(text) == ["base", "alpha-0.05", "alpha-0.9"]
    assert (tmp_path / "tradeoff.png").is_file()
    table = (tmp_path / "evaluation" / "table.md").read_text()
    assert models_of(table.partition("## Image to text")[0]) == models_of(text)
    manifest = tmp_path / "evaluation" / "alpha-0.9" / "nano" / "manifest.json"
    assert str(clip_folder) in manifest.read_text()


RECALLS = {"original": (1, 1, 1, 0), "negated": (0, 0, 1, 0)}


def row(alpha: float | None, negated: tuple[int, ...], credit: tuple[float, ...]) -> sweep.Row:
    """A model with four captions and as many questions as `credit` has."""

    def figure(task: str, value: float, **about: Any) -> dict[str, Any]:
        unit = "points" if str(about["metric"]).startswith("gap") else "%"
        ends = {"low": value - 0.1, "high": value + 0.1, "n": 4, "unscored": 0, "unit": unit}
        return {"task": task, "variant": "templated", "value": value, **ends, **about}

    told = {"direction": "text_to_image"}
    original, denied = sum(RECALLS["original"]) / 4, sum(negated) / 4
    figures = [
        *(figure("retrieval", v, metric=f"recall@{k}", kind=kind, **told)
          for k in (1, 5) for kind, v in (("original", original), ("negated", denied))),
        *(figure("retrieval", original - denied, metric=f"gap@{k}", **told) for k in (1, 5)),
        *(figure("mcq", sum(credit) / len(credit), metric="accuracy", type=t)
          for t in ("all", "affirmation", "negation", "hybrid")),
        {**figure("mcq", 0.25, metric="chance", type="all"), "low": None, "high": None},
    ]  # fmt: skip
    label = "base" if alpha is None else f"alpha-{alpha:g}"
    return sweep.Row(label, alpha, "nano", frames.frame(figures))


@pytest.fixture
def rows() -> list[sweep.Row]:
    return [
        row(None, (0, 0, 1, 0), (1, 0, 0, 0)),
        row(0.0, (1, 0, 1, 0), (1, 1, 1, 0)),
        row(1.0, (1, 1, 1, 0), (1, 0, 0.5, 0)),
    ]


def test_the_table_the_file_and_the_plot_hold_every_model(rows: list[sweep.Row], tmp_path: Path) -> None:
    text = sweep.write(rows, tmp_path / "out")
    assert text == (tmp_path / "out" / "tradeoff.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["base", "alpha-0", "alpha-1"]
    assert "25.0 ± 10.0" in lines[2]
    with (tmp_path / "out" / "tradeoff.csv").open(newline="") as file:
        values = {
            (r["alpha"], r["metric"], r["kind"] or r["type"]): float(r["value"]) for r in csv.DictReader(file)
        }
    assert values["1", "gap@1", ""] == 0.0
    assert values["base", "recall@1", "negated"] == 0.25
    assert values["0", "accuracy", "all"] == 0.75
    assert (tmp_path / "out" / "tradeoff.png").read_bytes().startswith(b"\x89PNG")
