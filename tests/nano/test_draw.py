"""Things that are drawn stay inside their boxes."""

import math

import numpy as np
import pytest

from nein.nano.draw import BACKGROUNDS, CATEGORIES, LOOKS, SKETCH
from nein.nano.scenes import MAX_SIZE, MIN_SIZE, Item, Scene, box, render


def changed(item, background):
    """(64, 64): by how much the item changes each pixel, in its strongest channel."""
    empty = Scene(background, 3, ())
    return np.abs(render(empty.with_item(item)).astype(int) - render(empty)).max(-1)


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
    scene = Scene("room", 3, (item,))
    sketched = np.argwhere((render(scene, SKETCH) != render(scene.without(category), SKETCH)).any(-1))
    x0, y0, x1, y1 = box(item, SKETCH)
    assert (sketched.min(0) >= [int(y0), int(x0)]).all()
    assert (sketched.max(0) < [y1 + 1, x1 + 1]).all()
