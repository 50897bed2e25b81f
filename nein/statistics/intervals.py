"""95 % intervals of shares and their differences at the size that independent samples would have.

Functions of numbers or arrays, in units of the range: from 0 to 1, or -1 to 1 for differences.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Ends: TypeAlias = tuple[Any, Any]

LEVEL = 0.95
Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution
#: How alike samples of a picture are taken to be (intraclass correlation) while the data do not say. It
#: weighs as much as one picture of dissenting samples.
ALIKE = 0.6


def effective_size(n: Any, usual: Any, binary: Any, spread: Any, robust: Any, *, graded: bool = False) -> Any:
    """How many independent yes/no samples tell as much: n / design effect.

    n       Samples.
    usual   Samples in the picture of a sample drawn at random, sum b^2 / sum b.
    binary  Variance of a value if all values were at the ends of their range, with the same mean.
    spread  Variance of a value.
    robust  n times the cluster-robust variance of the mean; None where there is one picture.
    graded  Values lie between the ends: what is assumed has their spread, not that of yes and no.

    The design effect is robust / binary, with the intraclass correlation kept between 0 and 1. Few dissenting
    samples (n binary) say little about it, none nothing: it is averaged with the one that `ALIKE` gives, by
    the weight of one image. The size is Korn & Graubard's, Survey Methodology 24 (1998), without their
    factor of t; the average is ours.
    """
    usual = np.maximum(usual, 1.0)
    dissent, assumed = n * binary, 1 + (usual - 1) * ALIKE
    with np.errstate(invalid="ignore", divide="ignore"):
        alike = (
            usual
            if robust is None
            else np.clip(np.nan_to_num(np.divide(robust, spread), nan=1.0), 1.0, usual)
        )
        seen = np.nan_to_num(np.divide(spread, binary) * alike, nan=1.0)
        assumed *= spread / binary if graded else 1.0
    return n * (dissent + usual) / (dissent * seen + usual * assumed)


def clopper_pearson(share: Any, n: Any) -> Ends:
    """Of a share of n samples; n need not be whole. Source: Clopper & Pearson, Biometrika 26 (1934)."""
    from scipy.special import betaincinv

    yes, no = np.multiply(share, n), np.multiply(1 - np.asarray(share), n)
    low = np.where(yes > 0, betaincinv(np.maximum(yes, 1e-300), no + 1, (1 - LEVEL) / 2), 0.0)
    high = np.where(no > 0, betaincinv(yes + 1, np.maximum(no, 1e-300), (1 + LEVEL) / 2), 1.0)
    return low, high


def bonett_price(up: Any, down: Any, n: Any) -> Ends:
    """(middle, standard error) of a paired difference, up - down, the shares of n pairs that say +1 and -1; a
    pair is added to either. Source: Bonett & Price, Journal of Educational and Behavioral Statistics 37
    (2012)."""
    more, less = (np.multiply(up, n) + 1) / (n + 2), (np.multiply(down, n) + 1) / (n + 2)
    middle = more - less
    return middle, np.sqrt((more + less - middle**2) / (n + 2))


def agresti_caffo(first: Any, n_first: Any, second: Any, n_second: Any) -> Ends:
    """Of the difference of two independent shares: a yes and a no are added to both. Source: Agresti & Caffo,
    The American Statistician 54 (2000)."""
    one, other = (first * n_first + 1) / (n_first + 2), (second * n_second + 1) / (n_second + 2)
    reach = Z * np.sqrt(one * (1 - one) / (n_first + 2) + other * (1 - other) / (n_second + 2))
    return np.maximum(-1.0, one - other - reach), np.minimum(1.0, one - other + reach)


def bonett_price_ratio(both: Any, first: Any, second: Any) -> Ends:
    """Of the ratio of two paired shares, (both + first) / (both + second), from the numbers of pairs in which
    both, the first alone and the second alone are yes. Source: Bonett & Price, Statistics in Medicine 25
    (2006)."""
    n, above, below = both + first + second, both + first, both + second
    apart = np.sqrt((first + second + 2) / ((above + 1) * (below + 1)))
    each = [np.sqrt((1 - (x + 1) / (n + 2)) / (x + 1)) for x in (above, below)]
    z = Z * apart / (each[0] + each[1])
    (low, high), (least, most) = (wilson(x, n, z) for x in (above, below))
    return low / most, high / least


def wilson(yes: Any, n: Any, z: Any) -> Ends:
    """Of `yes` of n samples, z standard errors on either side. Source: Wilson, Journal of the American
    Statistical Association 22 (1927)."""
    middle, reach = 2 * yes + z**2, z * np.sqrt(z**2 + 4 * yes * (1 - yes / n))
    return (middle - reach) / (2 * (n + z**2)), (middle + reach) / (2 * (n + z**2))
