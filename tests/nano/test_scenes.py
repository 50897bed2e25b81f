"""Scenes: drawn from seeds, without overlap, rendered the same every time, with exact boxes and masks."""

import dataclasses
import random
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from nein.nano import draw
from nein.nano.data import source_scene
from nein.nano.draw import BACKGROUNDS, CATEGORIES, LOOKS, SIZE
from nein.nano.scenes import MAX_OBJECTS, SPLITS, Scene, mask, render, rng_for
from tests.nano.words import random_scene


@pytest.fixture(scope="module")
def many():
    return [random_scene(rng_for("train", i, "test")) for i in range(1500)]


# That another process with another hash seed draws the same bytes: test_data.py, two processes at once.


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


def test_every_category_every_colour_and_every_background_occurs_and_a_category_sometimes_twice(many):
    assert {scene.background for scene in many} == set(BACKGROUNDS)
    wanted = {(c, colour) for c in CATEGORIES for colour in LOOKS[c].colours}
    assert {(i.category, i.colour) for s in many for i in s.items} == wanted
    for scene in many[:150]:
        rest = scene.without(scene.categories[0])
        assert list(rest.items) == [i for i in scene.items if i.category != scene.categories[0]]
    several = [s for s in many if len(s.categories) < len(s.items)]
    assert 0.05 < len(several) / len(many) < 0.4


def test_objects_never_overlap_and_stay_inside_the_picture(many):
    for scene in many:
        for item in scene.items:
            x0, y0, x1, y1 = item.extent
            assert min(x0, y0) >= 0
            assert max(x1, y1) <= SIZE
        for a, b in combinations(scene.items, 2):
            (ax0, ay0, ax1, ay1), (bx0, by0, bx1, by1) = a.extent, b.extent
            assert max(bx0 - ax1, ax0 - bx1, by0 - ay1, ay0 - by1) >= 1, scene
    for scene in many[:200]:  # no pixel belongs to two of them
        empty = dataclasses.replace(scene, items=())
        touched = np.zeros((SIZE, SIZE), int)
        for item in scene.items:
            touched += (render(empty.with_item(item)) != render(empty)).any(-1)
        assert touched.max() <= 1


def test_splits_do_not_meet_neither_as_scenes_nor_as_pictures():
    scenes = {split: {source_scene(split, i) for i in range(300)} for split in SPLITS}
    pools = {split: {random_scene(rng_for(split, i, "pool")) for i in range(300)} for split in SPLITS}
    for family in (scenes, pools):
        pictures = {split: {render(s).tobytes() for s in family[split]} for split in SPLITS}
        for a, b in combinations(SPLITS, 2):
            assert len(family[a]) > 290
            assert not family[a] & family[b]
            assert not pictures[a] & pictures[b]


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


def _plain(scene):
    """(64, 64) bool: where the background has one colour within a pixel."""
    large = np.asarray(draw.background(scene.background, scene.background_seed))
    blocks = large.reshape(SIZE, draw.SUPERSAMPLE, SIZE, draw.SUPERSAMPLE, 3)
    return (blocks.max((1, 3)) == blocks.min((1, 3))).all(-1)
