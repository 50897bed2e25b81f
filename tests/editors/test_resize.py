import numpy as np
import pytest
from PIL import Image

from nein.editors import EditorError
from nein.editors.resize import squash
from nein.loading.resize import r64, r64_size

# (width, height) -> (width, height) at resolution 512. First values measured on the original script, common
# COCO sizes among them; then what follows from the rule by exact arithmetic; then the squares at which
# floating point loses 64 pixels.
MEASURED = {
    (640, 480): (512, 384), (500, 375): (512, 384), (640, 427): (512, 384), (500, 334): (512, 384),
    (640, 426): (576, 384), (640, 425): (576, 384), (640, 424): (576, 384), (500, 333): (576, 384),
    (640, 360): (512, 320), (640, 512): (512, 448), (640, 400): (512, 320), (612, 612): (512, 512),
    (640, 640): (512, 512), (638, 640): (512, 512), (576, 384): (576, 384), (512, 384): (512, 384),
    (512, 320): (512, 320), (512, 448): (512, 448),
}  # fmt: skip
EXACT = {
    (480, 640): (384, 512), (427, 640): (384, 512), (426, 640): (384, 576), (360, 640): (320, 512),
    (640, 638): (512, 512), (512, 512): (512, 512), (256, 256): (512, 512), (64, 64): (512, 512),
    (1024, 768): (512, 384), (1920, 1080): (512, 320), (640, 320): (512, 256), (640, 240): (512, 192),
    (640, 160): (512, 128), (640, 128): (640, 128), (640, 100): (768, 128), (100, 640): (128, 768),
    (1, 1): (512, 512),
}  # fmt: skip
FLOAT_QUIRK = {(98, 98): (448, 448), (103, 103): (448, 448), (107, 107): (448, 448)}


@pytest.mark.parametrize("source, expected", [*MEASURED.items(), *EXACT.items(), *FLOAT_QUIRK.items()])
def test_r64_gives_the_tabulated_sizes(source, expected):
    assert r64_size(*source, 512) == expected


@pytest.mark.parametrize(
    "source, resolution, rounded, enough",
    [((98, 98), 64, (0, 0), 65), ((98, 1000), 512, (0, 640), 654), ((1000, 98), 512, (640, 0), 654)],
)
def test_a_picture_of_which_r64_leaves_nothing_is_refused_with_a_resolution_that_does(
    source, resolution, rounded, enough
):
    said = f"{source[0]} x {source[1]}.* {rounded[0]} x {rounded[1]} at resolution {resolution}.*of {enough}"
    with pytest.raises(EditorError, match=said):
        r64_size(*source, resolution)
    assert min(r64_size(*source, enough)) >= 64


def test_r64_crops_the_centre_and_resizes_with_lanczos(picture):
    image = picture(3, height=427, width=640)
    edited = r64(image, 512)
    assert edited.shape == (384, 512, 3)
    # The crop by hand: full height, and the middle 427 * 512 / 384 columns.
    kept = 427 * 512 / 384
    box = ((640 - kept) / 2, 0, (640 + kept) / 2, 427)
    expected = Image.fromarray(image).resize((512, 384), Image.Resampling.LANCZOS, box=box)
    np.testing.assert_array_equal(edited, np.asarray(expected))


def test_squash_ignores_the_aspect_ratio_and_uses_bicubic(picture):
    image = picture(2, height=40, width=100)
    squashed = squash(image, 64)
    expected = Image.fromarray(image).resize((64, 64), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(squashed, np.asarray(expected))
