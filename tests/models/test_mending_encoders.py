"""A query taken apart: the product with its vector is the score that is defined, whatever normalises it."""

from __future__ import annotations

import numpy as np
import pytest

from metrics.dual.base import normalise, prepare, products
from metrics.dual.controls import ControlEncoder
from nein.benchmarks.negbench import models
from nein.engine.errors import UserError
from nein.models.mending_encoders import Decomposed
from nein.wording import denials

MODEL = ControlEncoder("random")
PICTURES = [np.full((4, 4, 3), level, np.uint8) for level in (0, 90, 250)]


def cosines(*texts: str) -> np.ndarray:
    """(pictures, texts) float64 of the model as it is."""
    return normalise(MODEL.encode(PICTURES)) @ normalise(MODEL.encode_text(texts)).T


@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0])
def test_the_score_is_that_of_what_is_affirmed_less_that_of_what_is_denied(weight: float) -> None:
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


def test_another_lambda_is_another_model_and_is_described() -> None:
    half, whole = Decomposed(MODEL, 0.5), Decomposed(MODEL, 1.0)
    assert len({MODEL.fingerprint, half.fingerprint, whole.fingerprint}) == 3
    assert half.describe()["mended"] == {"arm": "decompose", "lambda": 0.5}


def test_a_mended_model_has_a_name_of_its_own_and_no_published_row() -> None:
    plain = models.choose("nano:clip")
    assert models.mended(plain, "") == plain
    mended = models.mended(plain, "decompose:0.25")
    assert (mended.name, mended.slug, mended.row) == (
        "nano:clip+decompose:0.25",
        f"{plain.slug}+decompose-0.25",
        None,
    )
    assert mended.identity == plain.identity  # the identity of the run names the cure


@pytest.mark.parametrize("arm", ["decomposed", "decompose:", "decompose:-1", "decompose:11", "rewrite"])
def test_an_arm_that_there_is_not_is_a_sentence(arm: str) -> None:
    with pytest.raises(UserError, match="takes decompose, or decompose:LAMBDA"):
        models.mended(models.choose("random"), arm)


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
def test_what_a_caption_affirms_is_the_caption_without_what_it_denies(caption: str, affirmed: str) -> None:
    assert denials.read([caption])[0].affirmed == affirmed
