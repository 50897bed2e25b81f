import dataclasses

import numpy as np
import pytest

from benchmarks.filters import truth
from nein.nano.data import source_scene
from nein.nano.draw import SUPERSAMPLE, layer
from nein.nano.scenes import Item, Scene, render

DOG, KITE = Item("dog", "brown", 20, 4.0, 40.0, False), Item("kite", "red", 18, 40.0, 4.0, False)
SCENE = Scene("meadow", 3, (DOG, KITE))
CAR = Item("car", "blue", 19, 38.0, 44.0, True)


def test_a_drawing_is_found_where_it_was_put_and_under_no_other_name():
    picture = render(SCENE.with_item(CAR))
    found = truth.find(picture, SCENE, "car")
    assert (found.present, found.item.colour, found.item.flip) == (True, "blue", True)
    assert found.score > 0.6
    assert (found.item.x, found.item.y) == pytest.approx((CAR.x, CAR.y), abs=2)
    other = truth.find(picture, SCENE, "bus")
    assert (other.present, other.rival[0]) == (False, "car")
    assert truth.find(render(SCENE), SCENE, "car").score == pytest.approx(0, abs=1e-3)
    assert truth.intactness(render(SCENE.without("dog")), SCENE) == [pytest.approx(0, abs=0.2), 1.0]


def test_scores_equal_a_literal_evaluation_of_the_formula():
    scene = source_scene("build", 2)
    rng = np.random.default_rng(0)
    picture = np.clip(render(scene).astype(int) + rng.integers(-40, 41, (64, 64, 3)), 0, 255).astype(np.uint8)
    given, reference = picture / 255.0, render(scene) / 255.0
    scores = truth._scores(truth._unit(picture), truth._unit(render(scene)))
    drawings = truth._drawings()
    for k in (0, 100, 500, len(drawings.items) - 1):
        for y, x in ((0, 0), (7, 12)):
            expected = _literal_score(drawings.items[k], given, reference, x, y)
            assert scores[k, y, x] == pytest.approx(expected, abs=2e-3)


def _literal_score(item, given, reference, x, y):
    rgba = np.asarray(layer(item.category, item.colour, item.size, item.flip), np.float64) / 255
    m = n = area = 0.0
    weight = np.zeros((64 + 8, 64 + 8))
    support = weight > 0
    for row, column in np.argwhere(rgba[..., 3] > 0):  # enlarged pixels, each all or nothing
        w, colour = rgba[row, column, 3] / SUPERSAMPLE**2, rgba[row, column, :3]
        py, px = y + row // SUPERSAMPLE, x + column // SUPERSAMPLE
        weight[py + 4, px + 4] += w
        support[py + 2 : py + 7, px + 2 : px + 7] = True
        m += w * ((reference[py, px] - colour) ** 2).sum()
        n += w * ((given[py, px] - colour) ** 2).sum()
        area += w
    rim = (support * (1 - weight))[4:68, 4:68]
    n += (rim[..., None] * (given - reference) ** 2).sum()
    return (m - n) / (m + truth.FLOOR * area)


def test_its_own_errors_are_small_on_drawn_pictures_and_wrong_labels_are_noticed():
    trials = list(truth.trials(2))
    first = trials[0]
    lie = dataclasses.replace(first, kind="lie", present=not first.present, intact=not first.intact)
    rates = truth.error_rates([*trials, lie])
    assert rates.pop("lie") == {"pictures": 1, "presence_wrong": 1.0, "intactness_wrong": 1.0}
    assert set(rates) == set(truth.KINDS)
    for kind in ("added", "unchanged", "removed"):
        assert rates[kind]["presence_wrong"] <= 0.2
    for kind in ("unchanged", "removed", "damaged"):
        assert rates[kind]["intactness_wrong"] <= 0.2
