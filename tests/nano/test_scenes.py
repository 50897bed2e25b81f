"""Scenes: drawn from seeds, without overlap, rendered the same every time, with exact boxes and masks."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import random
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from nein.nano import draw
from nein.nano.data import source_scene
from nein.nano.draw import BACKGROUNDS, CATEGORIES, LOOKS, SIZE
from nein.nano.scenes import MAX_OBJECTS, SPLITS, Item, Scene, box, mask, place, render, rng_for, sample_scene
from tests.nano.random_scenes import random_scene

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def many() -> list[Scene]:
    return [random_scene(rng_for("train", i, "test")) for i in range(1500)]


def test_a_scene_renders_to_the_same_bytes_from_the_same_seed():
    for index in range(40):
        first = render(source_scene("val", index))
        draw.background.cache_clear()
        draw.layer.cache_clear()
        again = render(source_scene("val", index))
        assert first.tobytes() == again.tobytes()
        assert first.shape == (SIZE, SIZE, 3)
        assert first.dtype == np.uint8


def test_another_process_with_another_hash_seed_renders_the_same_bytes():
    code = (
        "import hashlib; from nein.nano.data import source_scene; from nein.nano.scenes import render\n"
        "d = hashlib.sha256()\n"
        "for i in range(20): d.update(render(source_scene('val', i)).tobytes())\n"
        "print(d.hexdigest())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, timeout=120
    )
    digest = hashlib.sha256()
    for i in range(20):
        digest.update(render(source_scene("val", i)).tobytes())
    assert done.stdout.strip() == digest.hexdigest()


def test_the_random_stream_depends_on_split_index_and_purpose_and_never_on_the_global_one():
    random.seed(1)
    before = random.getstate()
    draws = {
        rng_for(*key).random()
        for key in (("train", 0), ("dev", 0), ("train", 1), ("train", 0, "captions"), ("val", 0))
    }
    assert len(draws) == 5
    assert rng_for("dev", 7, "x").random() == rng_for("dev", 7, "x").random()
    random_scene(rng_for("dev", 7))
    assert random.getstate() == before


def test_scenes_hold_one_to_four_objects_and_all_counts_occur(many):
    counts = Counter(len(scene.items) for scene in many)
    assert set(counts) == {1, 2, 3, 4}
    assert min(counts.values()) > 200
    assert MAX_OBJECTS == 4
    assert {len(source_scene("val", i).items) for i in range(140)} == {1, 2, 3}


def test_every_category_every_colour_and_every_background_occurs(many):
    assert {scene.background for scene in many} == set(BACKGROUNDS)
    assert {i.category for scene in many for i in scene.items} == set(CATEGORIES)
    wanted = {(c, colour) for c in CATEGORIES for colour in LOOKS[c].colours}
    assert len({(i.category, i.colour) for s in many for i in s.items} ^ wanted) == 0


def test_a_category_sometimes_occurs_twice(many):
    several = [s for s in many if len(s.categories) < len(s.items)]
    assert 0.05 < len(several) / len(many) < 0.4


def test_objects_never_overlap_and_stay_inside_the_picture(many):
    for scene in many:
        for item in scene.items:
            x0, y0, x1, y1 = item.extent
            assert x0 >= 0
            assert y0 >= 0
            assert x1 <= SIZE
            assert y1 <= SIZE
        for a, b in combinations(scene.items, 2):
            (ax0, ay0, ax1, ay1), (bx0, by0, bx1, by1) = a.extent, b.extent
            gap = max(bx0 - ax1, ax0 - bx1, by0 - ay1, ay0 - by1)
            assert gap >= 1, scene


def test_no_pixel_belongs_to_two_objects(many):
    for scene in many[:200]:
        empty = render(scene_of(scene)).astype(int)
        touched = np.zeros((SIZE, SIZE), int)
        for item in scene.items:
            alone = render(scene_of(scene).with_item(item)).astype(int)
            touched += (np.abs(alone - empty).max(-1) > 0).astype(int)
        assert touched.max() <= 1


def scene_of(scene: Scene) -> Scene:
    return dataclasses.replace(scene, items=())


def test_splits_do_not_meet_neither_as_scenes_nor_as_pictures():
    scenes = {split: {source_scene(split, i) for i in range(300)} for split in SPLITS}
    pools = {split: {random_scene(rng_for(split, i, "pool")) for i in range(300)} for split in SPLITS}
    for family in (scenes, pools):
        pictures = {split: {render(s).tobytes() for s in family[split]} for split in SPLITS}
        for a, b in combinations(SPLITS, 2):
            assert len(family[a]) > 290
            assert not family[a] & family[b]
            assert not pictures[a] & pictures[b]


def test_without_takes_every_object_of_a_category_and_leaves_the_rest_in_order(many):
    seen_double = False
    for scene in many[:400]:
        for category in scene.categories:
            rest = scene.without(category)
            assert category not in rest.categories
            assert list(rest.items) == [i for i in scene.items if i.category != category]
            assert (rest.background, rest.background_seed) == (scene.background, scene.background_seed)
            seen_double |= len(scene.items) - len(rest.items) > 1
        absent = next(c for c in CATEGORIES if c not in scene.categories)
        assert scene.without(absent) == scene
    assert seen_double


def test_a_picture_without_a_category_differs_inside_its_boxes_only(many):
    for scene in many[:150]:
        category = scene.categories[0]
        difference = np.abs(render(scene).astype(int) - render(scene.without(category)).astype(int)).max(-1)
        inside = np.zeros((SIZE, SIZE), bool)
        for item in scene.items:
            if item.category == category:
                x0, y0, x1, y1 = box(item)
                inside[math.floor(y0) : math.ceil(y1), math.floor(x0) : math.ceil(x1)] = True
        assert difference[inside].max() > 20
        assert not difference[~inside].any()


def test_with_item_appends_and_leaves_the_original_alone():
    item = Item("dog", "brown", 18, 5.0, 5.0, False)
    scene = Scene("room", 1, ())
    assert scene.with_item(item).items == (item,)
    assert scene.items == ()


def test_a_mask_lies_in_the_box_and_fills_a_good_part_of_it(many):
    for scene in many[:150]:
        for item in scene.items:
            covered = mask(item)
            assert covered.shape == (SIZE, SIZE)
            assert covered.dtype == bool
            assert covered.sum() > 20
            x0, y0, x1, y1 = box(item)
            rows, columns = np.flatnonzero(covered.any(1)), np.flatnonzero(covered.any(0))
            assert columns[0] >= math.floor(x0)
            assert columns[-1] < math.ceil(x1)
            assert rows[0] >= math.floor(y0)
            assert rows[-1] < math.ceil(y1)
            assert covered.sum() > 0.25 * (x1 - x0) * (y1 - y0), item


def test_a_mask_is_where_the_object_covers_half_of_a_pixel_or_more(many):
    # Over two backgrounds b and d a pixel of coverage a differs by (1 - a) * (b - d), whatever the object is.
    # That holds where both are of one colour within the pixel, not at stars and horizons.
    bright, dark = Scene("snow", 3, ()), Scene("night", 3, ())
    gap = render(bright).astype(float) - render(dark).astype(float)
    channel, good = gap.argmax(-1), (gap.max(-1) > 60) & _plain(bright) & _plain(dark)
    checked = 0
    for item in [i for scene in many[:150] for i in scene.items]:
        left = render(bright.with_item(item)).astype(float) - render(dark.with_item(item)).astype(float)
        share = np.take_along_axis(1 - left / np.where(gap == 0, 1, gap), channel[..., None], -1)[..., 0]
        clear = good & (np.abs(share - 0.5) > 0.05)
        checked += clear.sum()
        assert np.array_equal(mask(item)[clear], share[clear] > 0.5), item
    assert checked > 100_000


def _plain(scene: Scene) -> np.ndarray:
    """(64, 64) bool: where the background has one colour within a pixel."""
    large = np.asarray(draw.background(scene.background, scene.background_seed))
    blocks = large.reshape(SIZE, draw.SUPERSAMPLE, SIZE, draw.SUPERSAMPLE, 3)
    return (blocks.max((1, 3)) == blocks.min((1, 3))).all(-1)


def test_a_box_lies_inside_the_extent_and_moves_with_the_item():
    item = Item("bicycle", "red", 20, 10.0, 20.0, False)
    moved = dataclasses.replace(item, x=15.25, y=18.5)
    x0, y0, x1, y1 = box(item)
    assert box(moved) == (x0 + 5.25, y0 - 1.5, x1 + 5.25, y1 - 1.5)
    ex0, ey0, ex1, ey1 = item.extent
    assert ex0 <= x0 < x1 <= ex1
    assert ey0 <= y0 < y1 <= ey1
    assert item.centre == ((ex0 + ex1) / 2, (ey0 + ey1) / 2)


def test_place_finds_no_room_where_there_is_none_and_room_where_there_is():
    wall = [Item("car", "red", 23, float(x), float(y), False) for x in (0, 20, 40) for y in range(0, 64, 14)]
    assert place(random.Random(0), "person", wall) is None
    found = place(random.Random(0), "person", wall[:2])
    assert found is not None
    assert found.category == "person"


def test_things_that_fly_are_mostly_above_things_that_stand():
    def height(category: str) -> float:
        rng = random.Random(5)
        items = [place(rng, category, ()) for _ in range(200)]
        return float(np.mean([i.centre[1] for i in items if i is not None]))

    assert height("airplane") + 4 < height("dog")
    assert height("kite") + 4 < height("chair")


def test_a_scene_of_some_categories_holds_only_these():
    for seed in range(50):
        scene = sample_scene(random.Random(seed), 3, ("dog", "cat"))
        assert set(scene.categories) <= {"dog", "cat"}
        assert 1 <= len(scene.items) <= 3
