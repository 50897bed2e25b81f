import numpy as np
import pytest

from nein.editors import EditorError, get_editor


@pytest.mark.parametrize("color", ["#0a141e", "#0A141E"])
def test_solid_fills_with_its_colour_in_rgb_order(color, requests_of):
    image = get_editor("solid", color=color).edit(requests_of(1))[0].image
    assert (image == np.array([10, 20, 30])).all()


@pytest.mark.parametrize("color", ["red", "#12345", "#gggggg", (1, 2, 3), 112233, None])
def test_solid_refuses_what_is_no_colour(color):
    with pytest.raises(EditorError, match="color is"):
        get_editor("solid", color=color)
