"""Every kind of model computes and decides on this machine's accelerator what it does on the CPU."""

import pytest

from tests.devices.subjects import SUBJECTS, compare


@pytest.mark.device
@pytest.mark.parametrize("name", SUBJECTS)
def test_an_accelerator_computes_and_decides_what_the_cpu_does(name, accelerator):
    subject = SUBJECTS[name]
    largest, flips = compare(subject.outcome("cpu", "float32"), subject.outcome(accelerator, "float32"))
    assert largest <= subject.tolerance
    assert not flips


@pytest.mark.parametrize("name", ["editor ip2p", "LPIPS"])
def test_half_precision_is_further_off_than_any_device_may_be(name):
    """Half precision on the CPU stands in for a device that is wrong."""
    subject = SUBJECTS[name]
    largest, _ = compare(subject.outcome("cpu", "float32"), subject.outcome("cpu", "bfloat16"))
    assert largest > subject.tolerance
