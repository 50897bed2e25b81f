"""The trade-off and the sentences of the study, from rows written by hand; and the command as a whole."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nein.benchmarks.negbench import folder as files
from nein.config.launch import launch
from nein.engine import atomic, exits
from nein.engine.folder import Folder
from nein.reporting import figures as frames
from nein.reporting import plots
from research import generalise
from research import negbench_nano as study
from train.contrast import sweep

RECALLS = {"original": (1, 1, 1, 0), "negated": (0, 0, 1, 0)}


def row(folder: Path, alpha: float | None, negated: tuple[int, ...], credit: tuple[float, ...]) -> sweep.Row:
    """A model with four captions and as many questions as `credit` has, each about a picture of its own."""
    run = Folder(folder / f"model-{alpha}" / "nano")
    lines = [
        {
            "id": f"c{k}", "source": f"p{k}", "kind": kind, "direction": "text_to_image", "recall@1": value,
        }
        for kind, values in (("original", RECALLS["original"]), ("negated", negated))
        for k, value in enumerate(values)
    ]  # fmt: skip
    atomic.write_lines(files.samples(run, "retrieval.templated"), iter(lines))
    asked = [{"id": f"q{k}", "source": f"p{k}", "credit": value} for k, value in enumerate(credit)]
    atomic.write_lines(files.samples(run, "mcq.templated"), iter(asked))

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
    return sweep.Row(label, alpha, "nano", frames.frame(figures), run)


@pytest.fixture
def rows(tmp_path: Path) -> list[sweep.Row]:
    return [
        row(tmp_path, None, (0, 0, 1, 0), (1, 0, 0, 0)),
        row(tmp_path, 0.0, (1, 0, 1, 0), (1, 1, 1, 0)),
        row(tmp_path, 1.0, (1, 1, 1, 0), (1, 0, 0.5, 0)),
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


def test_the_picture_says_that_it_is_of_the_miniature_and_where_chance_is(rows: list[sweep.Row]) -> None:
    drawing = plots.draw(sweep.PLOT, sweep.figures(rows), sweep.NANO_LABEL)
    assert drawing is not None
    words = re.findall(r"<!-- (.*?) -->", drawing.svg.decode())
    assert any("miniature models on drawn scenes" in text for text in words)
    assert "dotted: chance" in sweep.PLOT.title
    without = plots.draw(sweep.PLOT, frames.select(sweep.figures(rows), metric=("recall@1", "accuracy")))
    assert without is not None
    dashes = [found.svg.count(b"stroke-dasharray") for found in (drawing, without)]
    assert dashes[0] > dashes[1]


def test_denials_are_found_in_every_spelling_and_nowhere_else() -> None:
    found, count = study.search(
        ["There is no cat.", "It isn\u2019t here, WITHOUT a hat", "A knot, a note, another"]
    )
    assert count == 3
    assert found == Counter({"no": 1, "n\u2019t": 1, "without": 1})
    assert "contain negation: 'no' (1)" in study.affirmative(Counter(no=1), 3)
    assert study.affirmative(Counter(), 3).startswith("None of the 3 texts")


def test_the_nano_clip_has_learned_from_affirmative_text_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from research.nano import vision

    monkeypatch.setattr(vision, "POOL", 300)
    found, count = study.search(study.training_texts())
    assert not found
    assert count > 1500


def figure(recipe: str, seed: str, world: str, value: float, **about: str) -> dict[str, Any]:
    return {"recipe": recipe, "seed": seed, "world": world, "value": value, "unit": "%", "n": 4, **about}


def test_a_cell_is_the_mean_over_seeds_with_the_lowest_and_the_highest(tmp_path: Path) -> None:
    choice = study.METRICS["choices right"]
    parts = [
        frames.frame([figure("before", "", "nano:taught", 0.4, **choice)]),
        frames.frame([figure("nano", s, "nano:taught", v, **choice) for s, v in (("0", 0.6), ("1", 0.9))]),
        frames.frame([figure("nano", s, "nano:unlike", v, **choice) for s, v in (("0", 0.1), ("1", 0.2))]),
    ]
    text = generalise.write(tmp_path, "Title", parts, study.METRICS, command="nein x", sentences=["One."])
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if "|" in line]
    assert lines[0][3:5] == ["as taught", "wording, objects and style"]
    assert lines[2][1:5] == ["before", "choices right", "40.0", "\u2013"]
    assert lines[3][1:5] == ["nano", "choices right", "75.0 (60.0 to 90.0)", "15.0 (10.0 to 20.0)"]
    assert "seeds 0, 1 " in text
    assert "`nein x`" in text
    assert "- One." in text
    assert (tmp_path / "generalise.md").read_text() == text
    assert len(frames.read(tmp_path / "generalise.csv")) == 5
    assert (tmp_path / "generalise.png").read_bytes().startswith(b"\x89PNG")
    bars = generalise.bars(frames.concat(parts), study.METRICS)
    shown = [(r["recipe"], r["title"], r["value"], r["low"], r["high"]) for r in frames.records(bars)]
    assert shown == [
        ("before", "as taught", 0.4, None, None),
        ("nano", "as taught", pytest.approx(0.75), 0.6, 0.9),
        ("nano", "wording, objects and style", pytest.approx(0.15), 0.1, 0.2),
    ]


def test_a_sentence_begins_with_what_was_not_taught() -> None:
    rows = [
        figure("nano", "0", world, value, **where)
        for world, value in (("nano:taught", 0.9), ("nano:wording", 0.5), ("nano:unlike", 0.3))
        for where in study.METRICS.values()
    ]
    [sentence] = study.findings(frames.frame(rows))
    assert sentence.index("30.0 %") < sentence.index("50.0 %") < sentence.index("90.0 %")
    assert "were not taught 30.0 % of the choices" in sentence


@pytest.mark.slow
def test_the_study_writes_its_tables_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from research.nano import vision

    monkeypatch.setattr(vision, "POOL", 50)
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path / "cache"))

    words = [
        "--seed",
        "0,1",
        "--recipe",
        "nano",
        "--scenes",
        "8",
        "--steps",
        "2",
        "--out",
        str(tmp_path / "out"),
    ]

    def run() -> str:
        with pytest.raises(SystemExit) as ended:
            exits.exit_with(lambda: launch("python -m research.negbench_nano", study.COMMAND, words))
        out, err = capfd.readouterr()
        assert not ended.value.code, err
        return out

    first: Callable[[], str] | str = run()
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "study.md", "generalise.md", "generalise.csv", "nano", "evaluation",
    }  # fmt: skip
    assert run().split("\nStudy:")[0] == str(first).split("\nStudy:")[0]
