"""Whether a device or a dtype says what the CPU says in float32: the largest difference, every flip."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Outcome:
    """numbers: sample -> what a model computed; decisions: sample -> "yes", "B", the best caption."""

    numbers: Mapping[str, np.ndarray]
    decisions: Mapping[str, str] = field(default_factory=dict)


def compare(cpu, other):
    """(largest difference, as a share of the largest number; samples whose decision differs)."""
    assert cpu.numbers.keys() == other.numbers.keys()
    assert cpu.decisions.keys() == other.decisions.keys()
    assert cpu.numbers
    scale = max(float(np.abs(values).max()) for values in cpu.numbers.values())
    apart = [np.abs(np.asarray(other.numbers[key], float) - one).max() for key, one in cpu.numbers.items()]
    # NaN is larger than any number: the `max` of Python would pass over it.
    return np.max(apart) / scale, [key for key, was in cpu.decisions.items() if other.decisions[key] != was]
