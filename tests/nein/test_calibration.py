import math

import numpy as np
import pytest

from nein import statistics
from nein.statistics import calibration
from nein.statistics.calibration import Rates


def share(ones, n):
    return statistics.bounded_mean([1.0] * ones + [0.0] * (n - ones), list(range(n)))


def judged(rng, truth, sensitivity, specificity):
    """What a judge with these rates says about objects that are there (True) or not."""
    right = rng.uniform(size=len(truth)) < np.where(truth, sensitivity, specificity)
    return np.where(right, truth, ~truth)


def clusters(rng, count):
    return np.repeat(np.arange(count), rng.integers(1, 6, count))


def keyed(*columns):
    return [dict(enumerate(np.asarray(column, float).tolist())) for column in columns]


def test_rates_by_hand():
    present = [True, True, True, True, False, False, False]
    verdicts = [True, True, False, None, False, True, False]
    found = calibration.measure_rates(present, verdicts, "abcdefg", [0.9, 0.8, 0.4, None, 0.3, 0.85, 0.1])
    assert found.sensitivity.value == found.specificity.value == pytest.approx(2 / 3)
    assert found.n_unscored == 1
    assert found.auc.value == pytest.approx(7 / 9)  # of nine pairs 0.8 and 0.4 lose to 0.85
    assert found.youden.value == pytest.approx(1 / 3)
    assert found.youden.n == 6


def test_the_correction_inverts_what_the_judge_does_exactly():
    # 40 % are gone; a judge with sensitivity 0.9 and specificity 0.8 no longer sees 0.4 * 0.8 + 0.6 * 0.1.
    rates = Rates(share(900, 1000), share(800, 1000), None, 0)
    found = calibration.correct(share(380, 1000), rates)
    assert found.value == pytest.approx(0.4)
    assert found.low < 0.4 < found.high
    # Retention counts what is still seen: 0.6 * 0.9 + 0.4 * 0.2.
    assert calibration.correct(share(620, 1000), rates, "retention").value == pytest.approx(0.6)
    # A perfect judge changes nothing but leaves room for doubt.
    plain, perfect = share(30, 100), Rates(share(50, 50), share(50, 50), None, 0)
    found = calibration.correct(plain, perfect)
    assert found.value == pytest.approx(0.3)
    assert found.low < plain.low
    for ones in (820, 80):  # a share above 1 or below 0 is cut, and the end on the other side moved with it
        found = calibration.correct(judged := share(ones, 1000), rates)
        raw = calibration.propagate(
            lambda r, yes, no: (r + no - 1) / (yes + no - 1), judged, rates.specificity, rates.sensitivity
        )
        share_of = 1.0 if raw.value > 1 else 0.0
        ends = (raw.low + 1 - raw.value, 1.0) if share_of else (0.0, raw.high - raw.value)
        assert not 0 <= raw.value <= 1
        assert (found.value, found.low, found.high) == pytest.approx((share_of, *ends))


@pytest.mark.parametrize(("what", "judged_as", "sensitivity", "specificity", "refused"), [
    # It sees half of what is there, and yet nearly all.
    ("retention", (970, 1000), (500, 1000), (990, 1000), "cannot come from a judge with"),
    ("removal", (50, 100), (52, 100), (50, 100), "hardly tells present from absent"),
    ("removal", (50, 100), (3, 3), (3, 3), ""),  # perfect, but on three pictures
    ("removal", (1, 9), None, (9, 9), ""),
])  # fmt: skip
def test_a_figure_that_no_such_judge_could_give_is_refused(
    what, judged_as, sensitivity, specificity, refused
):
    rates = Rates(*(one and share(*one) for one in (sensitivity, specificity)), None, 0)
    found = calibration.correct(share(*judged_as), rates, what)
    assert found.value is None
    assert found.refused
    assert refused in found.refused


@pytest.mark.parametrize(
    ("sensitivity", "specificity", "removal"), [(0.85, 0.9, 0.3), (0.7, 0.95, 0.05), (0.97, 0.99, 0.6)]
)
def test_corrected_removal_covers_the_truth_with_clusters(sensitivity, specificity, removal):
    rng = np.random.default_rng(1)
    hits = naive = 0
    for _ in range(400):
        truth, names = rng.uniform(size=240) < 0.5, np.arange(240) // 3
        said = judged(rng, truth, sensitivity, specificity)
        rates = calibration.measure_rates(truth.tolist(), said.tolist(), names.tolist())
        source = clusters(rng, 120)
        # Samples of one image are alike: each image has its own chance of removal, with the mean wanted.
        chance = rng.beta(2 * removal, 2 * (1 - removal), 120)[source]
        there = rng.uniform(size=len(source)) >= chance
        gone = ~judged(rng, there, sensitivity, specificity)
        plain = statistics.bounded_mean(gone.astype(float).tolist(), source.tolist())
        found = calibration.correct(plain, rates)
        hits += found.low <= removal <= found.high
        naive += plain.low <= removal <= plain.high
    assert hits / 400 >= 0.93
    assert sensitivity >= 0.9 or naive / 400 < 0.8  # uncorrected, the interval is about another number


@pytest.mark.parametrize("labelled", [150, None])
def test_prediction_powered_removal_covers_the_truth_whatever_the_judge(labelled):
    """150 samples with a label, or all of them."""
    rng = np.random.default_rng(2)
    hits, errors, plain = 0, [], []
    for _ in range(200):
        source = clusters(rng, 200)
        gone = rng.uniform(size=len(source)) < rng.beta(0.6, 1.4, 200)[source]
        said = ~judged(rng, ~gone, 0.6, 0.95)
        verdicts, where = keyed(said, source)
        labels = {k: float(gone[k]) for k in rng.choice(len(source), labelled or len(source), False)}
        found = calibration.prediction_powered(verdicts, labels, where)
        hits += found.low <= 0.3 <= found.high
        errors.append(found.value - 0.3)
        plain.append(said.mean() - 0.3)
    assert hits / 200 >= 0.93
    assert abs(np.mean(errors)) < 0.01
    assert abs(np.mean(plain)) > 0.1


@pytest.mark.parametrize("truths", [[1.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
def test_few_labels_keep_to_the_range_and_give_a_wide_interval(truths):
    """Two labels that agreed once gave 124.6 % [120.2, 129.0]."""
    verdicts = {i: float(i >= 60) for i in range(240)}  # 75 % are gone
    where = {name: name // 4 for name in verdicts}
    plain = statistics.bounded_mean([*verdicts.values()], [*where.values()])
    labels = {4 * i: truth for i, truth in enumerate(truths)}
    found = calibration.prediction_powered(verdicts, labels, where)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.high - found.low > 2 * (plain.high - plain.low)
    assert found.n == len(truths)


def test_distances_at_the_ends_add_up_as_squares_each_on_its_side():
    one, other = share(30, 100), share(50, 100)
    found = calibration.propagate(lambda a, b: a - b, one, other)
    low = -0.2 - math.hypot(0.3 - one.low, other.high - 0.5)
    assert (found.value, found.low) == pytest.approx((-0.2, low))
    assert found.high == pytest.approx(-0.2 + math.hypot(one.high - 0.3, 0.5 - other.low))


def test_the_weight_of_the_verdicts_by_hand():
    """16 labels, half yes; the judge agrees on 12 and says yes to 8; of 32 other samples it says yes to 8.

    w = (cov / 16) / (var / 16 + var of the others / 32) = (1/8 / 16) / (1/4 / 16 + 3/16 / 32) = 4/11.
    """
    people = [1] * 8 + [0] * 8
    judge = [1] * 6 + [0] * 2 + [1] * 2 + [0] * 6 + [1] * 8 + [0] * 24
    for copies in (1, 3):  # copies of a sample in its own image tell nothing new
        verdicts, labels, where = {}, {}, {}
        for image, verdict in enumerate(judge):
            for key in range(copies * image, copies * (image + 1)):
                verdicts[key], where[key] = float(verdict), image
                if image < 16:
                    labels[key] = float(people[image])
        found = calibration.prediction_powered(verdicts, labels, where)
        assert found.value == pytest.approx(1 / 2 + 4 / 11 * (1 / 4 - 1 / 2))
        # Variance of the labels' mean less what the verdicts explain of it.
        error = math.sqrt(1 / 64 - 4 / 11 * 1 / 128)
        assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.12)


@pytest.mark.parametrize(("sensitivity", "specificity", "least", "most"), [
    (0.5, 0.5, 0.98, 1.0),  # useless: people's labels alone
    (0.65, 0.65, 0.92, 0.97),  # with a weight of 1 a fifth wider than the labels alone
    (0.95, 0.97, 0.5, 0.6),
])  # fmt: skip
def test_a_judge_never_makes_the_interval_of_the_labels_wider(sensitivity, specificity, least, most):
    rng, ratios = np.random.default_rng(4), []
    for _ in range(40):
        gone = rng.uniform(size=600) < 0.3
        verdicts, where = keyed(~judged(rng, ~gone, sensitivity, specificity), np.arange(600))
        labels = {k: float(gone[k]) for k in range(100)}
        alone = statistics.bounded_mean([*labels.values()], [*labels])
        found = calibration.prediction_powered(verdicts, labels, where)
        ratios.append((found.high - found.low) / (alone.high - alone.low))
    assert max(ratios) <= 1 + 1e-9
    assert least <= np.mean(ratios) <= most


@pytest.mark.parametrize(("samples", "enough"), [(2000, True), (300, False)])
def test_so_many_labels_are_needed_that_half_of_the_interval_is_five_points(samples, enough):
    verdicts = dict.fromkeys(range(samples), 1.0)  # of a judge that always says the same
    labels = {i: float(i % 10 < 3) for i in range(100)}
    found = calibration.prediction_powered(verdicts, labels, {i: i for i in verdicts})
    alone = share(30, 100)
    assert (found.value, found.low, found.high) == pytest.approx((alone.value, alone.low, alone.high))
    assert found.needed == (math.ceil(100 * ((alone.high - alone.low) / 2 / 0.05) ** 2) if enough else None)


def test_without_a_label_of_a_scored_sample_there_is_a_reason_in_place_of_a_number():
    found = calibration.prediction_powered({"a": 1.0, "b": None}, {"b": 1.0}, {"a": 1, "b": 2})
    assert (found.value, found.low, found.high, found.n) == (None, None, None, 0)
    assert "no sample has both" in found.refused


def test_reliability_bins_and_their_error_by_hand():
    scores, present = [0.05, 0.15, 0.12, 0.95, 1.0], [False, True, False, True, True]
    bins, error = calibration.reliability(scores, present, range(5))
    assert [(share.n, share.value) for _, share in bins] == [(1, 0.0), (2, 0.5), (2, 1.0)]
    assert [score for score, _ in bins] == pytest.approx([0.05, 0.135, 0.975])
    assert error == pytest.approx(0.2 * 0.05 + 0.4 * abs(0.135 - 0.5) + 0.4 * 0.025)


def test_krippendorffs_alpha_is_the_published_example():
    # Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), example C: four observers, twelve
    # units, missing values; nominal alpha 0.743.
    table = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
        [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
    ]
    found = calibration.krippendorff_alpha([dict(enumerate(row)) for row in table], {k: k for k in range(12)})
    assert (found.value, found.n) == (pytest.approx(0.743, abs=5e-4), 11)


def test_full_agreement_on_one_sample_that_is_there_and_many_that_are_not_says_little():
    where, low = {i: i for i in range(100)}, []
    for ones in (1, 50):
        verdicts = {i: float(i < ones) for i in where}
        kappa = calibration.cohen_kappa(verdicts, verdicts, where)
        for found in (kappa, calibration.krippendorff_alpha([verdicts] * 2, where)):
            assert found.value == found.high == 1.0
            low.append(found.low)
    assert max(low[:2]) < 0.3
    assert min(low[2:]) > 0.9


def test_the_error_of_kappa_is_that_of_leaving_every_picture_out():
    rng = np.random.default_rng(3)
    first = {i: float(v) for i, v in enumerate(rng.integers(0, 2, 40))}
    second = {i: v if rng.uniform() < 0.8 else 1 - v for i, v in first.items()}
    where = {i: i // 2 for i in first}
    found = calibration.cohen_kappa(first, second, where)
    without = [
        calibration.cohen_kappa({i: v for i, v in first.items() if where[i] != picture}, second, where).value
        for picture in range(20)
    ]
    spread = sum((value - found.value) ** 2 for value in without)
    assert found.standard_error == pytest.approx(math.sqrt(19 / 20 * spread))


def test_roc_auc_is_the_share_of_pairs_in_order_ties_half():
    rng = np.random.default_rng(1)
    scores, truth = rng.integers(0, 6, 80) / 5, rng.uniform(size=80) < 0.4
    found = calibration.roc_auc(scores, truth, range(80))
    above = (scores[truth][:, None] > scores[~truth]) + 0.5 * (scores[truth][:, None] == scores[~truth])
    assert found.value == pytest.approx(above.mean())
    # DeLong's variance of single samples, with G / (G - 1) in place of one for either kind.
    spread = above.mean(1).var() / truth.sum() + above.mean(0).var() / (~truth).sum()
    assert found.standard_error == pytest.approx(np.sqrt(80 / 79 * spread))
    assert calibration.roc_auc([0.1, 0.9], [True, True], "ab") is None
    perfect = calibration.roc_auc([0.9, 0.8, 0.7, 0.1, 0.2], [True] * 3 + [False] * 2, list("abcde"))
    assert perfect.value == perfect.high == 1.0
    assert 0 < perfect.low < 0.6  # five pictures say little


@pytest.mark.filterwarnings("error")
def test_without_pairs_or_another_word_there_is_no_agreement():
    assert calibration.krippendorff_alpha([{"a": 1.0}, {"b": 1.0}], {"a": 1, "b": 1}) is None
    alike, where = dict.fromkeys(range(5), 1.0), {key: key for key in range(5)}
    assert calibration.krippendorff_alpha([alike, alike], where) is None
    assert calibration.cohen_kappa(alike, alike, where) is None
