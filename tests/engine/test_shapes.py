"""What was read back is told from what was written, in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.shapes import fault, quick

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
