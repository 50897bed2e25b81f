"""Fixtures: one tiny checkpoint per session, small pictures, requests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from editors import EditRequest, get_editor
from tests.editors.tiny import build_pipeline

# Enough for the ancestral noise to matter, few enough for a suite of seconds.
STEPS = 3


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_pipeline(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture
def copied(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint that a test may damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


@pytest.fixture
def tiny_editor(checkpoint: Path) -> Callable:
    def build(**options):
        return get_editor(
            "ip2p", checkpoint=str(checkpoint), **{"steps": STEPS, "resolution": None, **options}
        )

    return build


@pytest.fixture
def picture() -> Callable[..., np.ndarray]:
    def draw(seed: int = 0, height: int = 64, width: int = 64) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)

    return draw


@pytest.fixture
def requests_of(picture: Callable[..., np.ndarray]) -> Callable[[int], list[EditRequest]]:
    """n requests with different pictures, instructions and seeds."""

    def make(n: int) -> list[EditRequest]:
        objects = ("cat", "dog", "car", "clock", "bird")
        return [
            EditRequest(f"s{i}", picture(i), f"The image has no {objects[i % 5]}.", 1000 + i)
            for i in range(n)
        ]

    return make
