"""Scenes: drawn from seeds, without overlap, rendered the same every time, with exact boxes and masks."""

import hashlib
import random
from itertools import combinations

import numpy as np
import pytest

from nein.nano import draw
from nein.nano.data import source_scene
from nein.nano.draw import SIZE
from nein.nano.scenes import SPLITS, Scene, mask, render, rng_for
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


def test_the_scenes_are_those_that_the_models_were_trained_on(many):
    assert {len(scene.items) for scene in many} == {1, 2, 3, 4}
    assert hashlib.sha256(repr(many).encode()).hexdigest()[:16] == "8daaedfe62dff7cd"
    for scene in many[:100]:
        rest = scene.without(scene.categories[0])
        assert list(rest.items) == [i for i in scene.items if i.category != scene.categories[0]]


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
