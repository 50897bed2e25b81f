"""Scenes: drawn from seeds, without overlap, rendered the same every time, with exact boxes."""

import hashlib
import math
import random
from itertools import combinations

import numpy as np
import pytest

from nein.nano.data import source_scene
from nein.nano.scenes import BACKGROUNDS, LOOKS, MAX_SIZE, MIN_SIZE, SPLITS, Item, Scene, box, render, rng_for
from nein.nano.sentences import write_captions
from tests.nano.words import random_scene


@pytest.fixture(scope="module")
def many():
    return [random_scene(rng_for("train", i, "test")) for i in range(1500)]


def test_the_scenes_are_those_that_the_models_were_trained_on(many):
    assert {len(scene.items) for scene in many} == {1, 2, 3, 4}
    assert hashlib.sha256(repr(many).encode()).hexdigest()[:16] == "ec7c6dda694eaf27"
    for scene in many[:100]:
        rest = scene.remove(scene.categories[0])
        assert list(rest.items) == [i for i in scene.items if i.category != scene.categories[0]]


def test_splits_do_not_meet_neither_as_scenes_nor_as_pictures():
    scenes = {split: {source_scene(split, i) for i in range(100)} for split in SPLITS}
    pools = {split: {random_scene(rng_for(split, i, "pool")) for i in range(100)} for split in SPLITS}
    for family in (scenes, pools):
        pictures = {split: {render(s).tobytes() for s in family[split]} for split in SPLITS}
        for a, b in combinations(SPLITS, 2):
            assert len(family[a]) > 95
            assert not family[a] & family[b]
            assert not pictures[a] & pictures[b]


def test_the_captions_are_those_that_the_models_were_trained_on():
    scenes = [random_scene(rng_for("train", i, "captions test")) for i in range(1600)]
    scenes += [Scene(kind, 1, ()) for kind in BACKGROUNDS]
    told = "\n".join(c.lower() for i, s in enumerate(scenes) for c in write_captions(s, random.Random(i)))
    assert hashlib.sha256(told.encode()).hexdigest()[:16] == "177a0ce5f7b60b8a"


@pytest.mark.parametrize("size", [MIN_SIZE, MAX_SIZE])
def test_a_box_is_tight_around_what_can_be_seen(size):
    for category, look in LOOKS.items():
        item = Item(category, look.colors[0], size, 12.25, 7.5, flip=look.mirror)
        empty = [Scene(background, 3, ()) for background in BACKGROUNDS]
        # A side may have the colour of one background, so the pixels that change before any of them count.
        touched = np.any([(render(s.add(item)) != render(s)).any(-1) for s in empty], axis=0)
        rows, columns = np.flatnonzero(touched.any(1)), np.flatnonzero(touched.any(0))
        x0, y0, x1, y1 = box(item)
        found = (math.floor(x0), math.floor(y0), math.ceil(x1), math.ceil(y1))
        assert found == (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1), category
