"""Stage 3: figures and tables from the records of finished runs. Needs no torch and no pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tabulate

from metrics import METRICS
from nein import statistics
from nein.benchmarks.nein import (
    by_family,
    paper_numbers,
    results_table,
)
from nein.benchmarks.nein.runs import RunDir, find
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE

NANO_LABEL = "nano (miniature models on drawn scenes; not comparable with the paper)"
FID_SMALL = 5000
NOT_EDITED = "not edited: "


def report(out: Path) -> str:
    """Writes summary.json of every complete run below `out`, and OUT/table.md and table.csv; returns the
    text. Where the control was run, also the negation gap per template, as a table and as a picture
    (OUT/gap_by_template.csv and .png).

    Raises UserError when no run is complete.
    """
    runs = find(out)
    complete = [run for run in runs if (run.manifest() or {}).get("status") == COMPLETE]
    if not complete:
        found = f"none of the {len(runs)} runs there is complete" if runs else "there are no runs there"
        raise UserError(f"Nothing to report in '{out}': {found}; run the stages edit and score first.")
    complete.sort(key=_order)
    summaries, scores = [], {}
    for run in complete:
        summary, values = summarise(run)
        atomic.write_json(run.path / "summary.json", summary)
        summaries.append(summary)
        scores[run.editor, run.track] = values
    text = _text(
        summaries, scores, _template_gaps(complete, out), [run.label for run in runs if run not in complete]
    )
    atomic.write_text(out / "table.md", text)
    atomic.write_text(out / "table.csv", results_table.to_csv(summaries))
    return text


def summarise(
    run: RunDir,
    edits: Sequence[Mapping[str, Any]] | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(summary, values) of a complete run. `edits`, `rows`: its records, where already read.

    summary  editor, track, preset, data, n, and per metric: value, low, high, standard_error, n, clusters,
             n_unscored, reasons (the commonest, with counts). Values are in the metric's own unit, not
             scaled.
    values   metric -> sample id -> value or None, and "clusters": sample id -> source id.
    """
    manifest = run.manifest() or {}
    edits = run.read_edits() if edits is None else edits
    clusters = {edit["id"]: edit["source_id"] for edit in edits}
    values: dict[str, dict[str, float | None]] = {}
    reasons: dict[str, Counter[str]] = {}
    for row in run.read_scores() if rows is None else rows:
        values.setdefault(row["metric"], {})[row["id"]] = row["value"]
        if row["value"] is None:
            reasons.setdefault(row["metric"], Counter())[row["reason"]] += 1
    families = by_family.families_of(edits)
    split = by_family.split(values, families, clusters, _entry)
    values = by_family.without_staying(values, families)
    entries: dict[str, Any] = {}
    for metric in METRICS:
        if metric in values:
            entries[metric] = _entry(metric, values[metric], clusters)
            entries[metric]["reasons"] = dict(reasons.get(metric, Counter()).most_common(5))
    corpus_file = run.path / "corpus.json"
    if corpus_file.exists():
        entries |= atomic.read_json(corpus_file)
    entries = {metric: entries[metric] for metric in METRICS if metric in entries}
    summary = {
        "editor": run.editor,
        "track": run.track,
        "preset": manifest.get("config", {}).get("preset"),
        "protocol": manifest.get("config", {}).get("protocol"),
        "align": manifest.get("config", {}).get("align"),
        "records_sha256": manifest.get("data", {}).get("records_sha256"),
        "n": len(edits),
        "edit_errors": sum(edit["image"] is None for edit in edits),
        "metrics": entries,
        **({"families": split} if split else {}),
    }
    return summary, {**values, "clusters": clusters}


def _entry(metric: str, values: Mapping[str, float | None], clusters: Mapping[str, str]) -> dict[str, Any]:
    ids = [key for key, value in values.items() if value is not None]
    numbers = [float(values[key]) for key in ids]  # type: ignore[arg-type]
    estimator = statistics.proportion if METRICS[metric].kind == "proportion" else statistics.mean
    found: statistics.Estimate | None = estimator(numbers, [clusters[key] for key in ids])
    unscored = len(values) - len(ids)
    if found is None:
        return {
            "value": None,
            "low": None,
            "high": None,
            "standard_error": None,
            "n": 0,
            "n_unscored": unscored,
        }
    return {
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "standard_error": found.standard_error,
        "n": found.n,
        "clusters": found.clusters,
        "n_unscored": unscored,
    }


def _template_gaps(complete: Sequence[RunDir], out: Path) -> str | None:
    """The negation gap template by template, editors side by side; None where no control was run."""
    if not {"negative", "remove"} <= {run.track for run in complete}:
        return None
    from nein.benchmarks.nein.reporting import collect, plots, sections, tables

    found = sections.gaps([collect.read(run, run.editor) for run in complete])
    by_template = next((part for part in found if part.key == "gap_by_template"), None)
    plot = plots.gap_by_template(by_template) if by_template is not None else None
    if by_template is None or plot is None:
        return None
    atomic.write_text(out / "gap_by_template.csv", tables.to_csv([by_template]))
    atomic.write_bytes(out / "gap_by_template.png", plot.encode("png"))
    heads = dict.fromkeys((editor, judge) for editor, judge, *_ in by_template.rows)
    cells = {(sentence, editor, judge): gap for editor, judge, sentence, gap, _ in by_template.rows}
    lines = [
        [sentence, *(cells.get((sentence, *head), "") for head in heads)]
        for sentence in dict.fromkeys(row[2] for row in by_template.rows)
    ]
    columns = ["negative instruction", *(f"{editor} ({judge})" for editor, judge in heads)]
    return (
        "### Negation gap by template\n\n"
        + tabulate.tabulate(lines, columns, tablefmt="pipe", disable_numparse=True)
        + '\n\nRemoval when told "Remove the X." minus Removal under the sentence: points, paired by sample.'
    )


def _text(
    summaries: Sequence[Mapping[str, Any]],
    scores: Mapping[tuple[str, str], Any],
    by_template: str | None,
    unfinished: Sequence[str],
) -> str:
    presets = {summary["preset"] for summary in summaries}
    paper = {
        summary["editor"]: found
        for summary in summaries
        if summary["preset"] == "paper" and (found := paper_numbers.figures(summary["editor"]))
    }
    title = NANO_LABEL if presets == {"nano"} else ", ".join(sorted(str(preset) for preset in presets))
    parts = [f"## NeIn, {title}", results_table.markdown(summaries, paper)]
    parts.append(
        "Percentages except FID and LPIPS. ± and [ ]: 95 % interval, clustered by source image. "
        "↑ higher is better, ↓ lower is better."
    )
    if split := by_family.markdown(summaries):
        parts.append(split)
    gaps = [gap for summary in summaries if (gap := _gap(summary["editor"], summary["track"], scores))]
    if gaps:
        parts.append("\n".join(f"- {gap}" for gap in gaps))
    if by_template:
        parts.append(by_template)
    notes = _notes(summaries, unfinished)
    if notes:
        parts.append("\n".join(f"Note: {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def _gap(editor: str, track: str, scores: Mapping[tuple[str, str], Any]) -> str | None:
    """The negation gap: Removal when told to remove, against Removal when told what is not there."""
    negative, remove = scores.get((editor, "negative")), scores.get((editor, "remove"))
    if track != "remove" or negative is None or remove is None:
        return None
    parts = []
    for metric, judge in (("removal_vqa", "by VQA"), ("removal_ovd", "by detection")):
        if metric not in negative or metric not in remove:
            continue
        gap = statistics.paired_difference(remove[metric], negative[metric], negative["clusters"])
        if gap is None:
            continue
        low, high = gap.low, gap.high
        ends = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
        told, denied = _share(remove[metric]), _share(negative[metric])
        parts.append(f"{told:.1f} % and {denied:.1f} % {judge} (gap {100 * gap.value:.1f}{ends} points)")
    if not parts:
        return None
    return (
        f'{editor}: Removal when told "Remove the X." and when told that X is absent is {"; ".join(parts)}.'
    )


def _share(values: Mapping[str, float | None]) -> float:
    numbers = [value for value in values.values() if value is not None]
    return 100 * sum(numbers) / len(numbers) if numbers else float("nan")


def _notes(summaries: Sequence[Mapping[str, Any]], unfinished: Sequence[str]) -> list[str]:
    notes = []
    sizes = [
        s["metrics"]["fid"]["n"] for s in summaries if s["metrics"].get("fid", {}).get("value") is not None
    ]
    if sizes and min(sizes) < FID_SMALL:
        notes.append(
            f"FID from {min(sizes)} images is biased upwards and not comparable with other sample sizes "
            f"(a few thousand are needed)."
        )
    for key, what in (
        ("records_sha256", "data"),
        ("protocol", "protocol"),
        ("align", "alignment"),
        ("n", "size"),
    ):
        if len({summary[key] for summary in summaries}) > 1:
            notes.append(f"the rows differ in {what}; they are not comparable with each other.")
    for summary in summaries:
        notes += _losses(summary)
    if unfinished:
        notes.append(f"not shown because not complete: {', '.join(unfinished)}.")
    return notes


def _losses(summary: Mapping[str, Any]) -> list[str]:
    """Why samples of a run are unscored: failed edits in one sentence, then what each metric lost besides."""
    label, failed = f"{summary['editor']}/{summary['track']}", summary["edit_errors"]
    found = []
    if failed:
        reasons = [
            r for entry in summary["metrics"].values() for r in entry["reasons"] if r.startswith(NOT_EDITED)
        ]
        example = f", for instance: {reasons[0].removeprefix(NOT_EDITED)}" if reasons else ""
        found.append(f"{label}: {failed} of {summary['n']} samples were not edited{example}")
    for metric, entry in summary["metrics"].items():
        others = [reason for reason in entry["reasons"] if not reason.startswith(NOT_EDITED)]
        if entry["n_unscored"] > failed:
            more = f"{entry['n_unscored'] - failed}{' more' if failed else ''}"
            example = f", for instance: {others[0]}" if others else ""
            found.append(f"{label}: {more} are unscored in {METRICS[metric].title}{example}")
    return found


def _order(run: RunDir) -> tuple[int, str, int]:
    known = list(paper_numbers.ROW_OF)
    place = known.index(run.editor) if run.editor in known else len(known)
    return place, run.editor, ("negative", "remove", "add").index(run.track)
