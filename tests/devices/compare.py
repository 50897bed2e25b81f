"""Whether a device or a number type says what the CPU says in float32: the largest difference, every flip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Outcome:
    """What a model made of some samples.

    numbers    Sample -> whatever it computed, any shape.
    decisions  Sample -> what was decided from them: "yes", "B", the best caption.
    """

    numbers: Mapping[str, np.ndarray]
    decisions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """One model on the CPU in float32 and elsewhere.

    largest   Of the differences between their numbers, as a share of the largest number.
    where     The sample that it is in.
    flips     Sample -> (the decision on the CPU, the other).
    decisions How many there are.
    """

    name: str
    largest: float
    where: str
    flips: Mapping[str, tuple[str, str]]
    decisions: int

    def lines(self) -> list[str]:
        """For the terminal: a sentence, and one line per flip."""
        said = f"{self.name}: largest difference {self.largest:.1e} of the largest number ({self.where})"
        if self.decisions:
            said += f"; {len(self.flips)} of {self.decisions} decisions differ"
        return [said, *(f"  {key}: {was} -> {now}" for key, (was, now) in self.flips.items())]


def compare(name: str, cpu: Outcome, other: Outcome) -> Comparison:
    """Raises AssertionError where they are not about the same samples."""
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
    flips = {
        key: (was, other.decisions[key]) for key, was in cpu.decisions.items() if other.decisions[key] != was
    }
    return Comparison(name, differences[where], where, flips, len(cpu.decisions))
