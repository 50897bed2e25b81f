"""The nano world on disk: NeIn's official layout, true to the scenes, never half-written."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nein.datasets.nein import load_folder
from nein.nano import data
from nein.nano.scenes import CATEGORIES, SIZE, box, render
from nein.wording.families import NEGATIVE_TEMPLATES, write_negative

SOURCES = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return data.ensure_data_set("val", SOURCES, tmp_path_factory.mktemp("nano"))


@pytest.fixture(scope="module")
def full():
    return list(data.iter_samples("val", data.DEFAULT_SOURCES["val"]))


def read(folder, name):
    return json.loads((folder / name).read_text(encoding="utf-8"))


def pixels(path):
    with Image.open(path) as image:
        assert image.mode == "RGB"
        return np.asarray(image)


def boxes_of(instances):
    name = {c["id"]: c["name"] for c in instances["categories"]}
    stem = {i["id"]: Path(i["file_name"]).stem for i in instances["images"]}
    found = {s: [] for s in stem.values()}
    for annotation in instances["annotations"]:
        found[stem[annotation["image_id"]]].append((name[annotation["category_id"]], annotation["bbox"]))
    return found


def test_the_samples_are_those_that_the_models_were_trained_on(full):
    assert {s.template for s in full} == set(range(len(NEGATIVE_TEMPLATES)))
    assert {s.object for s in full} == set(CATEGORIES)
    rows = [(s.coco, s.caption, s.negative, s.generated, s.nein, s.source, s.sample) for s in full]
    assert hashlib.sha256(repr(rows).encode()).hexdigest()[:16] == "321bc492572c9e91"
    for s in full[:100]:
        assert s.negative == write_negative(s.template, s.object)
        assert s.object not in s.source.categories
        assert s.sample.items == (*s.source.items, s.sample.items[-1])


def test_the_layout_is_neins_and_records_are_those_of_the_scenes(folder):
    records = read(folder, "val.json")
    names = {p.name for p in folder.iterdir()}
    assert names == {"val.json", "coco_for_val", "nein_val", "instances.json"}
    assert {p.stem for p in (folder / "nein_val").iterdir()} == {r["NeIn"] for r in records}
    assert len(list((folder / "coco_for_val").iterdir())) == SOURCES
    samples = list(data.iter_samples("val", SOURCES))
    assert [(r["COCO"], r["T_original"], r["T_negative"], r["T_generated"], r["NeIn"]) for r in records] == [
        (s.coco, s.caption, s.negative, s.generated, s.nein) for s in samples
    ]
    for s in samples:
        assert np.array_equal(pixels(folder / "coco_for_val" / f"{s.coco}.png"), render(s.source))
        assert np.array_equal(pixels(folder / "nein_val" / f"{s.nein}.png"), render(s.sample))


def test_coco_boxes_are_inside_the_picture_with_their_area_and_valid_ids(folder):
    instances = read(folder, "instances.json")
    images = {i["id"]: i for i in instances["images"]}
    assert [c["name"] for c in instances["categories"]] == list(CATEGORIES)
    categories = {c["id"] for c in instances["categories"]}
    ids = [a["id"] for a in instances["annotations"]]
    assert len(set(ids)) == len(ids) > 0
    assert {(image["width"], image["height"]) for image in images.values()} == {(SIZE, SIZE)}
    for a in instances["annotations"]:
        assert a["area"] == pytest.approx(a["bbox"][2] * a["bbox"][3])
        assert (a["image_id"] in images, a["category_id"] in categories, a["iscrowd"]) == (True, True, 0)
    content = boxes_of(instances)
    for s in data.iter_samples("val", SOURCES):
        scenes = [(i.category, *box(i)) for i in s.sample.items]
        assert content[s.nein] == [(c, [x0, y0, x1 - x0, y1 - y0]) for c, x0, y0, x1, y1 in scenes]


def test_other_splits_counts_and_code_get_folders_of_their_own(tmp_path, monkeypatch):
    a, b, dev = (data.ensure_data_set(*of, tmp_path) for of in (("val", 2), ("val", 3), ("dev", 3)))
    monkeypatch.setattr(data, "world_version", lambda: "0123456789")
    c = data.ensure_data_set("val", 2, tmp_path)
    assert len({a, b, c, dev}) == 4
    assert c.name.endswith("0123456789")
    assert {p.name for p in dev.iterdir()} >= {"dev.json", "coco_for_dev", "nein_dev"}
    assert len(load_folder(dev, split="dev").samples) >= 3


def test_nothing_half_written_is_left_when_drawing_fails(tmp_path, monkeypatch):
    real = Image.Image.save
    saved = []

    def failing(self, path, *args, **kwargs):
        if len(saved) == 5:
            raise KeyboardInterrupt
        saved.append(path)
        real(self, path, *args, **kwargs)

    monkeypatch.setattr(Image.Image, "save", failing)
    with pytest.raises(KeyboardInterrupt):
        data.ensure_data_set("val", 4, tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert (data.ensure_data_set("val", 4, tmp_path) / "val.json").exists()


@pytest.mark.parametrize(
    ("split", "sources", "said"),
    [("test", 3, "split 'test'. Allowed: train, dev, val"), ("val", 0, "must be at least 1, not 0")],
)
def test_an_unknown_split_and_a_count_below_one_are_named(split, sources, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        data.ensure_data_set(split, sources, tmp_path)
    assert list(tmp_path.iterdir()) == []
