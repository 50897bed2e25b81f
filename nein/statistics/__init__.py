"""Estimates with their intervals, tests, resampling, agreement, and the correction of judges.

Functions of numbers; nothing here reads a file.
"""

from nein.statistics.estimates import (
    Estimate,
    bounded_mean,
    difference_of_means,
    holm,
    mean,
    paired_difference,
    pairs_ratio,
    pairs_test,
)

__all__ = [
    "Estimate",
    "bounded_mean",
    "difference_of_means",
    "holm",
    "mean",
    "paired_difference",
    "pairs_ratio",
    "pairs_test",
]
