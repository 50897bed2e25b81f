"""COCO's files, whoever reads them: captions and objects by picture, and a sentence for what is wrong."""

from __future__ import annotations

import json

import pytest

from nein.datasets import coco
from nein.loading.errors import UserError

IMAGES = [{"id": 7, "file_name": "seven.jpg"}, {"id": 8, "file_name": "deep/eight.jpg"}]
KINDS = [{"id": 1, "name": "dog"}, {"id": 2, "name": "wine glass"}, {"id": 3, "name": "kite"}]


def write(path, annotations, **more):
    path.write_text(json.dumps({"images": IMAGES, "annotations": annotations, **more}))
    return path


def test_captions_and_objects_are_joined_by_picture(tmp_path):
    said = [
        {"image_id": 8, "caption": "A dog."},
        {"image_id": 7, "caption": " Two  dogs. "},
        {"image_id": 8, "caption": None},
        {"image_id": 8, "caption": "It runs."},
    ]
    shown = [
        {"image_id": 7, "category_id": 2, "bbox": [1, 2, 3, 4.5], "segmentation": [[0, 0, 1, 0, 1, 1]]},
        {"image_id": 7, "category_id": 1, "iscrowd": 1, "segmentation": {"counts": [3], "size": [2, 2]}},
    ]
    captions = write(tmp_path / "captions.json", said)
    instances = write(tmp_path / "instances.json", shown, categories=KINDS)
    both = coco.read(captions=captions, instances=instances, folder=tmp_path / "images")
    seven, eight = both.images
    assert (seven.captions, eight.captions) == ((" Two  dogs. ",), ("A dog.", "It runs."))
    assert seven.objects == (
        coco.Instance("wine glass", (1.0, 2.0, 3.0, 4.5), ([0, 0, 1, 0, 1, 1],)),
        coco.Instance("dog", crowd=True),
    )
    assert (seven.categories, eight.categories) == ({"dog", "wine glass"}, set())
    assert (eight.path, eight.stem) == (tmp_path / "images" / "deep" / "eight.jpg", "eight")
    assert both.categories == ("dog", "wine glass", "kite")
    alone = coco.read(captions=captions)
    assert [p.captions for p in alone.images] == [p.captions for p in both.images]
    assert alone.images[0].path == tmp_path / "seven.jpg"  # beside the list


@pytest.mark.parametrize(("change", "sentence"), [
    ({"images": 3}, "'images': Input should be a valid array"),
    ({"images": [{"id": 1}]}, "'images.0.file_name': Field required"),
    ({"categories": [{"id": 1}]}, "'categories.0.name': Field required"),
    ({"annotations": [{"category_id": 1}]}, "'annotations.0.image_id': Field required"),
    ({"annotations": [{"image_id": 7, "category_id": 9}]}, "the unknown category 9"),
    ({"images": [*IMAGES, {"id": 8, "file_name": "9.jpg"}]}, "the same id, 8"),
    ({"annotations": [{"image_id": 7, "category_id": 1, "bbox": [1, 2, 3]}]}, "bbox.3': Field required"),
])  # fmt: skip
def test_what_is_wrong_is_named_with_the_entry(tmp_path, change, sentence):
    path = tmp_path / "instances.json"
    path.write_text(json.dumps({"images": IMAGES, "annotations": [], "categories": KINDS} | change))
    with pytest.raises(UserError, match=sentence) as caught:
        coco.read(instances=path)
    assert str(path) in str(caught.value)
