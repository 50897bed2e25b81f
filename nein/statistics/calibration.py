"""What a judge's verdicts are worth: its error rates on known truth, and figures corrected for them.

"Positive" is "the object is there": sensitivity is the share of present objects the judge sees, specificity
the share of absent ones it does not.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nein import statistics
from nein.statistics import bootstrap
from nein.statistics.estimates import Estimate

#: A judge whose sensitivity + specificity - 1 may be as low as this tells too little to be corrected: errors
#: of the rates are multiplied by its inverse, here five.
MIN_YOUDEN = 0.2


@dataclass(frozen=True)
class Rates:
    """Error rates of a judge.

    sensitivity, specificity  With intervals clustered by image; None without such a case.
    auc                       Area under the ROC curve of the soft score; None where the judge gives none.
    n_unscored                Cases in which the judge gave no verdict; they enter neither rate.
    """

    sensitivity: Estimate | None
    specificity: Estimate | None
    auc: Estimate | None
    n_unscored: int

    @property
    def youden(self) -> Estimate | None:
        """sensitivity + specificity - 1, with a normal interval from `_smoothed` rates."""
        if self.sensitivity is None or self.specificity is None:
            return None
        parts = [_smoothed(rate) for rate in (self.sensitivity, self.specificity)]
        error = math.sqrt(sum(p * (1 - p) / n for p, n in parts))
        value = self.sensitivity.value + self.specificity.value - 1
        middle = sum(p for p, _ in parts) - 1
        n = self.sensitivity.n + self.specificity.n
        clusters = min(self.sensitivity.clusters, self.specificity.clusters)
        return Estimate(value, middle - _Z * error, middle + _Z * error, error, n, clusters)


_Z = 1.959963984540054


def rates(
    present: Sequence[bool],
    verdicts: Sequence[bool | None],
    clusters: Sequence[Hashable],
    scores: Sequence[float | None] | None = None,
) -> Rates:
    """Error rates from cases of known truth.

    present   The truth.       verdicts  What the judge said; None: nothing that can be read.
    clusters  The image, or the group of images, of every case.     scores  Its soft score for "present".
    """
    cases = list(zip(present, verdicts, clusters, strict=True))
    seen = [(float(bool(said)), where) for truth, said, where in cases if truth and said is not None]
    unseen = [(float(not said), where) for truth, said, where in cases if not truth and said is not None]
    soft = [
        (score, truth, where)
        for (truth, _, where), score in zip(cases, scores or [None] * len(cases), strict=True)
        if score is not None
    ]
    auc = None
    if soft:
        marks, truths, where = zip(*soft, strict=True)
        auc = bootstrap.roc_auc_interval(marks, truths, where)
    return Rates(
        statistics.bounded_mean([v for v, _ in seen], [w for _, w in seen]),
        statistics.bounded_mean([v for v, _ in unseen], [w for _, w in unseen]),
        auc,
        sum(said is None for said in verdicts),
    )


@dataclass(frozen=True)
class Corrected:
    """A share corrected for the judge's errors; `value` is None where that is refused, with the reason."""

    value: float | None
    low: float | None
    high: float | None
    refused: str = ""


def correct_removal(judged: Estimate, judge: Rates) -> Corrected:
    """The share of objects really gone, from the share the judge no longer sees (Rogan-Gladen).

    With removal r as judged, sensitivity Se and specificity Sp: (r + Se - 1) / (Se + Sp - 1). The interval is
    Lang & Reiczigel's, which contains the uncertainty of all three rates; each counts with its effective
    sample size, so that clusters widen it. Refused when the lower end of the interval of Se + Sp - 1 is at or
    below `MIN_YOUDEN`: such a judge hardly tells present from absent.

    Assumes that the judge errs on edited pictures as often as on those it was calibrated on. Sources: Rogan &
    Gladen, American Journal of Epidemiology 107 (1978); Lang & Reiczigel, Preventive Veterinary Medicine 113
    (2014).
    """
    return _rogan_gladen(judged, judge.specificity, judge.sensitivity, judge)


def correct_retention(judged: Estimate, judge: Rates) -> Corrected:
    """The share of objects really still there, from the mean share the judge still sees: the same correction
    with the rates exchanged, (r + Sp - 1) / (Se + Sp - 1).

    Retention is a weighted share of (object, sample) verdicts and the correction is linear, so it holds for
    the mean. It treats an object the judge saw in the unedited picture as one that was there. Those objects
    are easier to see than others, so the calibrated sensitivity is at best a lower bound of the one at work
    here; a figure that is too high for it is refused.
    """
    return _rogan_gladen(judged, judge.sensitivity, judge.specificity, judge)


def _rogan_gladen(judged: Estimate, hit: Estimate | None, reject: Estimate | None, judge: Rates) -> Corrected:
    """`hit`: P(judge says the thing counted | it is so); `reject`: P(judge denies it | it is not so)."""
    youden = judge.youden
    if hit is None or reject is None or youden is None or youden.low is None:
        return Corrected(None, None, None, "the calibration lacks present or absent objects")
    if youden.low <= MIN_YOUDEN:
        return Corrected(
            None,
            None,
            None,
            f"sensitivity + specificity - 1 is {youden.value:.2f} and may be as low as {youden.low:.2f}: "
            "this judge hardly tells present from absent",
        )
    value = (judged.value + reject.value - 1) / (hit.value + reject.value - 1)
    r_n = statistics.effective_size(judged)
    r = (judged.value * r_n + _Z**2 / 2) / (r_n + _Z**2)
    (se, se_n), (sp, sp_n) = _smoothed(hit), _smoothed(reject)
    span = se + sp - 1
    share = (r + sp - 1) / span
    shift = 2 * _Z**2 * (share * se * (1 - se) / se_n - (1 - share) * sp * (1 - sp) / sp_n)
    variance = (
        r * (1 - r) / (r_n + _Z**2)
        + share**2 * se * (1 - se) / se_n
        + (1 - share) ** 2 * sp * (1 - sp) / sp_n
    )
    reach = _Z * math.sqrt(variance) / span
    low, high = share + shift - reach, share + shift + reach
    if low > 1 or high < 0:
        return Corrected(
            None,
            None,
            None,
            f"{100 * judged.value:.1f} % cannot come from a judge with these error rates: it errs "
            "otherwise on these pictures than on those of the calibration",
        )
    low, high = max(0.0, low), min(1.0, high)
    return Corrected(min(1.0, max(0.0, value)), low, high)


def _smoothed(rate: Estimate) -> tuple[float, float]:
    """(rate, size) with one success and one failure added to the effective sample."""
    n = statistics.effective_size(rate)
    return (n * rate.value + 1) / (n + 2), n + 2


def prediction_powered(
    judged: Mapping[str, float | None], labels: Mapping[str, float], cluster_of: Mapping[str, Hashable]
) -> Estimate | None:
    """The mean of the truth, from a judge's verdicts on all samples and people's labels on some.

    mean of the verdicts + mean of (label - verdict) over the labelled samples; unbiased however bad the judge
    is, where the labelled samples are a random part. None without a sample that has both. The interval is the
    clustered one of `statistics.mean`, for the sum of the two means. Source: Angelopoulos et al.,
    "Prediction-powered inference", Science 382 (2023), for the mean.
    """
    scored = {key: float(value) for key, value in judged.items() if value is not None}
    both = [key for key in labels if key in scored]
    if not both:
        return None
    mean = sum(scored.values()) / len(scored)
    shift = sum(labels[key] - scored[key] for key in both) / len(both)
    pull = {key: (value - mean) / len(scored) for key, value in scored.items()}
    for key in both:
        pull[key] += (labels[key] - scored[key] - shift) / len(both)
    n = len(pull)
    moved = statistics.mean([n * value for value in pull.values()], [cluster_of[key] for key in pull])
    assert moved is not None
    centre = mean + shift
    low, high = (None if end is None else end - moved.value + centre for end in (moved.low, moved.high))
    return Estimate(centre, low, high, moved.standard_error, len(both), moved.clusters)


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
