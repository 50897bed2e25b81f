"""L1 and L2 against the definition written out, and their properties."""

from __future__ import annotations

import numpy as np
import pytest

from nein.metrics import MetricError
from nein.metrics.images import l1, l2
from tests.metrics.tiny import picture

A, B = picture(1, 40, 32), picture(2, 40, 32)


@pytest.mark.parametrize(("metric", "power"), [(l1, 1), (l2, 2)])
def test_pixel_metrics_are_means_of_powers_of_differences_on_the_unit_scale(metric, power) -> None:
    expected = np.mean(
        [abs(int(x) / 255 - int(y) / 255) ** power for x, y in zip(A.flat, B.flat, strict=True)]
    )
    assert metric(A, B) == pytest.approx(expected, abs=1e-12)
    black, white = np.zeros((5, 7, 3), np.uint8), np.full((5, 7, 3), 255, np.uint8)
    assert (metric(A, A), metric(black, white)) == (0, 1)
    assert metric(A, B) == metric(B, A)


def test_pictures_of_unequal_size_or_of_floats_are_refused() -> None:
    with pytest.raises(MetricError, match=r"\(32, 40, 3\) and \(40, 32, 3\)"):
        l1(A, A.transpose(1, 0, 2))
    with pytest.raises(MetricError, match="uint8"):
        l1(A / 255.0, A)  # type: ignore[arg-type]
