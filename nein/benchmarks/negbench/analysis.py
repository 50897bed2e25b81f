"""`nein negbench analyse`: measures how well text encoders separate affirmed and negated templates.

In OUT: table.md, figures.csv, report.html and measures.png with every measure of `MEASURES`; sentences.csv;
coordinates.csv, pca.png and pca-all.png, like figures 6 and 9 of the paper (Alhamoud et al., CVPR 2025)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nein import metrics, statistics
from nein.benchmarks.negbench import models
from nein.benchmarks.negbench.config import AnalyseConfig
from nein.engine import atomic, machine
from nein.engine.folder import Row as Json
from nein.loading.errors import UserError
from nein.metrics.dual import normalise
from nein.reporting import figures as frames
from nein.reporting import page as pages
from nein.reporting import plots, tables
from nein.reporting.figures import Figure
from nein.reporting.page import Page, Section
from nein.reporting.tables import Column, Row, Table
from nein.wording.families import a_or_an

# --- templates: {A}, {B}: objects with their article; {a}, {b}: without, after "no" -----------------
AFFIRMED, DENIED, TWO, HYBRID, NEITHER = "affirmed", "denied", "two", "hybrid", "neither"
GROUPS = (AFFIRMED, DENIED, TWO, HYBRID, NEITHER)
TITLES = dict(zip(GROUPS, ("A", "not A", "A and B", "A, not B", "neither A nor B"), strict=True))
PUBLISHED = 5  # the first templates of each group, which the paper prints (appendix)

#: (affirmed, denied) templates about one object: the second denies what the first says.
_ONE = (
    ("This image includes {A}", "This image does not include {A}"),
    ("{A} is present in this image", "{A} is not present in this image"),
    ("This image shows {A}", "This image lacks {A}"),
    ("{A} is depicted in this image", "{A} is not depicted in this image"),
    ("{A} appears in this image", "{A} does not appear in this image"),
    ("This image features {A}", "This image does not feature {A}"),
    ("This image contains {A}", "This image does not contain {A}"),
    ("There is {A} in this image", "There is no {a} in this image"),
    ("{A} can be seen in this image", "{A} cannot be seen in this image"),
    ("{A} is visible in this image", "{A} is not visible in this image"),
    ("This is an image with {A}", "This is an image without {A}"),
    ("This image has {A} in it", "This image does not have {A} in it"),
    ("You can see {A} in this image", "You cannot see {A} in this image"),
    ("This image depicts {A}", "This image does not depict {A}"),
    ("This image displays {A}", "This image does not display {A}"),
    ("This image presents {A}", "This image does not present {A}"),
    ("{A} is shown in this image", "{A} is not shown in this image"),
    ("{A} is part of this image", "{A} is not part of this image"),
    ("{A} is found in this image", "{A} is nowhere to be found in this image"),
    ("{A} occurs in this image", "{A} is missing from this image"),
    ("{A} is in the picture", "{A} is not in the picture"),
    ("The picture shows {A}", "The picture does not show {A}"),
    ("This photo contains {A}", "This photo contains no {a}"),
    ("The scene includes {A}", "The scene excludes {A}"),
)

#: Templates about two objects, between bars and line ends: both there, the first alone, neither.
_BOTH = """
This image includes {A} and {B} | {A} and {B} are present in this image
This image shows {A} and {B} | {A} and {B} are depicted in this image
{A} and {B} appear in this image | This image features {A} and {B} | This image contains {A} and {B}
There are {A} and {B} in this image | {A} and {B} can be seen in this image
{A} and {B} are visible in this image | This is an image with {A} and {B}
This image has {A} and {B} in it | You can see {A} and {B} in this image
This image depicts both {A} and {B} | This image displays {A} and {B}
This image presents {A} and {B} | {A} and {B} are shown in this image
{A} and {B} are part of this image | {A} and {B} are found in this image
Both {A} and {B} are in the picture | The picture shows {A} together with {B}
This photo contains both {A} and {B} | The scene includes {A} as well as {B}"""
_FIRST = """
This image includes {A} but not {B} | {A} is present in this image but not {B}
This image shows {A} but not {B} | This image features {A} but not {B}
{A} appears in this image but not {B} | This image contains {A} but not {B}
There is {A} but no {b} in this image | {A} can be seen in this image but {B} cannot
{A} is visible in this image but {B} is not | This is an image with {A} but without {B}
This image has {A} in it but not {B} | You can see {A} in this image but not {B}
This image depicts {A} but not {B} | This image displays {A} but not {B}
This image presents {A} and not {B} | {A} is shown in this image but {B} is not
{A} is part of this image but {B} is not | {A} is found in this image but not {B}
{A} occurs in this image while {B} does not | {A} is in the picture and {B} is not
The picture shows {A} but no {b} | This photo contains {A} without {B}
The scene includes {A} and excludes {B} | {A} is depicted in this image but {B} is missing"""
_NEITHER = """
This image includes neither {A} nor {B} | Neither {A} nor {B} are present in this image
This image shows neither {A} nor {B} | Neither {A} nor {B} are depicted in this image
Neither {A} nor {B} appear in this image | This image features neither {A} nor {B}
This image contains neither {A} nor {B} | There is neither {A} nor {B} in this image
Neither {A} nor {B} can be seen in this image | Neither {A} nor {B} is visible in this image
This is an image without {A} or {B} | This image does not have {A} or {B} in it
You can see neither {A} nor {B} in this image | This image depicts neither {A} nor {B}
This image displays neither {A} nor {B} | This image presents neither {A} nor {B}
Neither {A} nor {B} is shown in this image | Neither {A} nor {B} is part of this image
Neither {A} nor {B} is found in this image | Neither {A} nor {B} is in the picture
The picture shows neither {A} nor {B} | This photo contains no {a} and no {b}
The scene includes neither {A} nor {B} | This image lacks both {A} and {B}"""
TEMPLATES: dict[str, tuple[str, ...]] = {  # group -> its templates
    AFFIRMED: tuple(yes for yes, _ in _ONE),
    DENIED: tuple(no for _, no in _ONE),
    TWO: tuple(re.split(r" \| |\n", _BOTH.strip())),
    HYBRID: tuple(re.split(r" \| |\n", _FIRST.strip())),
    NEITHER: tuple(re.split(r" \| |\n", _NEITHER.strip())),
}

#: Pairs of objects that occur in COCO and in the miniature world.
PAIRS = [
    ("dog", "cat"), ("car", "bicycle"), ("cup", "chair"), ("boat", "airplane"),
    ("person", "umbrella"), ("apple", "banana"), ("laptop", "clock"), ("bird", "sheep"),
]  # fmt: skip


class Sentence(NamedTuple):
    text: str
    group: str  # of `GROUPS`
    template: int  # index in the group
    first: bool  # whether {A} is the pair's first object, else its second


def fill(template: str, a: str, b: str) -> str:
    """The sentence about objects a and b, without a full stop (as printed)."""
    text = template.format(A=a_or_an(a), B=a_or_an(b), a=a, b=b)
    return text[:1].upper() + text[1:]


def make_sentences(pair: tuple[str, str]) -> list[Sentence]:
    """Every template, about the pair's objects in both orders: 2 x 119 sentences."""
    one, other = pair
    sentences = []
    for group in GROUPS:
        for a, b in ((one, other), (other, one)):
            for index, template in enumerate(TEMPLATES[group]):
                sentences.append(Sentence(fill(template, a, b), group, index, first=a == one))
    return sentences


# --- measures ---------------------------------------------------------------------------------------
_ETA = 1 / 95  # the mean eta squared of a factor with 2 levels in 96 random points
#: Name -> (title, its value for an encoder without structure; None: it has none).
MEASURES: dict[str, tuple[str, float | None]] = {
    "object": ("variance between objects", _ETA),
    "negation": ("variance between polarities", _ETA),
    "object_held_out": ("object told apart", 0.5),
    "negation_held_out": ("polarity told apart", 0.5),
    "collapse_affirmed": ("mean cosine, affirmed", None),
    "collapse_denied": ("mean cosine, negated", None),
    "twin_negation": ("cosine to own negation", None),
    "twin_object": ("cosine to other object", None),
    "denied_object_held_out": ("object told apart, negated", 0.5),
    "hybrid_held_out": ("'X not Y' from 'Y not X'", 0.5),
    "neither_held_out": ("'X and Y' from 'neither'", 0.5),
}


def measure(features: np.ndarray) -> dict[str, float]:
    """Every measure of `MEASURES`. features: (N, D) of `make_sentences`, of any length."""
    ends = np.cumsum([2 * len(TEMPLATES[group]) for group in GROUPS])  # where each group's rows end
    parts = np.split(normalise(features), ends[:-1])
    # (2 orders of the objects, templates, D) unit rows each
    affirmed, denied, two, hybrid, neither = (x.reshape(2, -1, x.shape[1]) for x in parts)
    design = np.stack([affirmed, denied], axis=1)  # (object, polarity, template, D)
    by_polarity = design.swapaxes(0, 1)  # (polarity, object, template, D)
    neither = neither[:, : two.shape[1]]  # as many templates as "two"
    two_and_neither = np.stack([two.mean(0), neither.mean(0)])  # (2, templates, D)
    return {
        "object": _eta_squared(design, 0),
        "negation": _eta_squared(design, 1),
        "object_held_out": _leave_one_out(design),
        "negation_held_out": _leave_one_out(by_polarity),
        "collapse_affirmed": _mean_cosine(affirmed),
        "collapse_denied": _mean_cosine(denied),
        "twin_negation": float((affirmed * denied).sum(-1).mean()),
        "twin_object": float((affirmed[0] * affirmed[1]).sum(-1).mean()),
        "denied_object_held_out": _leave_one_out(denied[:, None]),
        "hybrid_held_out": _leave_one_out(hybrid[:, None]),
        "neither_held_out": _leave_one_out(two_and_neither[:, None]),
    }


def find_components(features: np.ndarray) -> np.ndarray:
    """(N, 2) principal components of unit features; the largest coordinate of each by size is positive."""
    x = normalise(features)  # (N, D)
    left_vectors, values, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    coordinates = left_vectors[:, :2] * values[:2]
    largest = coordinates[np.abs(coordinates).argmax(0), np.arange(2)]
    return coordinates * np.where(largest < 0, -1.0, 1.0)


def _eta_squared(design: np.ndarray, axis: int) -> float:
    """Eta squared of a factor: sum of squares between its levels over the total sum of squares."""
    dimensions = design.shape[-1]
    points = design.reshape(-1, dimensions)
    centre = points.mean(0)
    total = float(((points - centre) ** 2).sum())
    if total == 0:
        return 0.0
    levels = np.moveaxis(design, axis, 0).reshape(design.shape[axis], -1, dimensions)  # (level, points, D)
    return float(levels.shape[1] * ((levels.mean(1) - centre) ** 2).sum() / total)


def _leave_one_out(classes: np.ndarray) -> float:
    """Nearest-centroid accuracy, leaving out one template at a time; a tie counts one half.
    classes: (2 classes, variants, templates, D)."""
    _, variants, count, _ = classes.shape
    totals = classes.sum((1, 2))  # (2, D)
    right = 0.0
    for k in range(count):
        held_out = classes[:, :, k]  # (2, variants, D)
        centroids = (totals - held_out.sum(1)) / (variants * (count - 1))  # (2, D)
        differences = held_out[:, :, None] - centroids[None, None]  # (2, variants, 2 centroids, D)
        distances = (differences**2).sum(-1)  # (2, variants, 2 centroids)
        for truth in (0, 1):
            margin = distances[truth, :, 1 - truth] - distances[truth, :, truth]  # (variants,)
            right += float((margin > 1e-12).sum() + 0.5 * (np.abs(margin) <= 1e-12).sum())
    return right / (2 * variants * count)


def _mean_cosine(group: np.ndarray) -> float:
    """Mean cosine over all pairs of different sentences; group: (2, templates, D) unit rows."""
    points = group.reshape(-1, group.shape[-1])
    n, total = len(points), points.sum(0)
    return float((total @ total - (points**2).sum()) / (n * (n - 1)))


# --- table and plots --------------------------------------------------------------------------------
CHANCE = "without structure"  # in the column "model": rows of an encoder without structure
COLORS = dict(zip(GROUPS, (plots.BLUE, plots.RED, "#0891b2", plots.VIOLET, "#be123c"), strict=True))
_MEASURE_TITLES = {name: title for name, (title, _) in MEASURES.items()}


def _show_value(figures: Sequence[Figure]) -> str:
    """How the table shows an estimate: three digits; chance: two, and no interval."""
    if figures[0]["model"] == CHANCE:
        return tables.value(2)(figures)
    return tables.estimate("reach", 3)(figures)


MEASURED = Table(
    "measures",
    "What text encoders separate",
    (Row("metric", "", _MEASURE_TITLES),),
    (Column(by="model", show=_show_value),),
    {},  # all estimates
)
DOTS = plots.plot(
    "measures",
    "What each encoder separates, with 95 % intervals over pairs of objects; dashed: without structure",
    {"source": ""},
    plots.bars,
    place=("model",),
    series="benchmark",
    panel=("metric",),
    names=_MEASURE_TITLES,
    axis="share or cosine",
    limits=None,
    dots=True,
    rule={name: chance for name, (_, chance) in MEASURES.items() if chance is not None},
)
#: Key and title of a plot, and whose sentences it shows.
PLOTS = (
    ("pca", "Principal components: one object, affirmed and negated", (AFFIRMED, DENIED)),
    ("pca-all", "Principal components: all five groups of templates", GROUPS),
)


def scatter(figures: pd.DataFrame, *, points: pd.DataFrame) -> plots.Canvas:
    """Plots the components in `points`, a panel per model; color: group, marker: which object is first.
    `figures`, the argument of every plot, is not used."""
    canvas, panels = plots.panels([*points["model"].unique()], 2.8, shared=False)
    for panel, (_, model_rows) in zip(panels, points.groupby("model", sort=False), strict=True):
        for (first, rows), marker in zip(model_rows.groupby("first", sort=False), "o^", strict=True):
            for group, part in rows.groupby("group", sort=False):
                look: Any = {"s": 14, "marker": marker, "alpha": 0.75, "linewidths": 0}
                look |= {"color": COLORS[str(group)], "label": f"{TITLES[str(group)]}, {first}"}
                panel.scatter(part["x"], part["y"], **look)
        panel.set(xticks=[], yticks=[])
    return plots.add_labels(canvas, "component 1", "component 2")


# --- command ----------------------------------------------------------------------------------------
def run(options: AnalyseConfig) -> None:
    """The command. Raises UserError or MetricError."""
    pairs = options.pairs() or PAIRS
    encoders = _label_models(list(dict.fromkeys(options.model)))  # label -> reference
    out = atomic.make_folder(options.out)
    device = machine.Processes().device(options.device)
    # On a CPU a result does not depend on the number of cores.
    machine.set_threads(1 if device == "cpu" else options.threads or 0)

    # Every model's measures, and the components of the first pair's sentences.
    sets = [make_sentences(pair) for pair in pairs]
    texts = list(dict.fromkeys(sentence.text for sentences in sets for sentence in sentences))
    rows, coordinates = list[Json](), list[Json]()
    for label, reference in encoders.items():
        encoder = metrics.load_dual(reference, device=device, batch_size=32)
        encoded = dict(zip(texts, encoder.encode_text(texts), strict=True))  # text -> (D,)
        for text, feature in encoded.items():
            if not np.isfinite(feature).all():
                raise UserError(f"'{label}' cannot encode the sentence '{text}': its feature is not finite.")
        features = [np.stack([encoded[s.text] for s in sentences]) for sentences in sets]  # (N, D) per pair
        rows += _estimate_measures([measure(pair_features) for pair_features in features], pairs, label)
        for key, _, groups in PLOTS:
            indices = [index for index, s in enumerate(sets[0]) if s.group in groups]
            for index, (x, y) in zip(indices, find_components(features[0][indices]).tolist(), strict=True):
                sentence = sets[0][index]
                first_name = f"A = {pairs[0][0] if sentence.first else pairs[0][1]}"
                entries: Json = {"plot": key, "model": label, "group": sentence.group}
                entries |= {"template": sentence.template, "first": first_name, "sentence": sentence.text}
                coordinates.append({**entries, "x": x, "y": y})

    # coordinates.csv and sentences.csv.
    points = pd.DataFrame(coordinates).round(6)
    parts = []  # the sentences of each pair
    for pair, sentences in zip(pairs, sets, strict=True):
        parts.append(pd.DataFrame(sentences).assign(pair="/".join(pair)))
    listing = pd.concat(parts).reindex(columns=["pair", *Sentence._fields])
    listing["published"] = listing["template"] < PUBLISHED
    for name, table in (("coordinates", points), ("sentences", listing)):
        atomic.write_text(out / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))

    # figures.csv, tables, plots and page.
    for metric, (_, chance) in MEASURES.items():
        if chance is not None:
            rows.append({**frames.number(chance, unit="", model=CHANCE, metric=metric), "source": "chance"})
    figures = frames.frame(rows, benchmark="templates")
    note = (
        f"Means over {len(pairs)} pairs of objects ({', '.join(map('/'.join, pairs))}), ± and [ ]: "
        "95 % interval over pairs. A small share between polarities together with a high cosine to the own "
        f"negation means that negation hardly moves a sentence. {PUBLISHED} templates of each group are the "
        "paper's."
    )
    component_plots = [
        plots.plot(key, title, {"source": ""}, scatter, points=points[points["plot"] == key])
        for key, title, _ in PLOTS
    ]
    sections = [Section("measures", "Measures", [MEASURED], [DOTS, *component_plots])]
    page = Page("Templates: what text encoders separate", notes=[note], sections=sections)
    written = pages.write(out, figures, page, ("md", "csv", "plots", "html"))
    files = pages.list_files(out, written, 0)
    print(pages.format_headline(figures, [MEASURED], [note], files), end="")


def _label_models(names: Sequence[str]) -> dict[str, str]:
    """Label -> reference of each model; the label is short, or the name given if two would be equal."""
    short, references = list[str](), list[str]()
    for name in names:
        if name.startswith("sentence:"):
            short.append(Path(name).name.removeprefix("sentence:"))
            references.append(name)
        else:
            choice = models.choose(name)
            short.append(choice.name)
            references.append(choice.reference)
    labels = [name if short.count(label) > 1 else label for name, label in zip(names, short, strict=True)]
    return dict(zip(labels, references, strict=True))


def _estimate_measures(
    values: Sequence[dict[str, float]], pairs: Sequence[tuple[str, str]], model: str
) -> Iterator[Json]:
    """The mean of every measure over pairs of objects, with the t interval of a mean inside its range."""
    clusters = ["/".join(sorted(pair)) for pair in pairs]
    for metric in MEASURES:
        estimate = statistics.mean([value[metric] for value in values], clusters)
        if estimate is not None and estimate.low is not None and estimate.high is not None:
            least = -1.0 if metric.startswith(("collapse", "twin")) else 0.0  # of cosines, and of shares
            estimate = replace(estimate, low=max(least, estimate.low), high=min(1.0, estimate.high))
        yield frames.figure(estimate, unit="", model=model, metric=metric)
