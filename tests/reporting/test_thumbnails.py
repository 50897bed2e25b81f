"""Thumbnails of many files."""

import numpy as np
import pytest

from nein.engine import images
from nein.reporting import cards


@pytest.fixture
def samples(tmp_path):
    """Twelve samples: a picture each, one that several share, a file that is none, and a reason."""
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    made = []
    for number in range(12):
        path = tmp_path / f"a\n{number}é.png"
        images.write_png(path, np.full((9, 8, 3), 20 * number, np.uint8))
        made.append([str(path), str(tmp_path / "a\n0é.png"), str(broken), {"none": "failed: <b>é</b>\n"}])
    return made


def test_a_picture_of_every_place_in_order_or_why_there_is_none(samples):
    here = list(cards.of_samples(iter(samples * 9), 128))
    assert len(here) == 108
    assert [row[3] for row in here] == [{"none": "failed: <b>é</b>\n"}] * 108
    assert "this is not an image file" in here[0][2]["none"]
    assert len({row[0] for row in here}) == 12
    assert here[5][1] == here[0][0] == cards.of_picture(np.zeros((9, 8, 3), np.uint8), 128)
    assert list(cards.of_samples(samples, 0)) == [[]] * 12
