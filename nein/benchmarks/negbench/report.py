"""Tables and plots from the summaries of finished runs: OUT/table.md, figures.csv, and pictures. No torch."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tabulate

from nein.benchmarks.negbench import folder, paper_numbers
from nein.benchmarks.negbench.results import IMAGE_TO_TEXT, TEXT_TO_IMAGE
from nein.benchmarks.negbench.retrieval import KS
from nein.datasets.negbench.records import NEGATED, ORIGINAL, TEMPLATES
from nein.datasets.negbench.registry import BINARY, MCQ, NANO, RETRIEVAL
from nein.engine import atomic
from nein.engine.errors import UserError

NANO_LABEL = "nano (miniature models on drawn scenes; not comparable with the paper)"
DIRECTIONS = {TEXT_TO_IMAGE: "Text to image", IMAGE_TO_TEXT: "Image to text"}
COLUMNS = (
    "model", "dataset", "task", "variant", "metric", "kind", "direction", "type", "template", "value", "low",
    "high", "standard_error", "n", "clusters", "n_unscored",
)  # fmt: skip
SOURCES = {"paper_table1": "paper", "repo_corrected": "repository", "repo_corrected_type": "repository"}
Figure = Mapping[str, Any]


def report(out: Path) -> str:
    """Writes table.md, figures.csv and the plots of every finished run below `out`; returns the text.

    Raises UserError when there is none.
    """
    summaries = read(out)
    from nein.benchmarks.negbench import plots

    text = markdown(summaries)
    atomic.write_text(out / "table.md", text)
    atomic.write_text(out / "figures.csv", to_csv(summaries))
    for plot in plots.all_plots(summaries):
        atomic.write_bytes(out / f"{plot.key}.png", plot.encode("png"))
    return text


def read(out: Path) -> list[dict[str, Any]]:
    """The summaries of the finished runs below `out`, in order of model and data set."""
    runs = [run for run in folder.find(out) if folder.summary(run).is_file()]
    found = [atomic.read_json(folder.summary(run)) for run in runs]
    if not found:
        raise UserError(f"Nothing to report in '{out}': no run there is finished.")
    # Models of one name, from two folders say, are told apart by the names of their run directories.
    folders: dict[str, set[str]] = {}
    for run, summary in zip(runs, found, strict=True):
        folders.setdefault(summary["model"], set()).add(run.path.parent.name)
    return [
        {**summary, "model": run.path.parent.name if len(folders[summary["model"]]) > 1 else summary["model"]}
        for run, summary in zip(runs, found, strict=True)
    ]


def select(summary: Mapping[str, Any], **about: Any) -> list[Figure]:
    """The figures of a summary whose fields have the given values."""
    return [f for f in summary["figures"] if all(f.get(key) == value for key, value in about.items())]


def pick(summary: Mapping[str, Any], **about: Any) -> Figure | None:
    """The one such figure, or None."""
    found = select(summary, **about)
    return found[0] if found else None


def markdown(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Tables for people, with the paper's figures below ours in the paper preset."""
    nano = {summary["dataset"] for summary in summaries} == {NANO}
    parts = [f"## NegBench, {NANO_LABEL if nano else 'measured here'}"]
    for direction, title in DIRECTIONS.items():
        rows = [row for s in summaries for row in _retrieval(s, direction)]
        heads = ["model", "data", "captions"]
        for k in KS:
            heads += [f"R@{k} ↑", f"R-Neg@{k} ↑", f"negation gap@{k} ↓"]
        parts += _table(f"{title} retrieval", [*heads, "n", "unscored"], rows)
    heads = ["model", "data", "captions", "accuracy ↑", *TEMPLATES, "chance", "n", "unscored"]
    parts += _table("Multiple choice", heads, [row for s in summaries for row in _choices(s)])
    heads = ["model", "data", "captions", *(f"{t} (offered)" for t in TEMPLATES), "n", "unscored"]
    parts += _table("What is chosen", heads, [row for s in summaries for row in _selected(s)])
    heads = ["model", "data", "captions", "questions", *TEMPLATES, "wrong answers"]
    parts += _table("Wrong answers, by what was chosen", heads, [row for s in summaries for row in _wrong(s)])
    parts.append(
        "Percentages. ± and [ ]: 95 % interval, clustered by picture. ↑ higher is better, ↓ lower is better. "
        "Negation gap: recall with the original captions minus recall with the negated ones, paired."
    )
    if gaps := [sentence for s in summaries for sentence in _gaps(s)]:
        parts.append("\n".join(f"- {sentence}" for sentence in gaps))
    if notes := _notes(summaries):
        parts.append("\n".join(f"Note: {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def to_csv(summaries: Sequence[Mapping[str, Any]]) -> str:
    """One line per figure; values are not scaled."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, extrasaction="ignore", restval="", lineterminator="\n")
    writer.writeheader()
    for summary in summaries:
        for figure in summary["figures"]:
            row = {"model": summary["model"], "dataset": summary["dataset"], **figure}
            writer.writerow({key: "" if value is None else value for key, value in row.items()})
    return buffer.getvalue()


def percent(figure: Figure | None, *, signed: bool = False) -> str:
    """ "43.8 [41.2, 46.4]", "43.8" without an interval, "–" without a value."""
    if figure is None or figure["value"] is None:
        return "–"
    value = f"{100 * figure['value']:.1f}"
    if figure.get("low") is None:
        return value
    low, high = 100 * figure["low"], 100 * figure["high"]
    reach = (high - low) / 2
    centred = abs(100 * figure["value"] - (low + high) / 2) < 0.05
    return f"{value} ± {reach:.1f}" if centred else f"{value} [{low:.1f}, {high:.1f}]"


def _retrieval(summary: Mapping[str, Any], direction: str) -> list[list[str]]:
    rows = []
    for variant in _variants(summary, RETRIEVAL):
        about = {"task": RETRIEVAL, "variant": variant, "direction": direction}
        own: list[Figure | None] = []
        for k in KS:
            own += [pick(summary, **about, metric=f"recall@{k}", kind=kind) for kind in (ORIGINAL, NEGATED)]
            own.append(pick(summary, **about, metric=f"gap@{k}"))
        rows.append([*_label(summary, variant), *map(percent, own), *_counts(own)])
        printed = _printed(summary, RETRIEVAL, variant)
        if printed and direction == TEXT_TO_IMAGE:
            cells = []
            for k in KS:
                pair = [printed.get(f"recall@{k}/{kind}") for kind in (ORIGINAL, NEGATED)]
                cells += [_cell(p) for p in pair]
                cells.append(f"{pair[0].value - pair[1].value:.1f}" if pair[0] and pair[1] else "–")
            rows.append(["  as printed (paper)", "", "", *cells, "", ""])
    return rows


def _choices(summary: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for task, variant in _choice_tasks(summary):
        about = {"task": task, "variant": variant}
        own = [pick(summary, **about, metric="accuracy", type=type_) for type_ in ("all", *TEMPLATES)]
        chance = pick(summary, **about, metric="chance")
        rows.append([*_label(summary, variant, task), *map(percent, own), percent(chance), *_counts(own[:1])])
        if printed := _printed(summary, task, variant):
            which = SOURCES[next(iter(printed.values())).source]
            cells = [_cell(printed.get(f"accuracy/{type_}")) for type_ in ("all", *TEMPLATES)]
            rows.append([f"  as printed ({which})", "", "", *cells, "", "", ""])
    return rows


def _selected(summary: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for task, variant in _choice_tasks(summary):
        about = {"task": task, "variant": variant}
        own = [pick(summary, **about, metric="selected", template=template) for template in TEMPLATES]
        offered = [pick(summary, **about, metric="offered", template=template) for template in TEMPLATES]
        if any(own):
            cells = [f"{percent(a)} ({percent(b)})" if a else "–" for a, b in zip(own, offered, strict=True)]
            rows.append([*_label(summary, variant, task), *cells, *_counts(own)])
    return rows


def _wrong(summary: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for task, variant in _choice_tasks(summary):
        for type_ in ("all", *TEMPLATES):
            about = {"task": task, "variant": variant, "metric": "wrong", "type": type_}
            own = [pick(summary, **about, template=template) for template in TEMPLATES]
            if any(own):
                n = next(figure["n"] for figure in own if figure)
                rows.append([*_label(summary, variant, task), type_, *map(percent, own), f"{n:g}"])
    return rows


def _gaps(summary: Mapping[str, Any]) -> list[str]:
    """The negation gap in words, one sentence per wording of the captions."""
    found = []
    for variant in _variants(summary, RETRIEVAL):
        parts = []
        for k in KS:
            about = {"task": RETRIEVAL, "variant": variant, "direction": TEXT_TO_IMAGE}
            gap = pick(summary, **about, metric=f"gap@{k}")
            first, second = (
                pick(summary, **about, metric=f"recall@{k}", kind=kind) for kind in (ORIGINAL, NEGATED)
            )
            if not (gap and first and second) or gap["value"] is None:
                continue
            low, high = gap["low"], gap["high"]
            ends = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
            told, denied = 100 * first["value"], 100 * second["value"]
            parts.append(
                f"{told:.1f} % and {denied:.1f} % at {k} (gap {100 * gap['value']:.1f}{ends} points)"
            )
        if parts:
            found.append(
                f"{summary['model']}, {summary['title']}: text-to-image recall with the original captions "
                f"and with the {variant} negated ones is {'; '.join(parts)}."
            )
    return found


def _notes(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = []
    for key, what in (("protocol", "protocol"), ("features", "features"), ("limit", "--limit")):
        values = {s[key] for s in summaries if s["kind"] == "dual"}
        if len(values) > 1:
            notes.append(f"the rows differ in {what}; they are not comparable with each other.")
    for value, text in (
        ("paper", "protocol 'paper': the right option comes first and ties go to the first, as released."),
        ("unnormalised", "multiple choice compares features that are not normalised, as first published."),
    ):
        if any(value in (s["protocol"], s["features"]) for s in summaries):
            notes.append(text)
    if limits := {s["limit"] for s in summaries if s["limit"]}:
        notes.append(
            f"--limit {max(limits)}: recall among fewer pictures is higher than on the whole set, and not "
            "comparable with it."
        )
    for summary in summaries:
        for figure in summary["figures"]:
            if figure.get("n_unscored") and figure.get("reasons"):
                if figure["metric"] == f"recall@{KS[0]}" or figure.get("type") == "all":
                    reason, count = next(iter(figure["reasons"].items()))
                    where = ", ".join(
                        str(figure[key])
                        for key in ("task", "variant", "kind", "direction")
                        if figure.get(key)
                    )
                    notes.append(
                        f"{summary['model']}, {summary['title']}, {where}: {figure['n_unscored']} unscored; "
                        f"{count} of them: {reason}"
                    )
    return notes


def _printed(summary: Mapping[str, Any], task: str, variant: str) -> dict[str, paper_numbers.Printed]:
    if summary["preset"] != "paper" or summary["row"] is None:
        return {}
    return paper_numbers.figures(
        summary["row"], summary["dataset"], task, variant, features=summary["features"] or "normalised"
    )


def _cell(printed: paper_numbers.Printed | None) -> str:
    return "–" if printed is None else f"{printed.value:.1f}"


def _variants(summary: Mapping[str, Any], task: str) -> list[str]:
    return list(dict.fromkeys(f["variant"] for f in summary["figures"] if f["task"] == task))


def _choice_tasks(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = [(f["task"], f["variant"]) for f in summary["figures"] if f["task"].startswith((MCQ, BINARY))]
    return list(dict.fromkeys(found))


def _label(summary: Mapping[str, Any], variant: str, task: str = "") -> list[str]:
    extra = f" {task}" if task not in ("", MCQ) else ""
    return [summary["model"], f"{summary['title']}{extra}", variant]


def _counts(figures: Sequence[Figure | None]) -> list[str]:
    """n and unscored, of the figures that are there: one number, or the range."""

    def span(key: str) -> str:
        values = sorted({figure[key] for figure in figures if figure is not None})
        return "" if not values else str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}"

    return [span("n"), span("n_unscored")]


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A heading and a table, or nothing without rows; columns without any figure are left out."""
    if not rows:
        return []
    kept = [i for i in range(len(heads)) if i < 3 or any(row[i] not in ("–", "") for row in rows)]
    cut: Callable[[Sequence[str]], list[str]] = lambda row: [str(row[i]).replace("|", "\\|") for i in kept]  # noqa: E731
    text = tabulate.tabulate([cut(row) for row in rows], cut(heads), tablefmt="pipe", disable_numparse=True)
    return [f"### {title}\n\n{text}"]
