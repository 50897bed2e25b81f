"""InstructDiffusion: its own guidance against a loop by hand, its output size, its rows."""

from dataclasses import replace

import numpy as np
import pytest
from diffusers import StableDiffusionInstructPix2PixPipeline
from PIL import Image, ImageOps

from nein.editors import get_editor
from tests.editors.by_hand import edit_by_hand

STEPS = 5


@pytest.fixture
def build(checkpoint):
    def make(**options):
        options = {"steps": STEPS, "resolution": None, **options}
        return get_editor("instructdiffusion", checkpoint=str(checkpoint), **options)

    return make


@pytest.fixture(scope="module")
def stock(checkpoint):
    return StableDiffusionInstructPix2PixPipeline.from_pretrained(checkpoint, safety_checker=None)


@pytest.mark.parametrize("text_scale, image_scale", [(5.0, 1.25), (6.0, 0.5), (1.0, 1.0)])
def test_it_equals_two_condition_guidance_by_hand(text_scale, image_scale, stock, build, requests_of):
    request = requests_of(1)[0]

    def published(predict):
        both, image, text = predict(True, True), predict(False, True), predict(True, False)
        return 0.5 * (image + text) + text_scale * (both - image) + image_scale * (both - text)

    expected = edit_by_hand(stock, request, STEPS, published)
    editor = build(guidance_scale=text_scale, image_guidance_scale=image_scale)
    np.testing.assert_allclose(editor.edit([request])[0].image, expected, atol=0.6)


@pytest.mark.parametrize("height, width", [(90, 100), (60, 128)])
def test_the_picture_comes_back_at_its_own_size(height, width, build, requests_of, picture):
    request = replace(requests_of(1)[0], image=picture(3, height, width))
    fitted, plain = build().edit([request])[0].image, build(output="resized").edit([request])[0].image
    assert fitted.shape == (height, width, 3)
    assert plain.shape[0] % 64 == plain.shape[1] % 64 == 0
    expected = ImageOps.fit(Image.fromarray(plain), (width, height), method=Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(fitted, np.asarray(expected))
