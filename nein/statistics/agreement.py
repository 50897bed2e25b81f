"""Cohen's kappa, Krippendorff's alpha and the area under the ROC curve: their standard errors are
cluster-robust, their intervals Clopper-Pearson's at the effective size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from nein.statistics.estimates import Clusters, Estimate, bounded, cluster_columns, pairs


def cohen_kappa(
    first: Mapping[str, float | None], second: Mapping[str, float | None], cluster_of: Mapping[str, Hashable]
) -> Estimate | None:
    """Agreement of two judges' yes/no verdicts beyond chance; None where it does not exist.

    With the shares a, b, c, d of (1,1), (1,0), (0,1), (0,0): kappa = (p_o - p_e) / (1 - p_e), p_o = a + d,
    p_e = (a + b)(a + c) + (c + d)(b + d). Source: Cohen, Educational and Psychological Measurement 20 (1960).
    """
    one, other, clusters = pairs(first, second, cluster_of)
    if not clusters:
        return None
    x, y = one != 0, other != 0
    table = np.stack([x & y, x & ~y, ~x & y, ~x & ~y], 1).astype(float)
    return _jackknife(_kappa, table, clusters)


def _kappa(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(B, 4) counts -> kappa and 1 - p_e, (B,) each."""
    a, b, c, d = (sums / sums.sum(1, keepdims=True)).T
    apart = 1 - (a + b) * (a + c) - (c + d) * (b + d)
    return 1 - (b + c) / apart, apart


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
    size = counts.sum(1)
    used = size >= 2
    if not used.any():
        return None
    counts, size = counts[used], size[used]
    differ = (size**2 - (counts**2).sum(1)) / (size - 1)
    clusters = [cluster_of[key] for key, enters in zip(ids, used, strict=True) if enters]
    return _jackknife(_alpha, np.column_stack([differ, counts]), clusters)


def _alpha(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(B, 1 + C) sums of what differs and of verdicts -> alpha and the disagreement of chance, (B,) each."""
    differ, counts = sums[:, 0], sums[:, 1:]
    n = counts.sum(1)
    chance = (n**2 - (counts**2).sum(1)) / (n * (n - 1))
    return 1 - differ / n / chance, chance


def _jackknife(
    function: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], table: np.ndarray, clusters: Clusters
) -> Estimate | None:
    """A figure from -1 to 1 of column sums with its interval; None where it is NaN. Every cluster is left out
    once; a figure that then does not exist counts as -1.

    function  (B, D) sums -> (B,) figures, and (B,) how far chance disagrees.
    table     (n, D), a row per sample.
    """
    columns = cluster_columns(clusters)
    sums = np.stack([np.bincount(columns.member, each, columns.count) for each in table.T], 1)  # (G, D)
    total = sums.sum(0)[None]
    with np.errstate(invalid="ignore", divide="ignore"):
        [value], [chance] = function(total)
        left_out, _ = function(total - sums)
    if np.isnan(value):
        return None
    pulls = np.nan_to_num(left_out, nan=-1.0, neginf=-1.0) - value
    n = len(table) * min(1.0, 2 * float(chance))
    return bounded(float(value), pulls * (columns.count - 1) / columns.count, columns, n, len(table), -1.0)


def roc_auc(scores: Sequence[float], truth: Sequence[bool], clusters: Sequence[Hashable]) -> Estimate | None:
    """Area under the ROC curve, the chance that a positive outscores a negative, ties counted half; None
    unless both kinds occur.

    Sources: Fawcett, Pattern Recognition Letters 27 (2006); the clustered standard error of Obuchowski,
    Biometrics 53 (1997). As many samples count as the rarer kind has, which bounds the variance (Birnbaum &
    Klose, Annals of Mathematical Statistics 28 (1957)).
    """
    from scipy.stats import rankdata

    x, positive = np.asarray(scores, dtype=np.float64), np.asarray(truth, dtype=bool)
    n_up, n_down = int(positive.sum()), int((~positive).sum())
    if not n_up or not n_down:
        return None
    inside = np.empty(len(x))  # ranks among the own kind
    inside[positive], inside[~positive] = rankdata(x[positive]), rankdata(x[~positive])
    beaten = rankdata(x) - inside  # how many of the other kind are below, ties half
    wins = np.where(positive, beaten / n_down, 1 - beaten / n_up)
    value = float(wins[positive].mean())
    columns = cluster_columns(clusters)
    parts = (wins - value) / np.where(positive, n_up, n_down)
    pulls = np.bincount(columns.member, parts, columns.count)
    return bounded(value, pulls, columns, min(n_up, n_down), len(x), 0.0)
