"""What a sweep over alpha ends in: recall against accuracy, as a table, a CSV file and a plot.

    OUT/evaluation/          runs of nein negbench eval: the base and every alpha
    OUT/tradeoff.md, .csv, .png

The paper has such a table: more weight on the contrastive loss keeps retrieval, more on the questions raises
multiple choice.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nein import statistics
from nein.benchmarks.negbench import folder as files
from nein.benchmarks.negbench import report, run
from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.results import TEXT_TO_IMAGE
from nein.datasets.negbench.records import NEGATED, ORIGINAL, TEMPLATES
from nein.datasets.negbench.registry import MCQ, RETRIEVAL, TEMPLATED
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import Folder
from nein.engine.world import World
from nein.statistics.estimates import Estimate
from train.contrast.options import ContrastConfig, spelled

BASE = "base"


@dataclass(frozen=True)
class Row:
    """One model of the table: `alpha` None for the base."""

    label: str
    alpha: float | None
    summary: Mapping[str, Any]
    folder: Folder

    def figure(self, **about: Any) -> Mapping[str, Any] | None:
        return report.pick(self.summary, variant=TEMPLATED, **about)

    def recall(self, kind: str, k: int) -> Mapping[str, Any] | None:
        return self.figure(task=RETRIEVAL, direction=TEXT_TO_IMAGE, metric=f"recall@{k}", kind=kind)

    def gap(self, k: int) -> Mapping[str, Any] | None:
        return self.figure(task=RETRIEVAL, direction=TEXT_TO_IMAGE, metric=f"gap@{k}")

    def accuracy(self, type_: str = "all") -> Mapping[str, Any] | None:
        return self.figure(task=MCQ, metric="accuracy", type=type_)


def trade_off(
    config: ContrastConfig, folders: Sequence[Path], *, scenes: int | None = None, world: World | None = None
) -> str:
    """Evaluates the base and the models of a sweep, and writes table and plot; the table as text.

    folders  Of the models, in the order of `config.alphas`.
    """
    return write(evaluate(config, folders, scenes=scenes, world=world), config.out_dir)


def write(rows: Sequence[Row], out: Path) -> str:
    """Writes tradeoff.md, .csv and .png (one per data set where there are several); the table as text."""
    atomic.write_text(out / "tradeoff.md", table(rows))
    atomic.write_text(out / "tradeoff.csv", to_csv(rows))
    for name in dict.fromkeys(row.summary["dataset"] for row in rows):
        own = [row for row in rows if row.summary["dataset"] == name]
        end = "" if len(own) == len(rows) else f"-{name}"
        atomic.write_bytes(out / f"tradeoff{end}.png", plot(own).encode("png"))
    return table(rows)


def evaluate(
    config: ContrastConfig, folders: Sequence[Path], *, scenes: int | None = None, world: World | None = None
) -> list[Row]:
    """Runs nein negbench eval on the base and every model, on `--evaluate`."""
    names: dict[str, tuple[str, float | None]] = {config.base: (BASE, None)}
    for alpha, folder in zip(config.alphas, folders, strict=True):
        names[str(folder)] = (f"alpha {spelled(alpha)}", alpha)
    out = config.out_dir / "evaluation"
    settings = EvalConfig(
        preset=config.preset,
        model=list(names),
        data=config.evaluate or "nano",
        image_root=[config.image_root] if config.image_root else [],
        scenes=scenes,
        out=str(out),
        overwrite=config.overwrite,
        device="cpu" if config.device == "cpu" else "auto",
        batch_size=64,
    )
    run.NEGBENCH(settings, world or World())
    rows = []
    for found in files.find(out):
        label, weight = names.get(found.manifest()["identity"]["model"], ("", None))
        if label and files.summary(found).is_file():
            # All models of a sweep are folders called "model": its tables name them by alpha.
            summary = {**atomic.read_json(files.summary(found)), "model": label}
            atomic.write_json(files.summary(found), summary)
            rows.append(Row(label, weight, summary, found))
    report.report(out)
    order = list(names.values())
    return sorted(rows, key=lambda row: order.index((row.label, row.alpha)))


def table(rows: Sequence[Row]) -> str:
    """Markdown: a line per model."""
    import tabulate

    nano = all(row.summary["dataset"] == "nano" for row in rows)
    where = report.NANO_LABEL if nano else "measured here"
    heads = [
        "model", "data", "R@1 ↑", "R-Neg@1 ↑", "negation gap@1 ↓", "R@5 ↑", "R-Neg@5 ↑", "MCQ accuracy ↑",
        *TEMPLATES, "n", "unscored",
    ]  # fmt: skip
    lines = []
    for row in rows:
        own = [
            row.recall(ORIGINAL, 1), row.recall(NEGATED, 1), row.gap(1), row.recall(ORIGINAL, 5),
            row.recall(NEGATED, 5), *(row.accuracy(t) for t in ("all", *TEMPLATES)),
        ]  # fmt: skip
        counts = [
            [str(f[key]) for f in (row.recall(ORIGINAL, 1), row.accuracy()) if f]
            for key in ("n", "n_unscored")
        ]
        lines.append(
            [row.label, row.summary["dataset"], *map(report.percent, own), *(" + ".join(c) for c in counts)]
        )
    text = tabulate.tabulate(lines, heads, tablefmt="pipe", disable_numparse=True)
    return (
        f"### Trade-off over alpha, {where}\n\n{text}\n\n"
        "Percentages. ± and [ ]: 95 % interval, clustered by picture. n and unscored: captions + questions. "
        "Negation gap: recall with the original captions minus recall with the negated ones, paired.\n"
    )


def to_csv(rows: Sequence[Row]) -> str:
    """Alpha and every figure of the table, not scaled."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["dataset", "alpha", "metric", "value", "low", "high", "n", "n_unscored"])
    for row in rows:
        named = {
            **{f"recall@{k}/{kind}": row.recall(kind, k) for k in (1, 5) for kind in (ORIGINAL, NEGATED)},
            **{f"gap@{k}": row.gap(k) for k in (1, 5)},
            **{f"accuracy/{t}": row.accuracy(t) for t in ("all", *TEMPLATES)},
        }
        for name, figure in named.items():
            if figure is not None:
                alpha = BASE if row.alpha is None else spelled(row.alpha)
                cells = [figure.get(key) for key in ("value", "low", "high", "n", "n_unscored")]
                first = [row.summary["dataset"], alpha, name]
                writer.writerow([*first, *("" if cell is None else cell for cell in cells)])
    return buffer.getvalue()


def plot(rows: Sequence[Row]) -> Any:
    """Recall with both kinds of captions, and accuracy, over alpha; the base as dashed lines."""
    import matplotlib
    from matplotlib.figure import Figure

    from nein.benchmarks.nein.reporting.plots import _STYLE, Plot

    tuned = sorted((row for row in rows if row.alpha is not None), key=lambda row: row.alpha or 0.0)
    base = next((row for row in rows if row.alpha is None), None)
    series = {
        "R@1, original captions": (lambda row: row.recall(ORIGINAL, 1), "#1d4ed8", "o"),
        "R@1, negated captions": (lambda row: row.recall(NEGATED, 1), "#c2410c", "s"),
        "multiple-choice accuracy": (lambda row: row.accuracy(), "#7c3aed", "^"),
    }
    with matplotlib.rc_context(_STYLE):
        canvas = Figure(figsize=(6.4, 4.2), layout="constrained")
        panel = canvas.subplots()
        places = range(len(tuned))
        for name, (read, color, marker) in series.items():
            if not any(read(row) for row in rows):
                continue
            found = [read(row) or {} for row in tuned]
            values = [_percent(f, "value") for f in found]
            low = [max(0.0, v - _percent(f, "low")) for v, f in zip(values, found, strict=True)]
            high = [max(0.0, _percent(f, "high") - v) for v, f in zip(values, found, strict=True)]
            panel.errorbar(places, values, [low, high], color=color, marker=marker, capsize=3, label=name)
            if base is not None and (before := read(base)) is not None:
                panel.axhline(_percent(before, "value"), color=color, linestyle="--", linewidth=1)
        panel.set_xticks(places, [spelled(row.alpha or 0.0) for row in tuned])
        panel.set_xlabel("alpha: weight of the contrastive loss")
        panel.set_ylabel("per cent (dashed: before fine-tuning)")
        panel.set_ylim(0, 100)
        panel.grid(axis="y", color="#e5e7eb")
        canvas.legend(frameon=False, fontsize=9, ncols=3, loc="outside upper center")
    return Plot("tradeoff", "Recall and accuracy over alpha", canvas)


def credits_of(row: Row) -> tuple[dict[str, float | None], dict[str, Any]]:
    """(credit by question, picture by question) of a model's multiple choice."""
    lines = atomic.read_lines(files.samples(row.folder, f"{MCQ}.{TEMPLATED}"))
    return {line["id"]: line["credit"] for line in lines}, {line["id"]: line["source"] for line in lines}


def caption_gaps(row: Row) -> tuple[dict[str, float | None], dict[str, Any]]:
    """(recall@1 with the original minus with the negated caption, picture) by caption, text to image."""
    lines = atomic.read_lines(files.samples(row.folder, f"{RETRIEVAL}.{TEMPLATED}"))
    own = [line for line in lines if line["direction"] == TEXT_TO_IMAGE]
    found = {kind: {x["id"]: x["recall@1"] for x in own if x["kind"] == kind} for kind in (ORIGINAL, NEGATED)}
    gaps: dict[str, float | None] = {}
    for key, value in found[ORIGINAL].items():
        other = found[NEGATED].get(key)
        gaps[key] = None if value is None or other is None else float(value) - float(other)
    return gaps, {line["id"]: line["source"] for line in own}


def change(before: Row, after: Row, what: str) -> Estimate:
    """What fine-tuning changed, paired: "accuracy" (after minus before) or "gap" (before minus after)."""
    read = credits_of if what == "accuracy" else caption_gaps
    first, clusters = read(before)
    second, _ = read(after)
    pair = (second, first) if what == "accuracy" else (first, second)
    found = statistics.paired_difference(*pair, clusters)
    if found is None:
        raise UserError("The two models share no scored sample; evaluate them on the same data.")
    return found


def _percent(figure: Mapping[str, Any], key: str) -> float:
    value = figure.get(key)
    return float("nan") if value is None else 100 * float(value)
