"""Lists of captioned images: every format, and everything that can be wrong with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nein.engine.errors import UserError
from nein.engine.images import write_png
from nein.generate.nein import objects, sources
from tests.metrics import tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png", "deep/a.png", "COCO_val2014_000000000007.png"):
        write_png(tmp_path / "images" / name, tiny.picture(len(name)))
    return tmp_path


def coco(folder: Path, images: list, annotations: list) -> Path:
    path = folder / "captions.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations}))
    return path


def load(path: Path, images: Path | None = None) -> sources.SourceSet:
    return sources.load(str(path), str(images) if images else None, scenes=1, out=path.parent)


def test_coco_captions_are_joined_by_image_and_named_as_nein_names_them(folder):
    path = coco(
        folder,
        [{"id": 7, "file_name": "COCO_val2014_000000000007.png"}, {"id": 9, "file_name": "a.png"}],
        [
            {"image_id": 7, "caption": " A dog.\nIt  runs. "},
            {"image_id": 9, "caption": "A cat"},
            {"image_id": 7, "caption": "A dog"},
            {"image_id": 9, "caption": "  "},
        ],
    )
    first, second = load(path, folder / "images").sources
    assert (first.id, first.sample_stem) == ("COCO_000000000007", "NeIn_000000000007")
    assert first.captions == ("A dog. It runs.", "A dog")
    assert first.path == folder / "images" / "COCO_val2014_000000000007.png"
    assert (second.id, second.sample_stem, second.captions) == ("a", "NeIn_a", ("A cat",))


@pytest.mark.parametrize(
    ("stem", "expected"),
    [
        ("COCO_train2014_000000000009", "COCO_000000000009"),
        ("000000000009", "COCO_000000000009"),
        ("COCO_000000000009", "COCO_000000000009"),
        ("holiday", "holiday"),
        ("12", "12"),
    ],
)
def test_the_split_is_left_out_of_names_of_coco(stem, expected):
    assert sources.official_stem(stem) == expected


def test_a_folder_with_a_jsonl_and_images_beside_it(folder):
    lines = [
        {"image": "a.png", "captions": ["one", "two"]},
        {"file_name": "b.png", "text": "three"},
        {"image": "a.png", "caption": "four"},
    ]
    (folder / "images" / "list.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    found = load(folder / "images")
    assert [(s.id, s.captions) for s in found.sources] == [("a", ("one", "two", "four")), ("b", ("three",))]
    assert dict(found.notes) == {"image listed again; captions added": 1}


def test_missing_captions_and_equal_and_bad_names_are_kept_with_their_problem(folder):
    lines = [
        {"image": "a.png", "captions": ["one"]},
        {"image": "deep/a.png", "captions": ["another file of that name"]},
        {"image": "b.png", "captions": []},
        {"image": "../b.png", "captions": ["outside"]},
        {"image": "COCO_a.png", "captions": ["would make the samples of a.png"]},
    ]
    (folder / "list.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    found = load(folder / "list.jsonl", folder / "images")
    expected = ["", sources.SAME_NAME, sources.NO_CAPTION, sources.BAD_NAME, sources.SAME_NAME]
    assert [s.problem for s in found.sources] == expected


def test_the_hash_covers_names_and_captions(folder):
    def sha(caption: str) -> str:
        rows = [{"image_id": 1, "caption": caption}]
        return load(coco(folder, [{"id": 1, "file_name": "a.png"}], rows), folder / "images").sha256

    assert sha("A cat.") == sha("A  cat.")
    assert sha("A cat.") != sha("A dog.")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.json", "{", "is not valid JSON"),
        ("x.json", "[]", "is no COCO file"),
        ("x.json", '{"images": [{"id": 1}], "annotations": []}', "without 'id' or 'file_name'"),
        ("x.json", '{"images": [], "annotations": [{}]}', "without 'image_id'"),
        ("x.jsonl", '{"image": "a.png"}\n{', "line 2, the last one, is cut short"),
        ("x.jsonl", '{"caption": "a"}', "line 1, names no image"),
        ("x.jsonl", '{"image": "a.png", "captions": 3}', "captions that must be"),
        ("x.jsonl", '{"image": "gone.png", "caption": "a"}', "None of the 1 images"),
    ],
)
def test_a_list_that_cannot_be_used_is_one_sentence(folder, name, content, sentence):
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=sentence):
        load(folder / name, folder / "images")


def test_a_source_or_folder_that_is_not_there_is_one_sentence(folder):
    with pytest.raises(UserError, match="neither nano"):
        load(folder / "nowhere")
    with pytest.raises(UserError, match="exactly one"):
        load(folder / "images")
    (folder / "x.jsonl").write_text("{}")
    with pytest.raises(UserError, match="is not a folder"):
        load(folder / "x.jsonl", folder / "gone")


def test_nano_scenes_are_drawn_once_and_more_extend_them(tmp_path):
    few = sources.load("nano", None, scenes=2, out=tmp_path)
    before = few.sources[0].path.stat().st_mtime_ns
    more = sources.load("nano", None, scenes=3, out=tmp_path)
    assert [s.id for s in more.sources[:2]] == [s.id for s in few.sources]
    assert more.sources[0].path.stat().st_mtime_ns == before
    assert len(sources.load("nano", None, scenes=2, out=tmp_path).sources) == 2
    assert all(s.path.is_file() and len(s.captions) >= 3 for s in more.sources)


def test_lists_of_objects(tmp_path):
    assert len(objects.load("coco", 15)) == 80
    assert "fire hydrant" in objects.load("nano", 15)
    (tmp_path / "o.txt").write_text("cat\n\n  hot   dog \ncat\n")
    assert objects.load(str(tmp_path / "o.txt"), 2) == ("cat", "hot dog")
    with pytest.raises(UserError, match="asks for 3 categories per image"):
        objects.load(str(tmp_path / "o.txt"), 3)
    with pytest.raises(UserError, match="takes coco, nano or a text file"):
        objects.load("cocoa", 3)
    (tmp_path / "o.txt").write_text("cat; dog")
    with pytest.raises(UserError, match="one plain name per line"):
        objects.load(str(tmp_path / "o.txt"), 1)
