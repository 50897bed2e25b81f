"""The comparison notices what it is for. Half precision on the CPU stands in for a device that is wrong."""

import pytest

from tests.devices.compare import compare
from tests.devices.subjects import SUBJECTS


@pytest.mark.parametrize("name", ["editor ip2p", "LPIPS"])
def test_half_precision_is_further_off_than_any_device_may_be(name):
    subject = SUBJECTS[name]
    largest, _ = compare(subject.outcome("cpu", "float32"), subject.outcome("cpu", "bfloat16"))
    assert largest > subject.tolerance
