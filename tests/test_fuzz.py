"""Wrong inputs end in one sentence: every subcommand, with what `tests.fuzz` draws."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nein import cli
from tests import fuzz

QUICK, SLOW = 1, 200


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fuzz.world(tmp_path_factory.mktemp("world") / "w")


def faults(name: str, numbers: range, world: Path, folder: Path) -> list[str]:
    """The cases that end in anything but a right result or a sentence."""
    said = []
    for number in numbers:
        place = folder / str(number)
        shutil.copytree(world, place)
        made = fuzz.case(name, number, place)
        before = fuzz.prints(place)
        ended = fuzz.run([*name.split(), *made.words], place)
        wrong = fuzz.complaint(ended, before, fuzz.prints(place))
        if wrong:
            said.append(f"{name} {number}, {made.broken}: {wrong}\n{ended.error[-2000:]}")
        shutil.rmtree(place)
    return said


def test_every_command_of_the_table_is_tried() -> None:
    assert fuzz.LINES.keys() == cli.COMMANDS.keys()


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_a_few_wrong_inputs_end_in_a_sentence(name: str, world: Path, tmp_path: Path) -> None:
    assert faults(name, range(QUICK), world, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_two_hundred_wrong_inputs_end_in_a_sentence(name: str, world: Path, tmp_path: Path) -> None:
    assert faults(name, range(SLOW), world, tmp_path) == []
