"""Every kind of model computes and decides on this machine's accelerator what it does on the CPU."""

import pytest

from tests.devices.compare import compare
from tests.devices.subjects import SUBJECTS


@pytest.mark.device
@pytest.mark.parametrize("name", SUBJECTS)
def test_an_accelerator_computes_and_decides_what_the_cpu_does(name, accelerator):
    subject = SUBJECTS[name]
    largest, flips = compare(subject.outcome("cpu", "float32"), subject.outcome(accelerator, "float32"))
    assert largest <= subject.tolerance
    assert not flips
