"""The comparison notices what it is for. Half precision on the CPU stands in for a device that is wrong."""

import numpy as np
import pytest

from tests.devices.compare import Outcome, compare
from tests.devices.subjects import SUBJECTS


@pytest.mark.parametrize("name", ["editor ip2p", "detector", "matcher", "DINO", "LPIPS"])
def test_half_precision_is_further_off_than_any_device_may_be(name):
    subject = SUBJECTS[name]
    found = compare(name, subject.outcome("cpu", "float32"), subject.outcome("cpu", "bfloat16"))
    assert found.largest > subject.tolerance, found.lines


def ranked(outcome):
    """For each picture the best captions in order: some are close to one another, as the best two are not."""
    orders = {key: str(np.argsort(-cosines)[:5].tolist()) for key, cosines in outcome.numbers.items()}
    return Outcome(outcome.numbers, orders)


def test_decisions_that_half_precision_flips_are_found_and_printed():
    whole, half = (ranked(SUBJECTS["CLIP"].outcome("cpu", dtype)) for dtype in ("float32", "bfloat16"))
    found = compare("CLIP", whole, half)
    flipped = {key for key, said in whole.decisions.items() if half.decisions[key] != said}
    assert flipped
    assert set(found.flips) == flipped
    assert f"{len(flipped)} of 100 decisions differ" in found.lines[0]
    printed = {f"  {key}: {whole.decisions[key]} -> {half.decisions[key]}" for key in flipped}
    assert {*found.lines[1:]} == printed


def test_the_largest_difference_is_relative_and_a_number_that_is_none_is_larger_than_all():
    cpu = Outcome({"a": np.array([100.0, 1.0]), "b": np.array([50.0, 2.0])}, {"a": "yes", "b": "no"})
    other = Outcome({"a": np.array([100.0, 1.5]), "b": np.array([51.0, 2.0])}, {"a": "yes", "b": "yes"})
    found = compare("made up", cpu, other)
    assert found.lines == [
        "made up: largest difference 1.0e-02 of the largest number (b); 1 of 2 decisions differ",
        "  b: no -> yes",
    ]
    broken = Outcome({**other.numbers, "a": np.array([100.0, np.nan])}, other.decisions)
    assert np.isnan(compare("made up", cpu, broken).largest)
    assert not compare("made up", cpu, broken).largest <= 1e-3
