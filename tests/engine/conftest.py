"""Folders of squares."""

import pytest

from tests.engine.squares import compute, opened, results


@pytest.fixture
def folder(tmp_path):
    return opened(tmp_path / "run")


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    folder = opened(tmp_path_factory.mktemp("whole") / "run")
    compute(folder.path)
    return results(folder.path)
