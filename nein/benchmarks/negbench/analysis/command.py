"""`nein negbench analyse`: how text encoders place affirmed and negated templates.

    nein negbench analyse --model nano:clip,random --out runs/templates
    nein negbench analyse --model clip,negclip=negclip,sentence:sentence-transformers/all-MiniLM-L6-v2

OUT/table.md, measures.csv    every measure of `analysis.measures`, with intervals over the pairs of objects
OUT/sentences.csv             every sentence, its group, and whether the paper prints its template
OUT/coordinates.csv           the principal components that the plots show
OUT/pca.png, pca_all.png      like figures 6 and 9 of the paper; measures.png
"""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tabulate

from nein.benchmarks.negbench.analysis.templates import (
    AFFIRMED,
    DENIED,
    GROUPS,
    PAIRS,
    PUBLISHED,
    sentences,
)
from nein.benchmarks.negbench.config import AnalyseConfig
from nein.engine.errors import UserError

if TYPE_CHECKING:
    from nein.benchmarks.negbench.encode import Encoded
    from nein.benchmarks.negbench.models import Choice
    from nein.engine.executors import Threads


def run(options: AnalyseConfig) -> None:
    """The command. Raises UserError or MetricError."""
    pairs = [(a.strip(), b.strip()) for a, _, b in (item.partition("/") for item in options.objects)]
    where = {"article": options.article, "device": options.device}
    print(analyse(options.model, pairs or list(PAIRS), options.out, **where), end="")
    print(f"Results: {options.out}", file=sys.stderr)


def analyse(
    names: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    out: Path,
    *,
    article: str = "a_an",
    device: str = "auto",
    batch_size: int = 32,
) -> str:
    """Encodes the templates with every model and writes numbers and pictures into `out`; returns the table.

    names  As `--model` of `nein negbench eval`, or "sentence:FOLDER_OR_ID".
    """
    import numpy as np

    from nein import statistics
    from nein.benchmarks.negbench import models
    from nein.benchmarks.negbench.analysis import plots
    from nein.benchmarks.negbench.analysis.measures import MEASURES, components, measure
    from nein.engine import atomic, environment
    from nein.engine.executors import Threads
    from nein.engine.world import World
    from nein.models import references

    chosen = {name: None if name.startswith("sentence:") else models.choose(name) for name in names}
    labels = _labels({name: choice.name if choice else _end(name) for name, choice in chosen.items()})
    atomic.check_writable(out)
    environment.keep_freed_memory()
    threads = Threads(World(), World().device(device))
    sets = [sentences(pair, article) for pair in pairs]
    texts = [s.text for own in sets for s in own]
    found: dict[str, dict[str, Any]] = {}
    shown: dict[str, Any] = {}
    for name, choice in chosen.items():
        encoded = _encoded(name, choice, texts, out / "features" / references.slug(name), threads, batch_size)
        rows = [encoded.features[[encoded.rows[s.text] for s in own]] for own in sets]
        values = [measure(part, own) for part, own in zip(rows, sets, strict=True)]
        clusters = ["/".join(sorted(pair)) for pair in pairs]
        found[labels[name]] = {
            key: _entry(key, statistics.mean([value[key] for value in values], clusters)) for key in MEASURES
        }
        shown[labels[name]] = rows[0]
    text = _markdown(found, pairs)
    atomic.write_text(out / "table.md", text)
    atomic.write_text(out / "measures.csv", _measures_csv(found))
    atomic.write_text(out / "sentences.csv", _sentences_csv(pairs, sets))
    coordinates = []
    for key, title, groups in (
        ("pca", "One object, affirmed and negated", (AFFIRMED, DENIED)),
        ("pca_all", "All five groups of templates", GROUPS),
    ):
        kept = [i for i, s in enumerate(sets[0]) if s.group in groups]
        for label, features in shown.items():
            points, _ = components(np.asarray(features)[kept])
            for i, (x, y) in zip(kept, points.tolist(), strict=True):
                s = sets[0][i]
                coordinates.append([key, label, s.group, s.template, s.text, f"{x:.6f}", f"{y:.6f}"])
        plot = plots.scatter(key, title, shown, sets[0], pairs[0], groups)
        atomic.write_bytes(out / f"{key}.png", plot.encode("png"))
    heads = ["plot", "model", "group", "template", "sentence", "component_1", "component_2"]
    atomic.write_text(out / "coordinates.csv", _csv(heads, coordinates))
    atomic.write_bytes(out / "measures.png", plots.measures(found).encode("png"))
    return text


def _encoded(
    name: str, choice: Choice | None, texts: Sequence[str], path: Path, threads: Threads, batch_size: int
) -> Encoded:
    """Features of all `texts`, from what an earlier command left in `path` or from the model, which is given
    free again. Raises UserError where there is none of a sentence."""
    import metrics
    from nein.benchmarks.negbench import models
    from nein.benchmarks.negbench.encode import of_sentences
    from nein.engine.executors import Model
    from nein.engine.features import scope_of
    from nein.engine.folder import Folder

    reference, revision = (name, None) if choice is None else (choice.reference, choice.revision)
    identity = {
        "model": name, "weights": models.weights(reference.removeprefix("sentence:")),
        "device": threads.device, "batch_size": batch_size, "sentences": scope_of(texts),
    }  # fmt: skip
    folder = Folder(path)
    folder.open(identity, {}, overwrite=True)
    encoding = of_sentences(
        folder, "sentences", texts, set(texts), batch_size=batch_size, cache=path / "cache"
    )

    def load() -> Any:
        return metrics.load_text_encoder(
            reference, revision=revision, device=threads.device, batch_size=batch_size
        )

    model = Model(name, load, lambda loaded: {"model": (loaded.fingerprint, loaded.describe())})
    threads.compute(folder, encoding.stage(model), label=name)
    threads.loaded.clear()
    encoded = encoding.read(set(texts))
    if encoded.reasons:
        text, reason = next(iter(encoded.reasons.items()))
        raise UserError(f"'{name}' cannot encode some of the sentences ({text!r}: {reason}).")
    return encoded


def _end(reference: str) -> str:
    return reference.removeprefix("sentence:").rstrip("/").rpartition("/")[2]


def _labels(names: Mapping[str, str]) -> dict[str, str]:
    """Reference -> label; where several references have the same, each is shown as it was given."""
    shared = [label for label, count in Counter(names.values()).items() if count > 1]
    return {name: name if label in shared else label for name, label in names.items()}


def _entry(measure: str, found: Any) -> dict[str, Any]:
    from nein import statistics

    floor = -1.0 if measure.startswith(("collapse", "twin")) else 0.0  # cosines, or shares
    found = statistics.bounded(found, floor, 1.0)
    return {"value": found.value, "low": found.low, "high": found.high, "pairs": found.n}


def _markdown(found: Mapping[str, Mapping[str, Any]], pairs: Sequence[tuple[str, str]]) -> str:
    from nein.benchmarks.negbench.analysis.measures import MEASURES

    rows = []
    for name, (title, chance) in MEASURES.items():
        cells = [_figure(entries[name]) for entries in found.values()]
        rows.append([title, *cells, "" if chance is None else f"{chance:.2f}"])
    table = tabulate.tabulate(rows, ["", *found, "without structure"], tablefmt="pipe", disable_numparse=True)
    named = ", ".join("/".join(pair) for pair in pairs)
    return (
        f"## Templates: what text encoders separate\n\n{table}\n\n"
        f"Means over {len(pairs)} pairs of objects ({named}), ± and [ ]: 95 % interval over pairs. A small "
        "share between polarities together with a high cosine to the own negation means that negation hardly "
        f"moves a sentence. {PUBLISHED} templates of each group are the paper's.\n"
    )


def _figure(entry: Mapping[str, Any]) -> str:
    value = f"{round(entry['value'], 3) + 0.0:.3f}"  # no "-0.000"
    if entry["low"] is None:
        return value
    if abs(entry["low"] + entry["high"] - 2 * entry["value"]) > 0.001:  # cut off at the end of the range
        return f"{value} [{entry['low']:.3f}, {entry['high']:.3f}]"
    return f"{value} ± {(entry['high'] - entry['low']) / 2:.3f}"


def _measures_csv(found: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        [model, name, *("" if entry[k] is None else entry[k] for k in ("value", "low", "high", "pairs"))]
        for model, entries in found.items()
        for name, entry in entries.items()
    ]
    return _csv(["model", "measure", "value", "low", "high", "pairs"], rows)


def _sentences_csv(pairs: Sequence[tuple[str, str]], sets: Sequence[Sequence[Any]]) -> str:
    rows = [
        ["/".join(pair), s.group, s.template, s.first, s.published, s.text]
        for pair, own in zip(pairs, sets, strict=True)
        for s in own
    ]
    return _csv(["pair", "group", "template", "first", "published", "sentence"], rows)


def _csv(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(rows)
    return buffer.getvalue()
