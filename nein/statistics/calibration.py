"""What a judge's verdicts are worth: its error rates on known truth, and figures corrected for them.

"Positive" is "the object is there": sensitivity is the share of present objects the judge sees, specificity
the share of absent ones it does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nein import statistics
from nein.statistics.agreement import roc_auc
from nein.statistics.estimates import Estimate

#: A judge whose sensitivity + specificity - 1 may be as low as this tells too little to be corrected: errors
#: of the rates are multiplied by its inverse, here five.
MIN_YOUDEN = 0.2


@dataclass(frozen=True)
class Rates:
    """Error rates of a judge, None without such a case; auc: of its soft score; n_unscored: cases without a
    verdict, which enter neither rate."""

    sensitivity: Estimate | None
    specificity: Estimate | None
    auc: Estimate | None
    n_unscored: int

    @property
    def youden(self) -> Estimate | None:
        """sensitivity + specificity - 1; its interval is `propagated` from theirs."""
        if self.sensitivity is None or self.specificity is None:
            return None
        value, low, high = propagated(lambda se, sp: se + sp - 1, self.sensitivity, self.specificity)
        n = self.sensitivity.n + self.specificity.n
        return Estimate(value, low, high, None, n, min(self.sensitivity.clusters, self.specificity.clusters))


def propagated(function: Callable[..., float], *parts: Estimate) -> tuple[float, float, float]:
    """(value, low, high) of a function of independent estimates, from their own intervals (MOVER): the
    distances at their ends add up as squares. An estimate without an interval counts as known. Source: Zou &
    Donner, Statistics in Medicine 27 (2008); Newcombe, Communications in Statistics 40 (2011)."""
    values = [part.value for part in parts]
    value = function(*values)
    down = up = 0.0
    for place, part in enumerate(parts):
        ends = [value if end is None else end for end in (part.low, part.high)]
        moved = [function(*values[:place], end, *values[place + 1 :]) for end in ends]
        down += max(0.0, value - min(moved)) ** 2
        up += max(0.0, max(moved) - value) ** 2
    return value, value - math.sqrt(down), value + math.sqrt(up)


def rates(
    present: Sequence[bool],
    verdicts: Sequence[bool | None],
    clusters: Sequence[Hashable],
    scores: Sequence[float | None] | None = None,
) -> Rates:
    """Error rates from cases of known truth. verdicts: None where nothing can be read; scores: the soft ones
    for "present"."""
    cases = list(zip(present, verdicts, clusters, scores or [None] * len(verdicts), strict=True))

    def share(there: bool) -> Estimate | None:
        of = [(bool(said) == there, where) for truth, said, where, _ in cases
              if bool(truth) == there and said is not None]  # fmt: skip
        return statistics.bounded_mean([right for right, _ in of], [where for _, where in of])

    soft = [(score, truth, where) for truth, _, where, score in cases if score is not None]
    auc = roc_auc(*zip(*soft, strict=True)) if soft else None
    return Rates(share(True), share(False), auc, sum(said is None for said in verdicts))


@dataclass(frozen=True)
class Corrected:
    """A share corrected for the judge's errors; `value` is None where that is refused, with the reason.
    n: samples behind the correction, where that is not the number of the raw figure."""

    value: float | None
    low: float | None
    high: float | None
    refused: str = ""
    n: int | None = None


def correct_removal(judged: Estimate, judge: Rates) -> Corrected:
    """The share of objects really gone, from the share the judge no longer sees (Rogan-Gladen).

    With removal r as judged, sensitivity Se and specificity Sp: (r + Se - 1) / (Se + Sp - 1), the interval
    `propagated` from those of all three. Refused when the lower end of the interval of Se + Sp - 1 is at or
    below `MIN_YOUDEN`: such a judge hardly tells present from absent.

    Assumes that the judge errs on edited pictures as often as on those it was calibrated on. Source: Rogan &
    Gladen, American Journal of Epidemiology 107 (1978).
    """
    return _rogan_gladen(judged, judge.specificity, judge.sensitivity, judge)


def correct_retention(judged: Estimate, judge: Rates) -> Corrected:
    """The share of objects really still there, from the mean share the judge still sees: the same correction
    with the rates exchanged, (r + Sp - 1) / (Se + Sp - 1).

    It treats an object the judge saw in the unedited picture as one that was there. Those are easier to see
    than others, so the calibrated sensitivity is at best a lower bound; a figure too high for it is refused.
    """
    return _rogan_gladen(judged, judge.sensitivity, judge.specificity, judge)


def _rogan_gladen(judged: Estimate, hit: Estimate | None, reject: Estimate | None, judge: Rates) -> Corrected:
    """`hit`: P(judge says the thing counted | it is so); `reject`: P(judge denies it | it is not so)."""
    youden = judge.youden
    if hit is None or reject is None or youden is None or youden.low is None:
        return Corrected(None, None, None, "the calibration lacks present or absent objects")
    if youden.low <= MIN_YOUDEN:
        why = f"sensitivity + specificity - 1 is {youden.value:.2f} and may be as low as {youden.low:.2f}"
        return Corrected(None, None, None, f"{why}: this judge hardly tells present from absent")
    return _in_range(
        propagated(lambda r, yes, no: (r + no - 1) / (yes + no - 1), judged, hit, reject),
        f"{100 * judged.value:.1f} % cannot come from a judge with these error rates: it errs otherwise on "
        "these pictures than on those of the calibration",
    )


def _in_range(found: tuple[float, float, float], impossible: str, n: int | None = None) -> Corrected:
    """A share, cut to 0 and 1; refused where no part of its interval lies within. An interval moves with a
    value that is cut: what cannot be makes nobody surer."""
    value, low, high = found
    if low > 1 or high < 0:
        return Corrected(None, None, None, impossible, n)
    share = min(1.0, max(0.0, value))
    low, high = min(low, low + share - value), max(high, high + share - value)
    return Corrected(share, max(0.0, low), min(1.0, high), "", n)


def prediction_powered(
    judged: Mapping[str, float | None], labels: Mapping[str, float], cluster_of: Mapping[str, Hashable]
) -> Corrected:
    """The mean of the truth, from a judge's verdicts on all samples and people's labels on some, all 0 or 1.

    mean of the verdicts + mean of (label - verdict) over the labelled samples; unbiased however bad the judge
    is, where those are a random part. With w their share this is (1 - w) times the mean verdict of the others
    plus the mean of label - (1 - w) verdict; the interval is `propagated` from theirs. Source: Angelopoulos
    et al., "Prediction-powered inference", Science 382 (2023).
    """
    scored = {key: value for key, value in judged.items() if value is not None}
    both = [key for key in labels if key in scored]
    if not both:
        return Corrected(None, None, None, "no sample has both a label and a verdict", 0)
    others = [key for key in scored if key not in labels]
    rest = len(others) / len(scored)
    shift = statistics.paired_difference(
        {key: labels[key] for key in both}, {key: rest * scored[key] for key in both}, cluster_of
    )
    assert shift is not None
    alone = statistics.bounded_mean([scored[key] for key in others], [cluster_of[key] for key in others])
    parts = [shift, alone] if alone else [shift]
    return _in_range(
        propagated(lambda moved, mean=0.0: rest * mean + moved, *parts),
        "the labels contradict the judge by more than there can be: are they a random part of the samples?",
        len(both),
    )


@dataclass(frozen=True)
class Bin:
    """Cases whose soft score lies in [low, high): their mean score, the share present with its interval,
    n."""

    low: float
    high: float
    score: float
    present: Estimate


def reliability(
    scores: Iterable[float], present: Iterable[bool], clusters: Iterable[Hashable], bins: int = 10
) -> tuple[list[Bin], float]:
    """(bins, error): is a soft score of 0.8 right in 80 % of the cases?

    `bins` equally wide bins over [0, 1]; empty ones are left out. error: the mean distance of score and share
    over the bins, weighted by their cases (expected calibration error). Source: Naeini et al., AAAI 2015.
    """
    x = np.array([float(score) for score in scores])
    y, where = np.array(list(present), dtype=float), list(clusters)
    place = np.clip((x * bins).astype(int), 0, bins - 1)
    filled, error = [], 0.0
    for index in range(bins):
        inside = np.flatnonzero(place == index)
        if len(inside):
            share = statistics.bounded_mean(y[inside].tolist(), [where[i] for i in inside])
            assert share is not None
            mean = float(x[inside].mean())
            filled.append(Bin(index / bins, (index + 1) / bins, mean, share))
            error += len(inside) / len(x) * abs(mean - share.value)
    return filled, error
