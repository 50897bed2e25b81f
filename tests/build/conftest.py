"""A small captioned image set, tiny models, and the command inside this process."""

import functools
import json

import pytest

from nein.engine.images import write_png
from tests.helpers.commands import outcome
from tests.metrics import tiny
from tests.metrics.conftest import blip, llava, models  # noqa: F401 - fixtures

OBJECTS = (
    "cat", "dog", "umbrella", "traffic light", "skis", "apple", "bus", "wine glass", "orange", "couch",
    "kite", "teddy bear", "oven", "person", "mouse", "bench",
)  # fmt: skip


def write_set(root, count=7, captions=5):
    """COCO captions of `count` random pictures, and a list of sixteen objects beside them."""
    (root / "images").mkdir(parents=True)
    listed, annotations = [], []
    for number in range(1, count + 1):
        name = f"COCO_train2014_{number:012d}.png"
        write_png(root / "images" / name, tiny.picture(number, 40 + number % 3, 32))
        listed.append({"id": number * 10, "file_name": name})
        for k in range(captions):
            text = f"A cat and two wine glasses near house number {number}, view {k}" + (
                ". " if k % 2 else ""
            )
            annotations.append({"id": len(annotations), "image_id": number * 10, "caption": text})
    (root / "captions.json").write_text(json.dumps({"images": listed, "annotations": annotations}))
    (root / "objects.txt").write_text("\n".join(OBJECTS))
    return root


@pytest.fixture(scope="session")
def captioned(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("captioned") / "set")


def arguments(data, judges, out, *more):
    """A whole build without a network: tiny judges, an editor without a model, thresholds with both
    outcomes."""
    return [
        *("--source", str(data / "captions.json"), "--images", str(data / "images")),
        *("--objects", str(data / "objects.txt"), "--queried", "8", "--out", str(out), "--device", "cpu"),
        *("--models.itm", str(judges / "blip"), "--models.vqa", "tests.rehearsal:varied"),
        *("--editor", "flaky", "--editor-options.fail_every", "7"),
        *("--absent-below", "0.3", "--match-above", "0.25", "--shard-size", "2", "--batch-size", "4"),
        *(str(part) for part in more),
    ]


@pytest.fixture
def build(capsys):
    return functools.partial(outcome, capsys, "generate")
