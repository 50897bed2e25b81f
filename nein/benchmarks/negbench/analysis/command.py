"""`nein negbench analyse`: how text encoders place affirmed and negated templates.

OUT/table.md, figures.csv     every measure of `analysis.measures`, with intervals over the pairs of objects
OUT/sentences.csv             every sentence, its group, and whether the paper prints its template
OUT/coordinates.csv           the principal components that the plots show
OUT/pca.png, pca_all.png      like figures 6 and 9 of the paper; measures.png, report.html
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nein import metrics, statistics
from nein.benchmarks.negbench import models
from nein.benchmarks.negbench.analysis.templates import (
    AFFIRMED,
    DENIED,
    GROUPS,
    HYBRID,
    MEASURES,
    NEITHER,
    PAIRS,
    PUBLISHED,
    TITLES,
    TWO,
    Sentence,
    components,
    measure,
    sentences,
)
from nein.benchmarks.negbench.config import AnalyseConfig
from nein.benchmarks.negbench.encode import Encoded, of_sentences
from nein.benchmarks.negbench.models import Choice
from nein.engine import atomic, environment
from nein.engine.errors import UserError
from nein.engine.executors.threads import Threads
from nein.engine.features import scope_of
from nein.engine.folder import Folder
from nein.engine.stages import Model, Step
from nein.models import references
from nein.reporting import figures as frames
from nein.reporting import plots, report, tables
from nein.reporting.figures import Figure
from nein.reporting.report import Section
from nein.reporting.tables import Across, Row, Table

BATCH = 32  # sentences encoded at once


def run(options: AnalyseConfig) -> None:
    """Encodes the templates with every model, writes numbers and pictures, and prints the table. Raises
    UserError or MetricError."""
    given = [(a.strip(), b.strip()) for a, _, b in (item.partition("/") for item in options.objects)]
    pairs, out = given or list(PAIRS), options.out
    chosen = {name: None if name.startswith("sentence:") else models.choose(name) for name in options.model}
    short = {
        name: choice.name if choice else Path(name).name.removeprefix("sentence:")
        for name, choice in chosen.items()
    }
    shared = {label for label, count in Counter(short.values()).items() if count > 1}
    labels = {name: name if label in shared else label for name, label in short.items()}
    atomic.check_writable(out)
    environment.keep_freed_memory()
    threads = Threads(options.device)
    sets = [sentences(pair, options.article) for pair in pairs]
    texts = [s.text for group in sets for s in group]
    clusters = ["/".join(sorted(pair)) for pair in pairs]
    rows: list[dict[str, Any]] = []
    coordinates = []
    for name, choice in chosen.items():
        encoded = _encoded(name, choice, texts, out / "features" / references.slug(name), threads)
        features = [encoded.features[[encoded.rows[s.text] for s in group]] for group in sets]
        values = [measure(part, group) for part, group in zip(features, sets, strict=True)]
        for metric in MEASURES:
            cosine = metric.startswith(("collapse", "twin"))  # others are shares
            estimator = statistics.mean if cosine else statistics.bounded_mean
            estimate = estimator([value[metric] for value in values], clusters)
            rows.append(frames.figure(estimate, unit="", model=labels[name], metric=metric))
        coordinates += [_points(key, labels[name], features[0], sets[0], pairs[0], groups)
                        for key, _, groups in PLOTS]  # fmt: skip
    for metric, (_, chance) in MEASURES.items():
        if chance is not None:
            row = frames.number(chance, unit="", model=CHANCE, metric=metric)
            rows.append({**row, "source": "chance"})
    figures = frames.label(frames.frame(rows), benchmark="templates")
    named = ", ".join("/".join(pair) for pair in pairs)
    note = (
        f"Means over {len(pairs)} pairs of objects ({named}), ± and [ ]: 95 % interval over pairs. A small "
        f"share between polarities together with a high cosine to the own negation means that negation "
        f"hardly moves a sentence. {PUBLISHED} templates of each group are the paper's."
    )
    report.write(out, figures, title="Templates: what text encoders separate", notes=[note],
                 sections=SECTIONS, formats=("md", "csv", "plots", "html"))  # fmt: skip
    drawn = pd.concat(coordinates, ignore_index=True)
    for key, title, _ in PLOTS:
        # a panel per model; colour is the group, the marker which object stands first
        scatter = plots.Scatter(key, title, "model", "group", "first", {"plot": key}, COLORS, TITLES)
        drawing = plots.draw(scatter, drawn)
        assert drawing is not None
        atomic.write_bytes(out / f"{key}.png", drawing.png)
    atomic.write_text(out / "coordinates.csv", drawn.round(6).to_csv(index=False, lineterminator="\n"))
    written = [
        {"pair": "/".join(pair), **s._asdict(), "published": s.published}
        for pair, group in zip(pairs, sets, strict=True)
        for s in group
    ]
    atomic.write_text(out / "sentences.csv", pd.DataFrame(written).to_csv(index=False, lineterminator="\n"))
    print((out / "table.md").read_text(encoding="utf-8"), end="")
    print(f"Results: {out}", file=sys.stderr)


def _points(
    key: str,
    model: str,
    features: np.ndarray,
    sentences: Sequence[Sentence],
    pair: tuple[str, str],
    groups: Sequence[str],
) -> pd.DataFrame:
    """The first two components, `x` and `y`, of the sentences of `groups`, with what each of them is."""
    shown = [place for place, s in enumerate(sentences) if s.group in groups]
    points, _ = components(features[shown])
    named = {True: f"A = {pair[0]}", False: f"A = {pair[1]}"}
    return pd.DataFrame(
        {"plot": key, "model": model, "group": s.group, "template": s.template, "first": named[s.first],
         "sentence": s.text, "x": x, "y": y}
        for s, (x, y) in zip((sentences[place] for place in shown), points.tolist(), strict=True)
    )  # fmt: skip


def _encoded(name: str, choice: Choice | None, texts: Sequence[str], path: Path, threads: Threads) -> Encoded:
    """Features of all `texts`, from an earlier command or from the model, which is given free again."""
    reference, revision = (name, None) if choice is None else (choice.reference, choice.revision)
    identity = {
        "model": name, "weights": models.weights(reference.removeprefix("sentence:")),
        "device": threads.device, "batch_size": BATCH, "sentences": scope_of(texts),
    }  # fmt: skip
    folder = Folder(path)
    folder.open(identity, {}, overwrite=True)
    encoding = of_sentences(folder, "sentences", texts, set(texts), batch_size=BATCH, cache=path / "cache")

    def load() -> Any:
        return metrics.load_dual(reference, revision=revision, device=threads.device, batch_size=BATCH)

    model = Model.one(name, load)
    threads.compute(lambda device: [Step(folder, encoding.stage(model), name)])
    threads.loaded.keep(())
    encoded = encoding.read(set(texts))
    if encoded.reasons:
        text, reason = next(iter(encoded.reasons.items()))
        raise UserError(f"'{name}' cannot encode some of the sentences ({text!r}: {reason}).")
    return encoded


#: What stands for a model in the column of values that an encoder without structure gives.
CHANCE = "without structure"
COLORS = {
    AFFIRMED: plots.BLUE, DENIED: plots.RED, TWO: "#0891b2", HYBRID: plots.VIOLET, NEITHER: "#be123c",
}  # fmt: skip
_TITLES = {name: title for name, (title, _) in MEASURES.items()}


def _shown(figures: Sequence[Figure]) -> str:
    if figures[0]["model"] == CHANCE:
        return tables.value(2)(figures)
    return tables.estimate("reach", 3)(figures)


MEASURED = Table(
    "measures", "What text encoders separate", (Row("metric", "", _TITLES),), (Across("model", {}, _shown),)
)
DOTS = plots.Bars(
    "measures",
    "What each encoder separates, with 95 % intervals over pairs of objects; dashed: without structure",
    place=("model",),
    series="benchmark",
    panel=("metric",),
    where={"source": ""},
    names=_TITLES,
    axis="share or cosine",
    limits=None,
    rule={name: chance for name, (_, chance) in MEASURES.items() if chance is not None},
    dots=True,
)
SECTIONS = (Section("measures", "Measures", (MEASURED,), (DOTS,)),)


#: Key and title of a plot, and whose sentences it shows.
PLOTS = (
    ("pca", "One object, affirmed and negated", (AFFIRMED, DENIED)),
    ("pca_all", "All five groups of templates", GROUPS),
)
