"""What was read back is told from what was written, in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import Folder
from nein.engine.shapes import fault, quick
from nein.reporting import figures

SHAPE = {"id": str, "value": (float, None), "data?": {"side": int, "names?": [str]}}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"id": "a", "value": 1, "more": 2}, ""),
        ({"id": "a", "value": None, "data": {"side": 3, "names": ["x"]}}, ""),
        ({"value": 1.5}, "'id' is missing"),
        ({"id": None, "value": 1.5}, "'id' is null, which must be a text"),
        ({"id": "a", "value": True}, "'value' is true, which must be a number or null"),
        ({"id": "a", "value": 1, "data": {"side": "3"}}, "'data.side' is \"3\", which must be a whole"),
        ({"id": "a", "value": 1, "data": {"side": 3, "names": [1]}}, "'data.names[0]' is 1, which must be a"),
        ({"id": "a", "value": 1, "data": []}, "'data' is [], which must be an object"),
        ([], "is [], which must be an object"),
    ],
)
def test_the_first_thing_that_is_wrong_is_named(value: Any, said: str) -> None:
    assert fault(value, SHAPE).startswith(said)
    assert bool(said) == bool(fault(value, SHAPE))
    assert quick(SHAPE)(value) == (said == "")


def test_a_file_without_its_shape_is_a_sentence_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a", "value": 1}\n{"id": "b"}\n')
    with pytest.raises(UserError, match="line 2: 'value' is missing"):
        atomic.read_lines(path, SHAPE)
    path.write_text(json.dumps({"id": 3, "value": 1}))
    with pytest.raises(UserError, match="'id' is 3, which must be a text"):
        atomic.read_json(path, SHAPE)


@pytest.mark.parametrize("text", ["model,metric\na,b\n", "", "n,value\n1,2\n"])
def test_a_file_that_is_no_frame_of_figures_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "figures.csv").write_text(text)
    with pytest.raises(UserError, match="holds no figures"):
        figures.read(tmp_path / "figures.csv")


@pytest.mark.parametrize(
    ("kind", "note", "said"),
    [
        ("models", {"name": "x"}, "'fingerprint' is missing"),
        ("steps", {"stage": "edit", "place": "first"}, "'place' is \"first\", which must be a whole number"),
        ("aside", {"stage": "edit", "block": 0, "reason": "x", "outputs": "edit"}, "which must be a list"),
        ("invocations", {"started": "now", "command": "eval"}, "which must be a list"),
        ("invocations", {"started": "now", "environment": 3.5}, "which must be an object"),
        ("models", [], "which must be an object"),
    ],
)
def test_notes_have_a_shape(tmp_path: Path, kind: str, note: dict[str, Any], said: str) -> None:
    folder = Folder(tmp_path)
    atomic.write_json(tmp_path / "notes" / kind / "one.json", note)
    with pytest.raises(UserError, match=said):
        folder.notes(kind)


def test_a_manifest_says_what_the_folder_is(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 5, "status": "complete"}')
    with pytest.raises(UserError, match="'identity' is missing"):
        Folder(tmp_path).manifest()


def test_costs_may_end_in_a_torn_line_and_have_a_shape(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.cost("edit", 3, {"seconds": 1.0, "at": 2.0}, "one")
    [file] = folder.cost_files("edit")
    whole = file.read_text()
    file.write_text(whole + whole[:9])
    assert list(folder.costs("edit")) == [3]
    file.write_text(whole + '{"block": 4}\n')
    with pytest.raises(UserError, match="line 2: 'at' is missing"):
        folder.costs("edit")
