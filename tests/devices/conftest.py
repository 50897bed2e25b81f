"""What the comparisons found is printed when the tests end, whether they passed or not."""

import pytest

from tests.devices.compare import Comparison

FOUND = pytest.StashKey[list[Comparison]]()


@pytest.fixture
def report(request):
    return request.config.stash.setdefault(FOUND, []).append


def pytest_terminal_summary(terminalreporter, config):
    found = config.stash.get(FOUND, [])
    if found:
        terminalreporter.section("an accelerator against the CPU, float32")
        for line in (line for comparison in found for line in comparison.lines):
            terminalreporter.line(line)
