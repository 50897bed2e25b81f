"""The named resizes against the transforms that were published; the known truth of drawn edits."""

import numpy as np
import pytest
import torch
from cleanfid.resize import build_resizer
from PIL import Image

from nein.metrics import METRICS, Batch, EditPair, SceneObject, score
from nein.metrics.base import MetricError
from nein.metrics.images import measure_presence
from nein.metrics.preprocess import (
    CLIP_MEAN,
    CLIP_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    CleanResize,
    ResizeCrop,
    map_images,
    normalize,
    stretch,
)
from tests.metrics.tiny import compose, picture

# 640x427 -> 335x224 leaves an odd number of columns, where other implementations crop one pixel off.
SIZES = [(640, 427), (427, 640), (224, 224), (300, 225), (64, 64), (50, 33)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "resize,crop,mean,std", [(224, 224, CLIP_MEAN, CLIP_STD), (256, 224, IMAGENET_MEAN, IMAGENET_STD)]
)
def test_resize_crop_equals_the_published_clip_and_dino_transforms(
    size, resize, crop, mean, std, half_as_default
):
    image = picture(1, *size)
    ours = ResizeCrop(resize, crop, mean, std)
    x = normalize(torch.from_numpy(np.stack([ours(image)])), mean, std)[0]
    torch.testing.assert_close(x, compose(resize, crop, mean, std)(Image.fromarray(image)), atol=1e-6, rtol=0)
    beside = half_as_default(normalize, torch.from_numpy(np.stack([ours(image)])), mean, std)
    torch.testing.assert_close(beside[0], x, atol=0, rtol=0)


def test_stretch_is_pillows_bicubic_resize_and_takes_width_first():
    image = picture(2, 40, 32)
    result = stretch(image, (30, 50))
    assert result.shape == (50, 30, 3)
    assert np.array_equal(result, np.asarray(Image.fromarray(image).resize((30, 50))))
    assert np.array_equal(stretch(image, (40, 32)), image)


@pytest.mark.parametrize("size", [(64, 48), (400, 350), (299, 299)])
def test_clean_resize_is_clean_fids_own(size):
    image = picture(5, *size)
    result, expected = CleanResize(299)(image), build_resizer("clean")(image)
    assert result.dtype == expected.dtype
    assert np.array_equal(result, expected)
    assert np.array_equal(result, np.round(result)) == (size == (299, 299)), "it does not quantise"


@pytest.mark.parametrize("cores", [1, 3])
def test_map_images_keeps_the_order_with_any_number_of_threads(cores, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    images = [np.full((130, 130, 3), i, np.uint8) for i in range(9)]
    assert map_images(lambda x: int(x[0, 0, 0]), images) == list(range(9))


EMPTY = np.full((16, 16, 3), 90, np.uint8)


def with_squares(*places):
    picture = EMPTY.copy()
    for place in places:
        picture[4:8, place : place + 4] = (220, 30, 30)
    return picture


LEFT, RIGHT = 1, 10
BOTH = with_squares(LEFT, RIGHT)
THINGS = (SceneObject("left", True, with_squares(RIGHT)), SceneObject("right", False, with_squares(LEFT)))


def obeyed(edited, things=THINGS):
    (made,) = score([METRICS["obeyed"]], Batch([EditPair("a", edited, sample=BOTH, things=things)], {}))[
        "obeyed"
    ]
    return made


@pytest.mark.parametrize(("shown", "value"), [((LEFT,), 1), ((LEFT, RIGHT), 0), ((), 0), ((RIGHT,), 0)])
def test_an_edit_obeys_where_what_must_go_is_gone_and_the_rest_stands(shown, value):
    made = obeyed(with_squares(*shown))
    assert made.value == value
    assert [(one["name"], one["there"] > 0.9) for one in made.detail["things"]] == [
        ("left", LEFT in shown), ("right", RIGHT in shown),
    ]  # fmt: skip


def test_something_else_in_its_place_is_gone_and_a_half_of_it_neither():
    other = with_squares(LEFT)
    other[4:8, RIGHT : RIGHT + 4] = (30, 30, 220)
    assert obeyed(other).value == 1.0
    half = BOTH.copy()
    half[4:8, RIGHT : RIGHT + 2] = EMPTY[4:8, RIGHT : RIGHT + 2]
    assert obeyed(half).value == 0.0
    assert 0.3 < obeyed(half).detail["things"][1]["there"] < 0.7


def test_without_known_things_or_in_another_size_an_edit_is_unscored():
    assert "do not list the objects" in obeyed(BOTH, EditPair("a", BOTH).things).reason
    assert "one size" in obeyed(BOTH[:8]).reason
    with pytest.raises(MetricError, match="one size"):
        measure_presence(BOTH, BOTH, EMPTY[:4])
