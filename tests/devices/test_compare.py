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
