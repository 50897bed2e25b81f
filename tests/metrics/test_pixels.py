"""L1 and L2 against the definition written out, and their properties."""

from __future__ import annotations

import numpy as np
import pytest

from nein.metrics import MetricError
from nein.metrics.images import l1, l2
from tests.metrics.tiny import picture

A, B = picture(1, 40, 32), picture(2, 40, 32)


def test_l1_is_the_mean_absolute_difference_on_the_unit_scale() -> None:
    expected = np.mean([abs(int(x) / 255 - int(y) / 255) for x, y in zip(A.flat, B.flat, strict=True)])
    assert l1(A, B) == pytest.approx(expected, abs=1e-12)


def test_l2_is_the_mean_squared_difference_without_a_root() -> None:
    expected = np.mean([(int(x) / 255 - int(y) / 255) ** 2 for x, y in zip(A.flat, B.flat, strict=True)])
    assert l2(A, B) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", [l1, l2])
def test_pixel_metrics_are_zero_on_equal_pictures_one_between_black_and_white_and_symmetric(metric) -> None:
    black, white = np.zeros((5, 7, 3), np.uint8), np.full((5, 7, 3), 255, np.uint8)
    assert metric(A, A) == 0
    assert metric(black, white) == 1
    assert metric(A, B) == metric(B, A)


@pytest.mark.parametrize("metric", [l1, l2])
def test_pixel_metrics_grow_with_corruption(metric) -> None:
    noise = np.random.default_rng(0).normal(0, 1, A.shape)
    values = [metric(np.clip(A + s * noise, 0, 255).astype(np.uint8), A) for s in (1, 10, 30, 90)]
    assert (np.diff(values) > 0).all()


def test_pictures_of_unequal_size_are_refused_with_both_sizes() -> None:
    with pytest.raises(MetricError, match=r"\(32, 40, 3\) and \(40, 32, 3\)"):
        l1(A, A.transpose(1, 0, 2))


def test_a_float_picture_is_refused() -> None:
    with pytest.raises(MetricError, match="uint8"):
        l1(A / 255.0, A)  # type: ignore[arg-type]
