"""What was read back is told from what was written, in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nein.benchmarks.nein.reporting import judge_tables
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
        (
            {"id": "a", "value": 1, "data": {"side": "3"}},
            "'data.side' is \"3\", which must be a whole",
        ),
        (
            {"id": "a", "value": 1, "data": {"side": 3, "names": [1]}},
            "'data.names' is 1, which must be a",
        ),
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


def test_calibration_files_have_a_shape(tmp_path: Path) -> None:
    (tmp_path / "vqa.json").write_text('{"kind": "vqa", "fingerprint": "x"}')
    lines = tmp_path / "vqa.jsonl"
    row = {"set": "nano", "cluster": "a", "present": True, "score": 0.5}
    row |= {"verdict_fixed": True, "verdict_paper": None}
    lines.write_text(json.dumps(row) + "\n")
    assert judge_tables.load([tmp_path], explicit=True)[0].rows == [row]
    lines.write_text(json.dumps({**row, "present": "yes"}) + "\n")
    with pytest.raises(UserError, match="line 1: 'present' is \"yes\", which must be true or false"):
        judge_tables.load([tmp_path], explicit=True)


def test_a_manifest_or_note_that_is_a_list_is_a_sentence(tmp_path: Path) -> None:
    atomic.write_json(tmp_path / "notes" / "models" / "model.json", [])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="which must be an object"):
        Folder(tmp_path, "rows").notes("models")
