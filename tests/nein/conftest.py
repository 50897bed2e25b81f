"""Small data sets in NeIn's layout, and a way to run the command in a process of its own."""

import functools

import pytest

from tests.helpers.commands import outcome
from tests.reporting import made


def write_data(root, sources=3, per_source=2):
    return made.write_data(root, made.records(sources, per_source))


@pytest.fixture
def make_data(tmp_path):
    def make(sources=3, per_source=2, name="data"):
        return write_data(tmp_path / name, sources, per_source)

    return make


@pytest.fixture
def evaluate(capsys):
    return functools.partial(outcome, capsys, "eval")
