"""For tests of training code: one thread, and the global random state and switches as they were."""

import pytest
import torch


@pytest.fixture(autouse=True)
def leave_torch_as_it_was():
    """Training seeds torch's global generator and sets switches; a test must not pass that on."""
    torch.set_num_threads(1)
    flags = (torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")
    before = [getattr(place, name) for place, name in flags]
    benchmark = torch.backends.cudnn.benchmark
    with torch.random.fork_rng(devices=[]):
        yield
    for (place, name), value in zip(flags, before, strict=True):
        setattr(place, name, value)
    torch.backends.cudnn.benchmark = benchmark
