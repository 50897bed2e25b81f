"""A query taken apart: the product with its vector is the score that is defined, whatever normalises it."""

import numpy as np
import pytest

from nein.benchmarks.negbench import models
from nein.metrics.dual import ControlEncoder, normalise, prepare, products
from nein.models.remedies.encoders import Decomposed, SpaceVlm, rotate_away
from nein.wording import denials

MODEL = ControlEncoder("random")
PICTURES = [np.full((4, 4, 3), level, np.uint8) for level in (0, 90, 250)]


def cosines(*texts):
    """(pictures, texts) float64 of the model as it is."""
    return normalise(MODEL.encode(PICTURES)) @ normalise(MODEL.encode_text(texts)).T


@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0])
def test_the_score_is_that_of_what_is_affirmed_less_that_of_what_is_denied(weight):
    texts = ["A cat on a mat. There is no dog in the image.", "There is no dog", "A cat on a mat.",
             "We see a cat, but no dog and no bus"]  # fmt: skip
    mended = Decomposed(MODEL, weight)
    images, captions = prepare(mended.encode(PICTURES)), prepare(mended.encode_text(texts))
    scores = products(images[:, None], captions[None]) * mended.scale
    cat, seen, dog, bus = cosines(
        "A cat on a mat.", "We see a cat", "A photo of a dog.", "A photo of a bus."
    ).T
    expected = [cat - weight * dog, -weight * dog, cat, seen - weight * (dog + bus) / 2]
    np.testing.assert_allclose(scores.T, expected, atol=1e-6)  # features are float32


def test_a_caption_is_the_middle_of_its_cap_outside_the_denied_one():
    """The published formula, on the plane: angles from n in degrees; caps of half-angle 25.8."""
    cap = np.degrees(np.arccos(0.9))
    unit = lambda degrees: np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], 1)  # noqa: E731
    angles = np.array([10.0, 51.0, 52.0, 120.0, 0.0, 180.0])  # of a
    expected = np.array([cap + 5, cap + 25.5, 52.0, 120.0, 0.0, 180.0])
    n = np.tile([[1.0, 0.0]], (6, 1))
    np.testing.assert_allclose(rotate_away(unit(angles), n, 0.9), unit(expected), atol=1e-6)


def test_only_what_denies_is_moved_off_its_denied_part():
    texts = ["A cat on a mat. There is no dog.", "There is no dog and no bus.", "A cat on a mat."]
    parts = ["A cat on a mat.", "A photo of something", "A photo of a dog", "A photo of a dog and a bus"]
    cat, something, dog, both = MODEL.encode_text(parts)
    moved = SpaceVlm(MODEL, 0.1).encode_text(texts)
    expected = rotate_away(normalise(np.stack([cat, something])), normalise(np.stack([dog, both])), 0.1)
    np.testing.assert_allclose(moved[:2], expected, atol=1e-6)
    np.testing.assert_array_equal(moved[2], cat)


def test_a_mended_model_is_another_model_has_a_name_of_its_own_and_no_published_row():
    half, whole = Decomposed(MODEL, 0.5), Decomposed(MODEL, 1.0)
    assert len({MODEL.fingerprint, half.fingerprint, whole.fingerprint}) == 3
    assert half.describe()["mended"] == {"arm": "decompose", "lambda": 0.5}
    plain = models.choose("nano:clip")
    mended = models.add_remedy(plain, "decompose:0.25")
    assert (mended.name, mended.row) == ("nano:clip+decompose:0.25", None)
    assert mended.slug == f"{plain.slug}+decompose-0.25"
    assert mended.asked == plain.asked  # the identity of the run names the remedy


@pytest.mark.parametrize(
    ("caption", "affirmed"),
    [
        ("A cat on a mat. There is no dog in the image.", "A cat on a mat."),
        ("There is no dog in the image. A cat on grass and a tree.", "A cat on grass and a tree."),
        ("This image features a cat, but not a dog", "This image features a cat"),
        ("A cat is visible, a dog is not", "A cat is visible"),
        ("A view with a cat and without a dog", "A view with a cat"),
        ("This image does not feature a dog", ""),
        ("A quiet street.", "A quiet street."),
    ],
)
def test_what_a_caption_affirms_is_the_caption_without_what_it_denies(caption, affirmed):
    assert denials.read([caption])[0].affirmed == affirmed
