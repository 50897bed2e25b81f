"""Stage 3: figures and tables from the records of finished runs. Needs no torch and no pictures."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from nein.benchmarks.nein import figures, records
from nein.benchmarks.nein.records import REMOVALS, Records
from nein.benchmarks.nein.reporting import sections
from nein.engine.errors import UserError
from nein.metrics import METRICS
from nein.reporting import figures as frames
from nein.reporting import format
from nein.reporting import report as reporting
from nein.reporting.format import Gap, widest
from nein.reporting.report import Section
from nein.statistics import two_way

NANO_LABEL = "nano (miniature models on drawn scenes; not comparable with the paper)"
HOW = (
    "Percentages except FID and LPIPS. ± and [ ]: 95 % interval, clustered by source image. "
    "↑ higher is better, ↓ lower is better."
)
FID_SMALL = 5000
#: Source images below which the interval of a mean without a range covers less than it says: the study of
#: docs/explanation/statistics.md.
FEW = 30
NOT_EDITED = "not edited: "
Facts = Mapping[str, Any]


def report(out: Path, held: Mapping[Path, Records] = MappingProxyType({})) -> str:
    """Writes the tables and plots of every complete run below `out`; returns the text.

    held  Runs that were read already, by their folder. Raises UserError when no run is complete.
    """
    try:
        complete, unfinished = records.finished([out])
    except UserError as error:
        raise UserError(f"Nothing to report in '{out}': {error}") from None
    runs = [held.get(run.path) or records.read(run) for run in complete]
    formats = ("md", "csv", "plots")
    write(out, runs, unfinished, sections.of_runs(), title="NeIn", formats=formats)
    return (out / "table.md").read_text(encoding="utf-8")


def write(
    out: Path,
    runs: Sequence[Records],
    unfinished: Sequence[str],
    shown: Sequence[Section],
    *,
    more: Sequence[pd.DataFrame] = (),
    **options: Any,
) -> list[Path]:
    """Writes sections of finished runs and what is to be said of them (`nein.reporting.report.write`, which
    takes the options). more: further figures."""
    results, gaps = together(runs), figures.gaps(runs)
    frame = frames.label(frames.concat([results, gaps, *more]), benchmark="nein")
    return reporting.write(
        out, frame, sections=shown, notes=notes(results, runs, unfinished),
        subtitle=f"Preset: {label(run.manifest for run in runs)}. {HOW}",
        findings=[*finding(frame), *findings(gaps)], **options,
    )  # fmt: skip


def together(runs: Sequence[Records]) -> pd.DataFrame:
    """The figures of all runs, with what the paper prints of its editors where the preset is the paper's."""
    parts = []
    for run in runs:
        parts.append(figures.of_run(run))
        if preset(run.manifest) == "paper" and run.track == "negative":
            parts.append(figures.printed(run.run.editor, run.name))
    return frames.concat(parts)


def preset(manifest: Facts) -> str:
    return str(manifest.get("config", {}).get("preset"))


def label(manifests: Any) -> str:
    """What presets the figures are of."""
    presets = {preset(manifest) for manifest in manifests}
    return NANO_LABEL if presets == {"nano"} else ", ".join(sorted(presets))


def finding(frame: pd.DataFrame) -> list[str]:
    """What was found in a sentence, by the first judge that saw it: the widest negation gap; of minimal pairs
    how different two opposite sentences make an edit; else Removal; none without a judge."""
    told = frames.select(frame, task="gap")
    for metric in frames.values(told, "metric", tuple(REMOVALS)):
        rows = [
            {f["statistic"]: f for f in frames.records(frames.select(told, model=editor, metric=metric))}
            for editor in frames.values(told, "model")
        ]
        gaps = [Gap(by["gap"]["model"], by["remove"], by["negative"], by["gap"]) for by in rows if by]
        sentence = widest(
            gaps,
            what=f"Removal (judged by {REMOVALS[metric]})",
            change='"Remove the X." becomes a sentence that says X is absent',
            models="editors",
        )
        if sentence:
            return [sentence]
    sentence = "Of 100 points by which a sentence and its denial should make edited pictures differ,"
    sentence += " {} makes {}"
    parts = {"task": "minimal_pairs", "statistic": "part", "group": two_way.TEXT}
    if said := _lowest(frames.select(frame, **parts), sentence, "{} {}"):
        return said
    sentence = "Told that X is absent, {} removes it in {} % of the samples"
    results = {"task": "results", "variant": "negative", "source": ""}
    return _lowest(frames.select(frame, **results), sentence, "{} in {} %")


def _lowest(given: pd.DataFrame, sentence: str, highest: str) -> list[str]:
    """What is said of the lowest figure of the first judge that has one, and of the highest beside it."""
    for metric, judge in REMOVALS.items():
        rows = [f for f in frames.records(frames.select(given, metric=metric)) if f["value"] is not None]
        if rows:
            last, first = min(reversed(rows), key=_value), max(rows, key=_value)
            more = ", " + highest.format(first["model"], format.text(first, interval="none"))
            said = sentence.format(last["model"], format.text(last))
            return [f"{said}{more if first is not last else ''} (judged by {judge})."]
    return []


def _value(figure: Mapping[str, Any]) -> float:
    return float(figure["value"])


def findings(frame: pd.DataFrame) -> list[str]:
    """The negation gap in words: Removal when told to remove, against Removal when told what is not there."""
    words = {"removal_vqa": "by VQA", "removal_ovd": "by detection"}
    said = []
    gaps = frames.select(frame, task="gap")
    for editor in frames.values(gaps, "model"):
        parts = []
        for metric, judge in words.items():
            by = {f["statistic"]: f for f in frames.records(frames.select(gaps, model=editor, metric=metric))}
            if by:
                told, denied, gap = (format.text(by[name]) for name in ("remove", "negative", "gap"))
                parts.append(f"{told} % and {denied} % {judge} (gap {gap} points)")
        said.append(
            f'{editor}: Removal when told "Remove the X." and when told that X is absent is '
            f"{'; '.join(parts)}."
        )
    return said


def notes(frame: pd.DataFrame, runs: Sequence[Records], unfinished: Sequence[str]) -> list[str]:
    """What a reader has to know: small sets, rows that differ, samples lost, runs left out."""
    manifests = [run.manifest for run in runs]
    said = []
    results = frames.select(frame, task="results", source="")
    sizes = [f["n"] for f in frames.records(frames.select(results, metric="fid")) if f["value"] is not None]
    if sizes and min(sizes) < FID_SMALL:
        said.append(
            f"FID from {min(sizes)} images is biased upwards and not comparable with other sample sizes "
            f"(a few thousand are needed)."
        )
    said += few_clusters(frames.records(results))
    for what, values in {
        "data": {m.get("data", {}).get("records_sha256") for m in manifests},
        "protocol": {m.get("config", {}).get("protocol") for m in manifests},
        "alignment": {m.get("config", {}).get("align") for m in manifests},
        "size": {max(f["n"] + f["unscored"] for f in rows) for _, rows in _by_run(results)},
    }.items():
        if len(values) > 1:
            said.append(f"the rows differ in {what}; they are not comparable with each other.")
    for name, rows in _by_run(results):
        said += _losses(name, rows)
    for run in runs:
        if number := run.every.frame.loc[run.every.frame["failed"].notna(), "id"].nunique():
            calls = [one["command"] for one in run.manifest.get("invocations", []) if one.get("command")]
            again = (
                f"To ask again: {shlex.join(['nein', *calls[-1]])}"
                if calls
                else "Give the same command again."
            )
            said.append(f"{run.label}: {number} samples lack the answer of an endpoint. {again}")
    if unfinished:
        said.append(f"not shown because not complete: {', '.join(unfinished)}.")
    return said


def few_clusters(results: list[dict[str, Any]]) -> list[str]:
    """A sentence about means of values without a range, where they are of few source images."""
    means = [f for f in results if METRICS[f["metric"]].span is None and f["metric"] != "fid"]
    few = [f for f in means if f["low"] is not None and f["clusters"] < FEW]
    if not few:
        return []
    names = ", ".join(dict.fromkeys(METRICS[f["metric"]].title for f in few))
    least = int(min(f["clusters"] for f in few))
    return [
        f"{names}: intervals from {least} source images. Of means without a range and few of them, "
        "Student's t covers less than 95 % where values are skewed (about 90 %)."
    ]


def _by_run(results: pd.DataFrame) -> list[tuple[str, list[dict[str, Any]]]]:
    runs: dict[str, list[dict[str, Any]]] = {}
    for figure in frames.records(results):
        runs.setdefault(f"{figure['model']}/{figure['variant']}", []).append(figure)
    return list(runs.items())


def _losses(name: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Why samples of a run are unscored: failed edits in one sentence, then what each metric lost besides."""
    reasons = {figure["metric"]: frames.reasons(figure) for figure in rows}
    attempted = max(figure["n"] + figure["unscored"] for figure in rows)
    failures = [
        {reason: count for reason, count in counts.items() if reason.startswith(NOT_EDITED)}
        for counts in reasons.values()
    ]
    failed = max((sum(counts.values()) for counts in failures), default=0)
    said = []
    if failed:
        example = next(reason for counts in failures for reason in counts).removeprefix(NOT_EDITED)
        said.append(f"{name}: {failed} of {attempted} samples were not edited, for instance: {example}")
    for figure in rows:
        others = [reason for reason in reasons[figure["metric"]] if not reason.startswith(NOT_EDITED)]
        if figure["unscored"] > failed:
            more = f"{figure['unscored'] - failed}{' more' if failed else ''}"
            example = f", for instance: {others[0]}" if others else ""
            said.append(f"{name}: {more} are unscored in {METRICS[figure['metric']].title}{example}")
    return said
