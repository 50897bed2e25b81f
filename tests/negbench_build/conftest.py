"""Small sources in the layouts of COCO and VOC2007, with real pictures; the command run in this process."""

import functools
import json

import numpy as np
import pytest

from nein.engine.images import write_png
from tests.helpers.commands import outcome

OBJECTS = {
    "a.png": ["dog", "cat"],
    "b.png": ["dog", "cat", "car"],
    "c.png": ["dog", "car"],
    "d.png": ["cat", "boat"],
    "e.png": ["dog", "cat", "boat"],
}


@pytest.fixture
def negbench(capfd):
    return functools.partial(outcome, capfd, "negbench")


def picture(shade):
    return np.full((12, 16, 3), shade, np.uint8)


@pytest.fixture(scope="session")
def coco(tmp_path_factory):
    """images/, instances.json, captions.json; one image has no object, one file is no picture."""
    root = tmp_path_factory.mktemp("coco")
    names = [*OBJECTS, "empty.png", "broken.png"]
    categories = ["dog", "cat", "car", "boat", "kite"]
    images = []
    found = []
    said = []
    for number, name in enumerate(names):
        images.append({"id": number, "file_name": name})
        for thing in OBJECTS.get(name, ["dog", "cat"] if name == "broken.png" else []):
            for _ in range(2):  # two of each: an image counts once
                found.append({"image_id": number, "category_id": categories.index(thing)})
        said.append(
            {"image_id": number, "caption": f"A  picture of {' and '.join(OBJECTS.get(name, ['sky']))}."}
        )
        if name == "broken.png":
            (root / "images" / name).write_bytes(b"no picture")
        else:
            write_png(root / "images" / name, picture(20 * number))
    kinds = [{"id": k, "name": name} for k, name in enumerate(categories)]
    instances = {"images": images, "annotations": found, "categories": kinds}
    (root / "instances.json").write_text(json.dumps(instances))
    (root / "captions.json").write_text(json.dumps({"images": images, "annotations": said}))
    return root


@pytest.fixture(scope="session")
def voc(tmp_path_factory):
    """A VOC2007 folder of four images; a difficult object in one, a damaged annotation in another."""
    root = tmp_path_factory.mktemp("voc")
    (root / "Annotations").mkdir()
    (root / "ImageSets" / "Main").mkdir(parents=True)
    shown = {"000001": ["dog", "cat"], "000002": ["dog", "cat", "car"], "000003": ["dog", "car!"]}
    for stem, names in shown.items():
        objects = "".join(
            f"<object><name>{name.strip('!')}</name><difficult>{int(name.endswith('!'))}</difficult></object>"
            for name in names
        )
        text = f"<annotation><filename>{stem}.jpg</filename>{objects}</annotation>"
        (root / "Annotations" / f"{stem}.xml").write_text(text)
        write_png(root / "JPEGImages" / f"{stem}.jpg", picture(50))
    (root / "Annotations" / "000004.xml").write_text("<annotation><object>")
    (root / "ImageSets" / "Main" / "test.txt").write_text("000001\n000002\n")
    return root
