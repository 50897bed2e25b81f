"""Estimates with their intervals, tests, resampling, agreement, and the correction of judges.

Functions of numbers; nothing here reads a file.
"""

from nein.statistics.estimates import (
    Estimate,
    bounded,
    difference_of_means,
    effective_size,
    exact_interval,
    holm,
    mean,
    paired_difference,
    paired_test,
    proportion,
)

__all__ = [
    "Estimate",
    "bounded",
    "difference_of_means",
    "effective_size",
    "exact_interval",
    "holm",
    "mean",
    "paired_difference",
    "paired_test",
    "proportion",
]
