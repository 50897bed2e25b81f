"""Categories and backgrounds: what there is, that it can be seen, and that it stays inside its box."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nein.generate.nein.objects import COCO
from nein.nano import draw
from nein.nano.draw import BACKGROUNDS, CATEGORIES, LOOKS, PALETTE, SIZE, SUPERSAMPLE
from nein.nano.scenes import MAX_SIZE, MIN_SIZE, Item, Scene, box, mask, render


def pair(item: Item, background: str = "room", seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """The picture with only the item, and the picture without it, as signed integers."""
    empty = Scene(background, seed, ())
    return render(empty.with_item(item)).astype(int), render(empty).astype(int)


def changed(item: Item, background: str = "room", seed: int = 3) -> np.ndarray:
    """(64, 64): by how much the item changes each pixel, in its strongest channel."""
    with_item, without = pair(item, background, seed)
    return np.abs(with_item - without).max(-1)


def test_all_thirty_categories_are_names_of_coco():
    assert len(CATEGORIES) == 30
    assert set(CATEGORIES) <= set(COCO)


def test_there_are_eight_backgrounds_and_no_two_look_alike():
    assert len(BACKGROUNDS) == 8
    seen = {kind: render(Scene(kind, 1, ())).astype(float) for kind in BACKGROUNDS}
    kinds = list(seen)
    for i, a in enumerate(kinds):
        for b in kinds[:i]:
            assert np.abs(seen[a] - seen[b]).mean() > 5, (a, b)


def test_a_background_varies_with_its_seed():
    for kind in BACKGROUNDS:
        assert len({render(Scene(kind, seed, ())).tobytes() for seed in range(8)}) >= 7, kind


def test_every_look_has_known_colours_without_repetition():
    for category, look in LOOKS.items():
        assert look.colours, category
        assert len(set(look.colours)) == len(look.colours), category
        assert set(look.colours) <= set(PALETTE), category


@pytest.mark.parametrize("category", CATEGORIES)
def test_a_category_visibly_changes_its_box_and_nothing_outside(category):
    for colour in LOOKS[category].colours:
        item = Item(category, colour, 18, 21.5, 20.75, flip=False)
        x0, y0, x1, y1 = box(item)
        inside = np.zeros((SIZE, SIZE), bool)
        inside[math.floor(y0) : math.ceil(y1), math.floor(x0) : math.ceil(x1)] = True
        for background in BACKGROUNDS:
            difference = changed(item, background)
            assert not difference[~inside].any(), (colour, background)
            assert (difference[mask(item)] > 20).mean() > 0.5, (colour, background)


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


@pytest.mark.parametrize("category", CATEGORIES)
def test_colours_of_a_category_can_be_told_apart(category):
    pictures = {
        colour: render(Scene("room", 3, (Item(category, colour, 20, 20.0, 20.0, False),))).astype(float)
        for colour in LOOKS[category].colours
    }
    area = mask(Item(category, LOOKS[category].colours[0], 20, 20.0, 20.0, False))
    names = list(pictures)
    for i, a in enumerate(names):
        for b in names[:i]:
            assert np.abs(pictures[a] - pictures[b])[area].mean() > 4, (a, b)


def test_no_two_categories_look_alike():
    seen = {
        c: render(Scene("room", 3, (Item(c, LOOKS[c].colours[0], 20, 20.0, 20.0, False),))).astype(float)
        for c in CATEGORIES
    }
    for i, a in enumerate(CATEGORIES):
        for b in CATEGORIES[:i]:
            assert np.abs(seen[a] - seen[b]).mean() > 2, (a, b)


def test_flipping_mirrors_the_drawing():
    plain, flipped = draw.layer("dog", "brown", 20, False), draw.layer("dog", "brown", 20, True)
    a, b = np.asarray(plain), np.asarray(flipped)
    assert not np.array_equal(a, b)
    assert np.array_equal(a[:, ::-1], b)


def test_a_layer_has_the_size_it_is_asked_for():
    look = LOOKS["car"]
    width, height = draw.layer("car", "red", 20, False).size
    assert width == round(20 * look.width) * SUPERSAMPLE
    assert height == round(20 * look.height) * SUPERSAMPLE


def test_shading_goes_to_black_below_one_and_to_white_above():
    assert draw.shade((100, 200, 50), 0.5) == (50, 100, 25)
    assert draw.shade((100, 200, 50), 1.5) == (177, 227, 152)
    assert draw.shade((100, 200, 50), 1.0) == (100, 200, 50)
