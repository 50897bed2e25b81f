"""Known truth of an edit: everything that must go is gone, and everything else stands."""

from __future__ import annotations

import numpy as np
import pytest

from nein.metrics import METRICS, Batch, EditPair, SceneObject, Score, score
from nein.metrics.base import MetricError
from nein.metrics.images import there

EMPTY = np.full((16, 16, 3), 90, np.uint8)


def with_squares(*places: int) -> np.ndarray:
    picture = EMPTY.copy()
    for place in places:
        picture[4:8, place : place + 4] = (220, 30, 30)
    return picture


LEFT, RIGHT = 1, 10
BOTH = with_squares(LEFT, RIGHT)
THINGS = (SceneObject("left", True, with_squares(RIGHT)), SceneObject("right", False, with_squares(LEFT)))


def obeyed(edited: np.ndarray, things: tuple[SceneObject, ...] | str = THINGS) -> Score:
    (made,) = score([METRICS["obeyed"]], Batch([EditPair("a", edited, sample=BOTH, things=things)], {}))[
        "obeyed"
    ]
    return made


@pytest.mark.parametrize(
    ("shown", "value"), [((LEFT,), 1.0), ((LEFT, RIGHT), 0.0), ((), 0.0), ((RIGHT,), 0.0)]
)
def test_an_edit_obeys_where_what_must_go_is_gone_and_the_rest_stands(
    shown: tuple[int, ...], value: float
) -> None:
    made = obeyed(with_squares(*shown))
    assert made.value == value
    assert [(one["name"], one["there"] > 0.9) for one in made.detail["things"]] == [
        ("left", LEFT in shown), ("right", RIGHT in shown),
    ]  # fmt: skip


def test_something_else_in_its_place_is_gone_and_a_half_of_it_neither() -> None:
    other = with_squares(LEFT)
    other[4:8, RIGHT : RIGHT + 4] = (30, 30, 220)
    assert obeyed(other).value == 1.0
    half = BOTH.copy()
    half[4:8, RIGHT : RIGHT + 2] = EMPTY[4:8, RIGHT : RIGHT + 2]
    assert obeyed(half).value == 0.0
    assert 0.3 < obeyed(half).detail["things"][1]["there"] < 0.7


def test_where_nothing_must_go_the_untouched_picture_obeys() -> None:
    assert obeyed(BOTH, tuple(SceneObject(one.name, True, one.without) for one in THINGS)).value == 1.0


def test_without_known_things_or_in_another_size_an_edit_is_unscored() -> None:
    assert "do not say which things" in obeyed(BOTH, EditPair("a", BOTH).things).reason
    assert "of one size" in obeyed(BOTH[:8]).reason
    with pytest.raises(MetricError, match="of one size"):
        there(BOTH, BOTH, EMPTY[:4])
