"""The shipped nano VLMs: one falls on negated questions, the other does not; both ways of scoring agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.negvqa.tiny import lines, run

MODELS = ("nano-negvqa", "nano-negvqa-negated")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The nano preset on 96 of its questions."""
    root = tmp_path_factory.mktemp("nano")
    assert run("--questions", 96, "--out", root, "--device", "cpu", "--formats", "md") == 0
    return root


def average(out: Path, model: str, variant: str, scoring: str = "generated") -> dict:
    summary = json.loads((out / model / "summary.json").read_text())
    wanted = {"scoring": scoring, "protocol": "fixed", "variant": variant, "category": "Average"}
    return next(e for e in summary["accuracy"] if all(e[key] == value for key, value in wanted.items()))


def test_the_affirmative_model_does_well_and_falls_on_negated_questions(out: Path) -> None:
    original, negated = (average(out, MODELS[0], v) for v in ("original", "negated"))
    assert original["value"] > 0.7
    assert negated["value"] < 0.35
    assert original["n"] == negated["n"] == 96
    summary = json.loads((out / MODELS[0] / "summary.json").read_text())
    gap = next(e for e in summary["paired"] if e["category"] == "Average" and e["protocol"] == "fixed")
    assert gap["low"] > 0.2
    assert gap["p_mcnemar"] < 0.001


def test_the_model_taught_negation_closes_most_of_the_gap(out: Path) -> None:
    original, negated = (average(out, MODELS[1], v) for v in ("original", "negated"))
    assert min(original["value"], negated["value"]) > 0.65
    assert original["value"] - negated["value"] < 0.15


def test_written_and_likeliest_letters_agree(out: Path) -> None:
    for model in MODELS:
        found = json.loads((out / model / "summary.json").read_text())["agreement"]
        assert found["n"] == 2 * 96
        assert found["share"] >= 0.99


def test_letters_are_not_favoured_by_their_place(out: Path) -> None:
    for model in MODELS:
        rows = [r for r in lines(out / model / "scores.jsonl") if r["protocol"] == "fixed"]
        share = sum(row["letter"] == "A" for row in rows) / len(rows)
        assert 0.3 < share < 0.7
