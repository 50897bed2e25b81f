"""Categories and backgrounds: what there is, that it can be seen, and that it stays inside its box."""

import math
from itertools import combinations

import numpy as np
import pytest

from nein.generate.nein.sources import COCO
from nein.nano.draw import BACKGROUNDS, CATEGORIES, LOOKS
from nein.nano.scenes import MAX_SIZE, MIN_SIZE, Item, Scene, box, mask, render


def changed(item, background):
    """(64, 64): by how much the item changes each pixel, in its strongest channel."""
    empty = Scene(background, 3, ())
    return np.abs(render(empty.with_item(item)).astype(int) - render(empty)).max(-1)


def drawn(category, colour):
    return render(Scene("room", 3, (Item(category, colour, 20, 20.0, 20.0, False),))).astype(float)


def apart(pictures, area=slice(None)):
    return min(np.abs(pictures[a] - pictures[b])[area].mean() for a, b in combinations(pictures, 2))


def test_thirty_categories_of_coco_and_eight_backgrounds_and_no_two_look_alike():
    assert len(CATEGORIES) == 30
    assert set(CATEGORIES) <= set(COCO)
    assert apart({name: drawn(name, LOOKS[name].colours[0]) for name in CATEGORIES}) > 2
    assert len(BACKGROUNDS) == 8
    assert apart({kind: render(Scene(kind, 1, ())).astype(float) for kind in BACKGROUNDS}) > 5
    for kind in BACKGROUNDS:
        assert len({render(Scene(kind, seed, ())).tobytes() for seed in range(8)}) >= 7, kind


@pytest.mark.parametrize("category", CATEGORIES)
def test_a_box_is_tight_around_what_can_be_seen(category):
    look = LOOKS[category]
    for size in (MIN_SIZE, MAX_SIZE):
        item = Item(category, look.colours[0], size, 12.25, 7.5, flip=look.mirror)
        # A side may have the colour of one background, so the pixels that change before any background count.
        touched = np.any([changed(item, background) > 0 for background in BACKGROUNDS], axis=0)
        rows, columns = np.flatnonzero(touched.any(1)), np.flatnonzero(touched.any(0))
        x0, y0, x1, y1 = box(item)
        assert (math.floor(x0), math.floor(y0)) == (columns[0], rows[0])
        assert (math.ceil(x1), math.ceil(y1)) == (columns[-1] + 1, rows[-1] + 1)


@pytest.mark.parametrize("category", [name for name in CATEGORIES if len(LOOKS[name].colours) > 1])
def test_colours_of_a_category_can_be_told_apart(category):
    colours = LOOKS[category].colours
    area = mask(Item(category, colours[0], 20, 20.0, 20.0, False))
    assert apart({colour: drawn(category, colour) for colour in colours}, area) > 4
