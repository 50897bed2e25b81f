"""--debug-zone: one picture per sample with ZONE's intermediate maps, and nothing else changed."""

from __future__ import annotations

import numpy as np
import pytest

from nein.benchmarks.nein.edit import CELL, write_sheet
from nein.editors import EditResult
from nein.engine import images
from tests.editors.tiny import build_action, build_sam
from tests.helpers.runs import edits_of
from tests.nein.conftest import write_data


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """ZONE on the shipped nano editors with a tiny SAM and classifier, four samples of 32 x 24 pixels."""
    root = tmp_path_factory.mktemp("zone")
    write_data(root / "data", 2, 2)
    models = {"sam": build_sam(root / "sam"), "action": build_action(root / "action", width=128)}
    line = ["--editor", "zone", "--data", str(root / "data"), "--device", "cpu", "--batch-size", "2"]
    line += ["--steps", "2", "--metrics", "l1", "--control", "none"]
    for name, folder in models.items():
        line += [f"--editor-options.{name}", str(folder)]
    return line


def files(run, kind):
    return {path.stem: path.read_bytes() for path in sorted((run / kind).glob("*.png"))}


def test_sheets_are_drawn_when_asked_for_and_change_nothing(options, evaluate, tmp_path):
    plain = evaluate(*options, "--out", tmp_path / "plain")
    assert plain.code == 0, plain.stderr
    drawn = evaluate(*options, "--out", tmp_path / "drawn", "--debug-zone")
    assert drawn.code == 0, drawn.stderr
    before, after = tmp_path / "plain" / "zone" / "negative", tmp_path / "drawn" / "zone" / "negative"
    assert not (before / "maps").exists()
    assert set(files(after, "maps")) == set(files(after, "images"))
    assert len(files(after, "maps")) == 4
    assert files(before, "images") == files(after, "images")
    assert edits_of(before) == edits_of(after)
    sheet = images.decode(next((after / "maps").glob("*.png")))
    assert sheet.shape[1] > 13 * CELL
    notes = [edit["note"] for edit in edits_of(after)]
    assert all(note.split(",")[0] in ("CHANGE", "ADD", "REMOVE") for note in notes)

    # A finished run gets the sheets it lacks, and only those.
    again = evaluate(*options, "--out", tmp_path / "plain", "--debug-zone")
    assert again.code == 0, again.stderr
    assert files(before, "maps") == files(after, "maps")
    assert files(before, "images") == files(after, "images")
    assert edits_of(before) == edits_of(after)
    stamps = {path: path.stat().st_mtime_ns for path in (before / "maps").glob("*.png")}
    assert evaluate(*options, "--out", tmp_path / "plain", "--debug-zone").code == 0
    assert {path: path.stat().st_mtime_ns for path in (before / "maps").glob("*.png")} == stamps


def test_an_editor_without_maps_and_a_missing_classifier_are_said_before_any_work(
    options, evaluate, tmp_path
):
    other = ["identity" if part == "zone" else part for part in options[:6]]
    for line, said in (
        ([*other, "--metrics", "l1", "--debug-zone"], "no editor here has any; add --editor zone"),
        ([*options[:-1], str(tmp_path / "nowhere.pth")], "nowhere.pth'; fetch ckpts/action_classifier.pth"),
    ):
        done = evaluate(*line, "--out", tmp_path / "out")
        assert done.code == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "out").exists()


def test_a_sheet_shows_every_map_its_note_and_a_failure(tmp_path):
    maps = {"cells": np.zeros((2, 2), np.uint8), "picture": np.full((4, 4, 3), 200, np.uint8)}
    whole = EditResult("a", np.zeros((4, 4, 3), np.uint8), note="fine", maps=maps)
    failed = EditResult("a", None, "no segment", "fine", maps)
    for name, result in (("whole", whole), ("failed", failed), ("none", EditResult("a", None, "bad"))):
        write_sheet(tmp_path / f"{name}.png", "Remove the cat.", result)
    one, other = images.decode(tmp_path / "whole.png"), images.decode(tmp_path / "failed.png")
    assert other.shape[1] - one.shape[1] >= CELL  # one cell more, for the reason
    assert (one == 0).all(-1).sum() >= CELL * CELL  # the cells, enlarged without blur
    assert (one == 200).all(-1).sum() >= CELL * CELL
    assert not (tmp_path / "none.png").exists()
