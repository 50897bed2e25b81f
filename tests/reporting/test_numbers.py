"""Every figure of the report worked out again from the JSONL files, with no function of the project."""

import csv
import hashlib
import json
import math
import re
from collections import defaultdict

import numpy as np
import pytest
import safetensors.numpy
import scipy.linalg
import scipy.stats

#: The rows of a run, which all are in one block here.
BLOCK = "000/000000.jsonl"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]  # the first says whose they are


class Raw:
    def __init__(self, folder):
        self.edits = {row["id"]: row for row in lines(folder / "edit" / BLOCK)}
        self.values = defaultdict(dict)
        self.unscored = defaultdict(int)
        for file in (folder / "scores").glob(f"*/{BLOCK}"):
            metric = file.parents[1].name
            for row in lines(file):
                if row["value"] is None:
                    self.unscored[metric] += 1
                else:
                    self.values[metric][row["id"]] = row["value"]
        with (folder / "scores" / "fid" / "000" / "000000.safetensors").open("rb") as file:
            tensors = safetensors.numpy.load(file.read())
        self.edited, self.target = tensors["edited"].astype(float), tensors["target"].astype(float)

    def source(self, name):
        return self.edits[name]["source_id"]


@pytest.fixture(scope="module")
def raw(out):
    return {(p.parent.parent.name, p.parent.name): Raw(p.parent) for p in out.glob("*/*/manifest.json")}


@pytest.fixture(scope="module")
def table(page):
    with page.with_suffix(".csv").open(newline="") as file:
        return list(csv.DictReader(file))


def pick(table, task, **where):
    found = [row for row in table if row["task"] == task and {**row, **where} == row]
    assert found, (task, where)
    return found


def interval(pairs):
    """(mean, low, high) by the sandwich formula, cluster by cluster."""
    n = len(pairs)
    mean = math.fsum(v for v, _ in pairs) / n
    sums = defaultdict(float)
    for value, cluster in pairs:
        sums[cluster] += value - mean
    g = len(sums)
    error = math.sqrt(g / (g - 1) * math.fsum(s * s for s in sums.values())) / n
    reach = scipy.stats.t.ppf(0.975, g - 1) * error
    return mean, mean - reach, mean + reach


def effective_size(pairs, binary):
    """(samples over the design effect, standard errors to an end); docs/explanation/statistics.md. binary:
    the variance of yes and no. Values in between have their own, and t, from 13 source images on."""
    values = defaultdict(list)
    for value, cluster in pairs:
        values[cluster].append(value)
    n, mean, g = len(pairs), math.fsum(v for v, _ in pairs) / len(pairs), len(values)
    usual = sum(len(own) ** 2 for own in values.values()) / n
    within = math.fsum((value - mean) ** 2 for value, _ in pairs)
    between = (
        math.fsum(math.fsum(value - mean for value in own) ** 2 for own in values.values()) * g / (g - 1)
    )
    alike = min(usual, max(1.0, between / within)) if within else 1.0
    dissent, seen = n * binary, within / n / binary * alike if binary else 1.0
    graded = g >= 13 and between > 1e-20 and not {value for value, _ in pairs} <= {-1, 0, 1}
    assumed = (1 + 0.6 * (usual - 1)) * (within / n / binary if graded else 1)
    reach = scipy.stats.t.ppf(0.975, g - 1) if graded else scipy.stats.norm.ppf(0.975)
    return n * (dissent + usual) / (dissent * seen + usual * assumed), reach


def share_interval(row, pairs):
    """Clopper and Pearson's, or Wilson's."""
    p = math.fsum(value for value, _ in pairs) / len(pairs)
    if len({cluster for _, cluster in pairs}) < 2:
        assert 0 <= float(row["low"]) < float(row["high"]) <= 1
        return
    n, reach = effective_size(pairs, p * (1 - p))
    if reach > 1.96:
        ends = np.roots([1 + reach**2 / n, -(2 * p + reach**2 / n), p * p])  # |p - x| = t sqrt(x (1 - x) / n)
        close(row["low"], min(ends))
        close(row["high"], max(ends))
        return
    close(row["low"], scipy.stats.beta.ppf(0.025, p * n, n - p * n + 1) if p * n > 1e-9 else 0.0)
    close(row["high"], scipy.stats.beta.ppf(0.975, p * n + 1, n - p * n) if n - p * n > 1e-9 else 1.0)


def difference_interval(row, pairs):
    """Bonett and Price's, and its p."""
    up, down = (math.fsum(max(0.0, sign * value) for value, _ in pairs) / len(pairs) for sign in (1, -1))
    n, reach = effective_size(pairs, up + down - (up - down) ** 2)
    more, less = (up * n + 1) / (n + 2), (down * n + 1) / (n + 2)
    error = math.sqrt((more + less - (more - less) ** 2) / (n + 2))
    close(row["low"], max(-1.0, more - less - reach * error))
    close(row["high"], min(1.0, more - less + reach * error))
    if row.get("p"):
        count = len({cluster for _, cluster in pairs})
        tail = scipy.stats.t(count - 1) if reach > 1.96 else scipy.stats.norm
        p = 2 * tail.sf(abs(more - less) / error)
        close(row["p"], max(p, 2 ** (1 - count)) if math.fsum(value for value, _ in pairs) else 1.0)


def close(text, value):
    assert float(text) == pytest.approx(value, rel=1e-9, abs=1e-12)


def fid(raw):
    a, b = raw.edited, raw.target
    s_a, s_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = scipy.linalg.sqrtm(s_a @ s_b).real
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(s_a + s_b - 2 * root))


def test_every_mean_proportion_count_and_interval(table, raw):
    rows = pick(table, "results")
    assert len(rows) == 3 * 6
    for row in rows:
        run, metric = raw[row["model"], row["variant"]], row["metric"]
        if metric == "fid":
            assert float(row["value"]) == pytest.approx(fid(run), rel=1e-6)
            assert int(row["n"]) == len(run.edited)
            continue
        pairs = [(v, run.source(i)) for i, v in run.values[metric].items()]
        mean, low, high = interval(pairs)
        close(row["value"], mean)
        if metric == "l1":
            close(row["low"], low)
            close(row["high"], high)
        else:
            share_interval(row, pairs)
        assert (int(row["n"]), int(row["unscored"])) == (len(pairs), run.unscored[metric])
        assert int(row["n"]) + int(row["unscored"]) == 70
        assert sum(json.loads(row["reasons"] or "{}").values()) == run.unscored[metric]
        assert int(row["clusters"]) == len({c for _, c in pairs})


def test_the_gap_and_the_gap_of_every_template(table, raw):
    negative, remove = raw["ip2p", "negative"], raw["ip2p", "remove"]
    for row in pick(table, "gap", statistic="gap"):
        told, denied = remove.values[row["metric"]], negative.values[row["metric"]]
        pairs = [(told[i] - denied[i], negative.source(i)) for i in told if i in denied]
        close(row["value"], interval(pairs)[0])
        difference_interval(row, pairs)
        others = {
            statistic: pick(table, "gap", statistic=statistic, metric=row["metric"])[0]["value"]
            for statistic in ("ratio", "affirmed", "negated")
        }
        both = [i for i in told if i in denied]
        close(others["ratio"], sum(told[i] for i in both) / sum(denied[i] for i in both))
        close(others["affirmed"], sum(told[i] for i in both) / len(both))
        close(others["negated"], sum(denied[i] for i in both) / len(both))
    shapes = {
        "The image doesn't have any X.": r"The image doesn't have any .+\.",
        "No X in the image.": r"No (?!.+ present).+ in the image\.",
        "The image lacks X.": r"The image lacks (?!the presence).+\.",
    }
    seen = 0
    for row in pick(table, "gap_by_template"):
        if row["group"] not in shapes:
            continue
        seen += 1
        shape = re.compile(shapes[row["group"]])
        told, denied = remove.values[row["metric"]], negative.values[row["metric"]]
        ids = [i for i in told if i in denied and shape.fullmatch(negative.edits[i]["instruction"])]
        pairs = [(told[i] - denied[i], negative.source(i)) for i in ids]
        assert int(row["n"]) == len(ids)
        close(row["value"], math.fsum(value for value, _ in pairs) / len(pairs))
        difference_interval(row, pairs)
    assert seen == 6


def test_breakdowns_by_object_and_by_instruction(table, raw):
    checked = 0
    for row in pick(table, "by_object"):
        run = raw[row["model"], row["variant"]]
        every = run.values[row["metric"]].items()
        chosen = [(v, run.source(i)) for i, v in every if run.edits[i]["object"] == row["group"]]
        assert int(row["n"]) == len(chosen)
        close(row["value"], math.fsum(value for value, _ in chosen) / len(chosen))
        share_interval(row, chosen)
        checked += 1
    assert checked > 20
    for row in pick(table, "by_template"):
        assert row["variant"] == "negative"


def test_comparisons_and_their_corrected_p_values(table, raw):
    first, second = raw["ip2p", "negative"], raw["magicbrush", "negative"]
    rows = pick(table, "comparisons", statistic="difference")
    metrics = {"l1", "fid", "removal_vqa", "retention_vqa", "removal_ovd", "auc_removal"}
    assert {row["metric"] for row in rows} == metrics
    for row in rows:
        assert (row["first"], row["second"]) == ("ip2p/negative", "magicbrush/negative")
        if row["metric"] == "fid":
            assert float(row["value"]) == pytest.approx(fid(first) - fid(second), rel=1e-6)
            continue
        a, b = first.values[row["metric"]], second.values[row["metric"]]
        pairs = [(a[i] - b[i], first.source(i)) for i in a if i in b]
        mean, low, high = interval(pairs)
        close(row["value"], mean)
        if row["metric"] != "l1":
            difference_interval(row, pairs)
            continue
        close(row["low"], low)
        close(row["high"], high)
        g = len({c for _, c in pairs})
        t = mean / ((high - low) / 2 / scipy.stats.t.ppf(0.975, g - 1))
        close(row["p"], 2 * scipy.stats.t.sf(abs(t), g - 1))
    assert {(row["family"], row["p_holm"] == row["p"]) for row in rows} == {("1", True)}


def table_of(pairs):
    counts = np.zeros((2, 2))
    for x, y in pairs:
        counts[int(x), int(y)] += 1
    return counts


def cohen(counts):
    """(...) kappa of (..., 2, 2) counts."""
    n = counts.sum((-2, -1))
    agree = np.trace(counts, axis1=-2, axis2=-1) / n
    p, q = counts[..., 1, :].sum(-1) / n, counts[..., :, 1].sum(-1) / n
    chance = p * q + (1 - p) * (1 - q)
    return (agree - chance) / (1 - chance)


def krippendorff(counts):
    """Nominal alpha, (...) of (..., 2, 2) counts, from the coincidence matrix."""
    matrix = counts + np.swapaxes(counts, -2, -1)
    total, margin = matrix.sum((-2, -1)), matrix.sum(-1)
    apart = total - np.trace(matrix, axis1=-2, axis2=-1)
    return 1 - apart / ((total**2 - (margin**2).sum(-1)) / (total - 1))


@pytest.mark.parametrize(("statistic", "rule"), [("kappa", cohen), ("alpha", krippendorff)])
def test_the_intervals_of_agreement_are_those_with_every_source_image_left_out_once(
    table, raw, statistic, rule
):
    rows = pick(table, "agreement", statistic=statistic)
    assert len(rows) == 3
    for row in rows:
        run = raw[row["model"], row["variant"]]
        a, b = run.values["removal_vqa"], run.values["removal_ovd"]
        of = defaultdict(list)
        for name in a:
            if name in b:
                of[run.source(name)].append((a[name], b[name]))
        pictures = np.array([table_of(own) for own in of.values()])
        close(row["value"], float(rule(pictures.sum(0))))
        [same] = pick(table, "agreement", statistic="same", model=row["model"], variant=row["variant"])
        close(same["value"], float(np.trace(pictures.sum(0)) / pictures.sum()))
        assert int(row["clusters"]) == len(of)
        # Every picture left out once; Clopper and Pearson's interval of (value + 1) / 2.
        total, sizes = pictures.sum(0), pictures.sum((1, 2))
        g, margin = len(of), total.sum(0) + total.sum(1)
        error = (g - 1) / g * ((rule(total - pictures) - rule(total)) ** 2).sum() / 4
        p, q = total[1].sum() / total.sum(), total[:, 1].sum() / total.sum()
        pooled = 1 - ((margin**2).sum() - margin.sum()) / (margin.sum() ** 2 - margin.sum())
        n = total.sum() * min(1.0, 2 * (p + q - 2 * p * q if statistic == "kappa" else pooled))
        share, usual = (float(rule(total)) + 1) / 2, (sizes**2).sum() / sizes.sum()
        dissent = n * share * (1 - share)
        n *= (dissent + usual) / (n * error * n + usual * (1 + 0.6 * (usual - 1)))
        close(row["low"], 2 * scipy.stats.beta.ppf(0.025, share * n, n - share * n + 1) - 1)
        close(row["high"], 2 * scipy.stats.beta.ppf(0.975, share * n + 1, n - share * n) - 1)


def jackknifed(run):
    """(20,) FIDs without a twentieth of the source images each."""
    sources = [run.source(name) for name, edit in run.edits.items() if edit["image"] is not None]
    names = sorted(set(sources), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    group = {name: place % 20 for place, name in enumerate(names)}
    moved = []
    for left_out in range(20):
        kept = [place for place, name in enumerate(sources) if group[name] != left_out]
        a, b = run.edited[kept], run.target[kept]
        s_a, s_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
        root = np.sqrt(np.clip(np.linalg.eigvals(s_a @ s_b).real, 0, None)).sum()
        moved.append(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(s_a) + np.trace(s_b) - 2 * root)
    return np.array(moved)


def test_the_difference_of_two_fids_leaves_the_same_source_images_out_of_both(table, raw):
    first, second = (jackknifed(raw[name, "negative"]) for name in ("ip2p", "magicbrush"))
    [row] = pick(table, "comparisons", metric="fid", statistic="difference")
    moved = first - second
    value = fid(raw["ip2p", "negative"]) - fid(raw["magicbrush", "negative"])
    error = math.sqrt(19 / 20 * ((moved - moved.mean()) ** 2).sum())
    reach = scipy.stats.t.ppf(0.975, 19) * error
    assert float(row["low"]) == pytest.approx(value - reach, rel=1e-4)
    assert float(row["high"]) == pytest.approx(value + reach, rel=1e-4)
    assert float(row["p"]) == pytest.approx(2 * scipy.stats.t.sf(abs(value) / error, 19), rel=1e-3)


def test_protocols(table, raw):
    for row in pick(table, "protocols", statistic="fixed"):
        run = raw[row["model"], row["variant"]]
        if row["metric"] == "fid":
            continue
        values = run.values[row["metric"]]
        if row["value"]:
            close(row["value"], sum(values.values()) / len(values))
        if row["quirk"] == "denominator" and row["metric"] == "removal_ovd":
            failed = sum(edit["image"] is None for edit in run.edits.values())
            same = {key: row[key] for key in ("model", "variant", "metric", "quirk")}
            [paper], [flips] = (pick(table, "protocols", **same, statistic=s) for s in ("paper", "flips"))
            close(paper["value"], sum(values.values()) / (len(values) + failed))
            assert float(flips["value"]) == failed
