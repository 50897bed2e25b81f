"""What was read back is told from what was written, in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nein.benchmarks.nein.reporting import judge_tables
from nein.benchmarks.nein.runs import RunDir, scores_of
from nein.datasets.negbench.concepts import Concepts
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import Folder
from nein.engine.shapes import fault, quick
from nein.generate.negbench import listing
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
            "'data.names[0]' is 1, which must be a",
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
    (tmp_path / "vqa.json").write_text('{"kind": "vqa", "fingerprint": "x", "article": null}')
    lines = tmp_path / "vqa.jsonl"
    row = {"set": "nano", "cluster": "a", "role": "sample", "present": True, "score": 0.5}
    row |= {"verdict_fixed": True, "verdict_paper": None}
    lines.write_text(json.dumps(row) + "\n")
    assert judge_tables.load([tmp_path], explicit=True)[0].rows == [row]
    lines.write_text(json.dumps({**row, "present": "yes"}) + "\n")
    with pytest.raises(UserError, match="line 1: 'present' is \"yes\", which must be true or false"):
        judge_tables.load([tmp_path], explicit=True)


@pytest.mark.parametrize(
    ("kind", "note", "said"),
    [
        ("models", {"name": "x"}, "'fingerprint' is missing"),
        ("steps", {"stage": "edit", "place": "first"}, "'place' is \"first\", which must be a whole number"),
        ("aside", {"stage": "edit", "block": 0, "reason": "x", "outputs": "edit"}, "which must be a list"),
        ("invocations", {"started": "now", "command": "eval"}, "which must be a list"),
        ("invocations", {"started": "now", "environment": 3.5}, "which must be an object"),
    ],
)
def test_notes_have_a_shape(tmp_path: Path, kind: str, note: dict[str, Any], said: str) -> None:
    folder = Folder(tmp_path)
    folder.note(kind, "one", note)
    with pytest.raises(UserError, match=said):
        folder.notes(kind)


def test_a_manifest_says_what_the_folder_is(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 5, "status": "complete"}')
    with pytest.raises(UserError, match="'identity' is missing"):
        Folder(tmp_path).manifest()


def test_rows_of_a_block_have_the_shape_of_their_output(tmp_path: Path) -> None:
    run = RunDir(tmp_path, "ip2p", "negative")
    run.write(scores_of("l1"), 0, [{"id": "a", "value": 1.0, "reason": ""}])
    assert run.read(scores_of("l1"), 0)[0]["value"] == 1.0
    run.write(scores_of("l1"), 0, [{"id": "a", "value": "1.0", "reason": ""}])
    with pytest.raises(UserError, match=r"line 1: 'value' is .*which must be a number or null"):
        run.read(scores_of("l1"), 0)


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


def test_a_distance_without_what_it_was_worked_out_from_is_a_sentence(tmp_path: Path) -> None:
    run = RunDir(tmp_path, "ip2p", "negative")
    atomic.write_json(
        run.path / "corpus.json", {"fid": {"value": 1.0, "reasons": {}, "n_unscored": 0, "n": 2}}
    )
    with pytest.raises(UserError, match=r"'fid\.clusters' is missing; score the run again"):
        run.read_corpus()


def test_a_list_of_images_has_a_shape(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    listing.write(folder, [Concepts("a", captions=("A dog.",))], 8)
    assert listing.members(folder, 0) == [Concepts("a", captions=("A dog.",))]
    folder.write(listing.LIST, 0, [{"id": "a", "captions": "A dog."}])
    with pytest.raises(UserError, match=r"'captions' is .*, which must be a list"):
        listing.members(folder, 0)
    atomic.write_json(tmp_path / listing.LIST / "list.json", {"count": 1})
    with pytest.raises(UserError, match="'shard_size' is missing"):
        listing.read(folder)


def test_a_manifest_or_note_that_is_a_list_is_a_sentence(tmp_path: Path) -> None:
    atomic.write_json(tmp_path / "notes" / "models" / "model.json", [])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="which must be an object"):
        Folder(tmp_path, "rows").notes("models")
