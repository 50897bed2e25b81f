"""Fixtures: one tiny checkpoint per session, small pictures, requests."""

import functools
import shutil
from pathlib import Path

import numpy as np
import pytest

from nein.editors import EditRequest, get_editor
from tests.editors.tiny import build_action, build_pipeline, build_sam

# Enough for the ancestral noise to matter, few enough for a suite of seconds.
STEPS = 3


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    return build_pipeline(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture
def copied(checkpoint, tmp_path):
    """A copy of the checkpoint that a test may damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


@pytest.fixture(scope="session")
def tiny_editor(checkpoint):
    """One for each set of options, which a test may alter by `monkeypatch` alone."""
    small = {"checkpoint": str(checkpoint), "steps": STEPS, "resolution": None}
    return functools.cache(lambda **options: get_editor("ip2p", **{**small, **options}))


@pytest.fixture(scope="session")
def picture():
    def draw(seed=0, height=64, width=64):
        return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)

    return draw


@pytest.fixture(scope="session")
def requests_of(picture):
    """n requests with different pictures, instructions and seeds."""

    def make(n):
        objects = ("cat", "dog", "car", "clock", "bird")
        return [
            EditRequest(f"s{i}", picture(i), f"The image has no {objects[i % 5]}.", 1000 + i)
            for i in range(n)
        ]

    return make


@pytest.fixture(scope="session")
def sam_folder(tmp_path_factory):
    return build_sam(tmp_path_factory.mktemp("sam") / "tiny")


@pytest.fixture(scope="session")
def zone_models(checkpoint, sam_folder, tmp_path_factory):
    """The four models of ZONE, tiny, as `get_editor` takes them."""
    root = tmp_path_factory.mktemp("zone")
    return {
        "checkpoint": str(checkpoint),
        "magicbrush": str(build_pipeline(root / "magicbrush", seed=1)),
        "sam": str(sam_folder),
        "action": str(build_action(root / "action")),
    }


@pytest.fixture(scope="session")
def zone_editor(zone_models):
    """ZONE at the size of the tiny models, with a SAM that is content with its own segments; one for each
    set of options, which a test may alter by `monkeypatch` alone."""
    small = {
        "steps": STEPS, "resolution": 64, "protocol": "fixed", "map_stride": 8, "points_per_side": 3,
        "segment_quality": 0.0, "segment_stability": 0.0, "least_area": 4, "dilation": 1,
        "smooth_radius": 25.0, "smooth_closing": 3,
    }  # fmt: skip
    return functools.cache(lambda **options: get_editor("zone", **{**zone_models, **small, **options}))
