"""Do judges agree? Cohen's kappa for two, Krippendorff's alpha for any number, with clustered intervals."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial

import numpy as np

from nein.statistics import bootstrap
from nein.statistics.estimates import Estimate, pairs


def cohen_kappa(
    first: Mapping[str, float | None],
    second: Mapping[str, float | None],
    cluster_of: Mapping[str, Hashable],
) -> Estimate | None:
    """Agreement of two judges' yes/no verdicts beyond chance; None without a sample both have judged.

    With the shares a, b, c, d of (1,1), (1,0), (0,1), (0,0): kappa = (p_o - p_e) / (1 - p_e), p_o = a + d,
    p_e = (a + b)(a + c) + (c + d)(b + d). Where both give one and the same verdict throughout, chance
    agreement is complete and kappa does not exist (NaN becomes None). Source: Cohen, Educational and
    Psychological Measurement 20 (1960). Interval: `bootstrap.statistic`.
    """
    one, other, clusters = pairs(first, second, cluster_of)
    if not clusters:
        return None
    x, y = one != 0, other != 0
    table = np.stack([x & y, x & ~y, ~x & y, ~x & ~y], 1).astype(float)
    worst, best = (0, 0.5, 0.5, 0), (0.5, 0, 0, 0.5)
    return bootstrap.statistic(_kappa, table, clusters, worst, best)


def _kappa(sums: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        a, b, c, d = (sums / sums.sum(1, keepdims=True)).T
        chance = (a + b) * (a + c) + (c + d) * (b + d)
        return (a + d - chance) / (1 - chance)


def krippendorff_alpha(
    verdicts: Sequence[Mapping[str, float | None]], cluster_of: Mapping[str, Hashable]
) -> Estimate | None:
    """Nominal alpha over any number of judges; a judge may lack a verdict on a sample.

    Samples with fewer than two verdicts cannot disagree and do not enter. With n_uc verdicts c on sample u,
    m_u = sum_c n_uc, n_c = sum_u n_uc and N = sum_c n_c,

        alpha = 1 - (N - 1) * sum_u sum_{c != k} n_uc n_uk / (m_u - 1) / sum_{c != k} n_c n_k.

    None where no sample has two verdicts or all verdicts are the same. Source: Krippendorff, Content Analysis
    (2004), section 11.3; Hayes & Krippendorff, Communication Methods and Measures 1 (2007).
    """
    categories = sorted({value for judge in verdicts for value in judge.values() if value is not None})
    ids = list(dict.fromkeys(key for judge in verdicts for key in judge))
    each_of = (np.array([*map(judge.get, ids)], dtype=np.float64) for judge in verdicts)
    counts = sum((said[:, None] == np.array(categories) for said in each_of), np.zeros((len(ids), 1)))
    used = counts.sum(1) >= 2
    if not used.any():
        return None
    counts = counts[used]
    size = counts.sum(1)
    apart = (size**2 - (counts**2).sum(1)) / (size - 1)
    clusters = [cluster_of[key] for key, enters in zip(ids, used, strict=True) if enters]
    each = [1 / len(categories)] * len(categories)
    worst, best = [2.0, *(2 * share for share in each)], [0.0, *(2 * share for share in each)]
    alpha = partial(_alpha, verdicts=size.sum())
    return bootstrap.statistic(alpha, np.column_stack([apart, counts]), clusters, worst, best)


def _alpha(sums: np.ndarray, verdicts: float) -> np.ndarray:
    """verdicts  N: weights that are drawn make no verdicts more, so that (N - 1) / N stays as it is."""
    apart, counts = sums[:, 0], sums[:, 1:]
    n = counts.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return 1 - (1 - 1 / verdicts) * n * apart / (n**2 - (counts**2).sum(1))
