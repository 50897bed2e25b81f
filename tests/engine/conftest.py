"""Folders of squares."""

from __future__ import annotations

from pathlib import Path

import pytest

from nein.engine.folder import Folder
from tests.engine.squares import compute, opened, results


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return opened(tmp_path / "run")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What two stages give."""
    folder = opened(tmp_path_factory.mktemp("whole") / "run")
    compute(folder.path)
    return results(folder.path)
