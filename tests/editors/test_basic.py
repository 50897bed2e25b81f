"""The editors without a model."""

from __future__ import annotations

import numpy as np
import pytest

from editors import EditorError, get_editor


def test_identity_returns_the_picture_itself(requests_of):
    requests = requests_of(2)
    for request, result in zip(requests, get_editor("identity").edit(requests), strict=True):
        np.testing.assert_array_equal(result.image, request.image)


@pytest.mark.parametrize("color", ["#0a141e", "0A141E", (10, 20, 30), [10, 20, 30]])
def test_solid_fills_with_its_colour_in_rgb_order(color, requests_of):
    image = get_editor("solid", color=color).edit(requests_of(1))[0].image
    assert (image == np.array([10, 20, 30])).all()


@pytest.mark.parametrize(
    "color", ["red", "#12345", "#gggggg", (1, 2), (1, 2, 300), (0.5, 0, 0), 112233, None]
)
def test_solid_refuses_what_is_no_colour(color):
    with pytest.raises(EditorError, match="color is"):
        get_editor("solid", color=color)


def test_flaky_fails_on_the_chosen_ids_only(requests_of):
    results = get_editor("flaky", fail_ids=["s1", "s3"], fail_every=0).edit(requests_of(5))
    assert [result.image is None for result in results] == [False, True, False, True, False]
    assert "'s1'" in results[1].error


def test_flaky_fails_on_seeds_divisible_by_the_number(requests_of):
    # Seeds are 1000..1005; 1002 and 1005 are divisible by 3.
    results = get_editor("flaky", fail_every=3).edit(requests_of(6))
    assert [result.id for result in results if result.image is None] == ["s2", "s5"]


def test_flaky_can_end_the_process_after_some_samples(requests_of):
    editor = get_editor("flaky", fail_every=0, crash_after=3)
    assert len(editor.edit(requests_of(2))) == 2
    with pytest.raises(RuntimeError, match="after 3 samples"):
        editor.edit(requests_of(2))


def test_what_decides_the_pixels_decides_the_fingerprint():
    prints = {
        get_editor("identity").fingerprint,
        get_editor("solid").fingerprint,
        get_editor("solid", color="#000000").fingerprint,
        get_editor("flaky").fingerprint,
        get_editor("flaky", fail_ids=["a"]).fingerprint,
    }
    assert len(prints) == 5
    assert get_editor("flaky").fingerprint == get_editor("flaky", crash_after=1).fingerprint
