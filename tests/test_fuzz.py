"""Wrong inputs end in one sentence: every command, with what `tests.fuzz` draws."""

import shutil

import pytest

from nein import cli
from tests import fuzz

QUICK, SLOW = 1, 200


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return fuzz.world(tmp_path_factory.mktemp("world") / "w")


@pytest.fixture(scope="module")
def whole_world(tmp_path_factory):
    return fuzz.world(tmp_path_factory.mktemp("whole") / "w", models=True)


def faults(name, numbers, world, folder):
    said = []
    for number in numbers:
        place = fuzz.copied(name, world, folder / str(number))
        made = fuzz.case(name, number, place)
        before = fuzz.prints(place)
        ended = fuzz.run(name, made.words, place)
        wrong = fuzz.complaint(ended, before, fuzz.prints(place))
        if wrong:
            said.append(f"{name} {number}, {made.broken}: {wrong}\n{ended.stderr[-2000:]}")
        shutil.rmtree(place)
    return said


def test_every_command_of_the_table_is_tried():
    assert fuzz.LINES.keys() - fuzz.FURTHER.keys() == cli.COMMANDS.keys()
    assert cli.commands().keys() - cli.COMMANDS.keys() <= fuzz.FURTHER.keys()


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_a_few_wrong_inputs_end_in_a_sentence(name, world, tmp_path):
    assert faults(name, range(QUICK), world, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(fuzz.LINES))
def test_two_hundred_wrong_inputs_end_in_a_sentence(name, whole_world, tmp_path):
    assert fuzz.warm(name, whole_world).code == 0
    assert faults(name, range(SLOW), whole_world, tmp_path) == []
