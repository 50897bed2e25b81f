"""Whether a device or a dtype says what the CPU says in float32: the largest difference, every flip."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Outcome:
    """numbers: sample -> what a model computed; decisions: sample -> "yes", "B", the best caption."""

    numbers: Mapping[str, np.ndarray]
    decisions: Mapping[str, str] = field(default_factory=dict)


class Comparison(NamedTuple):
    """largest: a share of the largest number; flips: samples whose decision differs; lines to print."""

    largest: float
    flips: list[str]
    lines: list[str]


def compare(name, cpu, other):
    assert cpu.numbers.keys() == other.numbers.keys()
    assert cpu.decisions.keys() == other.decisions.keys()
    assert cpu.numbers
    scale = max(float(np.abs(values).max()) for values in cpu.numbers.values())
    differences = {
        key: float(np.abs(np.asarray(other.numbers[key], float) - values).max()) / scale
        for key, values in cpu.numbers.items()
    }
    # NaN is larger than any number: `max` alone would pass over it.
    where = max(differences, key=lambda key: (np.isnan(differences[key]), differences[key]))
    flips = [key for key, was in cpu.decisions.items() if other.decisions[key] != was]
    said = f"{name}: largest difference {differences[where]:.1e} of the largest number ({where})"
    if cpu.decisions:
        said += f"; {len(flips)} of {len(cpu.decisions)} decisions differ"
    lines = [said, *(f"  {key}: {cpu.decisions[key]} -> {other.decisions[key]}" for key in flips)]
    return Comparison(differences[where], flips, lines)
