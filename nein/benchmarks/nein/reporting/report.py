"""The page of finished runs: what is said of them besides tables and plots, and what they cost.

Needs no torch, and no pictures but for the samples of a page.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd

from nein.benchmarks import compare, controls
from nein.benchmarks.compare import Side
from nein.benchmarks.nein import figures, runs
from nein.benchmarks.nein.config import EvalConfig, ReportConfig
from nein.benchmarks.nein.edit import idle
from nein.benchmarks.nein.reporting import (
    calibrations,
    people,
    protocols,
    sections,
)
from nein.benchmarks.nein.reporting.sample_browser import Browser
from nein.benchmarks.nein.runs import DECLINED, NOT_EDITED, REMOVALS, RunDir
from nein.benchmarks.runner import Finished
from nein.engine.errors import UserError
from nein.metrics import METRICS
from nein.reporting import figures as frames
from nein.reporting import format
from nein.reporting import page as pages
from nein.reporting.figures import Figure, number
from nein.reporting.format import widest
from nein.reporting.page import Page
from nein.reporting.scores import ScoreTable
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


def page(finished: Sequence[Finished], options: EvalConfig | ReportConfig) -> Page | None:
    """What a report says of runs: that of `nein eval` their tables, if it is asked for; that of `nein report`
    everything. Raises UserError."""
    if isinstance(options, EvalConfig) and "report" not in options.stages:
        return None
    if not finished:
        raise UserError("No run is complete, so there is nothing to report; run the stages edit and score.")
    evaluating = isinstance(options, EvalConfig)
    loaded = runs.in_order([entry.folder for entry in finished], same_data=not evaluating)
    presets = sorted({str(run.about.get("config", {}).get("preset")) for run in loaded})
    label = NANO_LABEL if presets == ["nano"] else ", ".join(presets)
    results = figures.together({entry.folder.path: entry.figures for entry in finished}, loaded)
    gaps = figures.gaps(loaded)
    shown = (table for table in reversed(sections.results()) if table.sheet(results).rows)
    common: dict[str, Any] = {"subtitle": f"Preset: {label}. {HOW}", "notes": notes(results, loaded)}
    common["headline"] = [*shown][:1]
    if isinstance(options, EvalConfig):
        frame = frames.concat([results, gaps], benchmark="nein")
        return Page("NeIn", findings=finding(frame), frame=frame, sections=sections.of_runs(), **common)
    browser = Browser.of(loaded, options.data, options.split)
    pictures = browser.pictures(options.thumbnails if "html" in options.formats else 0)
    folders = list(dict.fromkeys(options.calibration or [run.out / "calibration" for run in loaded]))
    judges = calibrations.load(folders, explicit=bool(options.calibration))
    of_runs = sides([run for run in loaded if run.track == "negative"] or loaded)
    pairs = compare.chosen([*of_runs], options.baseline)
    compared = compare.comparisons(of_runs, pairs, family=options.family)
    rows = [*compared, *calibrations.agreements(loaded), *calibrations.judged(loaded, judges)]
    rows += costs(loaded)
    if options.labels:
        rows += people.labelled(loaded, people.read(options.labels))
    rows += calibrations.grades(loaded, options.judge_grade)
    if options.protocols:
        rows += [row for run in loaded for row in protocols.rows(run)]
    more = [figures.breakdowns(loaded), frames.frame(rows)]
    frame = frames.concat([results, gaps, *more], benchmark="nein")
    kinds = dict.fromkeys(calibrations.KINDS[judge.kind] for judge in judges)
    common["notes"] += controls.flags(frame, kinds)
    out = options.out.with_suffix(".html")
    return Page(
        options.title or f"NeIn: {', '.join(dict.fromkeys(run.name for run in loaded))}",
        findings=finding(frame),
        frame=frame,
        parts=[browser.part(out, pictures, options.embed * 2**20)],
        sections=sections.page(compare.table(compared)),
        settings={run.label: _setting(run) for run in loaded},
        **common,
    )


def _setting(run: RunDir) -> str:
    facts = {key: run.about.get(key, {}) for key in ("config", "data", "models")}
    calls = [{key: v for key, v in call.items() if key != "command"} for call in run.about["invocations"]]
    return pages.setting({"editor": run.editor, "track": run.track, **facts, "invocations": calls})


def sides(loaded: Sequence[RunDir], controls: Mapping[str, RunDir] = MappingProxyType({})) -> dict[str, Side]:
    """The runs as they are compared. controls: editor -> its run of "Remove the X.", less which a run with
    negative instructions has its negation gap."""
    found = {}
    for run in loaded:
        # Of one track: a column of tracks would keep runs of two apart.
        scores = ScoreTable(run.table.frame.assign(variant=pd.Categorical([None] * len(run.table))))
        told, removals, lost = controls.get(run.name), tuple(REMOVALS), None
        if told and run.track == "negative":
            lost = told.table.where(metric=removals).less(run.table.where(metric=removals))
        found[run.label] = Side(scores, lost, {name: vars(entry) for name, entry in run.corpus().items()})
    return found


def finding(frame: pd.DataFrame) -> list[str]:
    """What was found in a sentence, by the first judge that saw it: the widest negation gap; of minimal pairs
    how different two opposite sentences make an edit; else Removal; none without a judge."""
    gaps = figures.headline(frame)
    change = '"Remove the X." becomes a sentence that says X is absent'
    for metric, judge in REMOVALS.items():
        of_judge, what = frames.select(gaps, measure=METRICS[metric].title), f"Removal (judged by {judge})"
        if sentence := widest(of_judge, what=what, change=change, models="editors"):
            return [sentence]
    parts = {"task": "minimal_pairs", "statistic": "part", "group": two_way.TEXT}
    opposite = (
        "Of 100 points by which a sentence and its denial should make edited pictures differ, {} makes {}"
    )
    results = {"task": "results", "variant": "negative", "source": ""}
    removed = "Told that X is absent, {} removes it in {} % of the samples"
    for where, sentence, highest in ((parts, opposite, "{} {}"), (results, removed, "{} in {} %")):
        for metric, judge in REMOVALS.items():
            found = frames.records(frames.select(frame, **where), metric=metric)
            rows = sorted((row for row in found if row["value"] is not None), key=lambda row: row["value"])
            if rows:
                ends = sentence.format(rows[0]["model"], format.text(rows[0]))
                if len(rows) > 1:
                    most = format.text(rows[-1], interval="none")
                    ends += ", " + highest.format(rows[-1]["model"], most)
                return [f"{ends} (judged by {judge})."]
    return []


def notes(frame: pd.DataFrame, loaded: Sequence[RunDir]) -> list[str]:
    """What a reader has to know: small sets, rows that differ, samples lost."""
    configs = [run.about.get("config", {}) for run in loaded]
    sentences = []
    results = frames.select(frame, task="results", source="")
    sizes = [f["n"] for f in frames.records(results, metric="fid") if f["value"] is not None]
    if sizes and min(sizes) < FID_SMALL:
        sentences.append(
            f"FID from {min(sizes)} images is biased upwards and not comparable with other sample sizes "
            f"(a few thousand are needed)."
        )
    by_run: dict[str, list[dict[str, Any]]] = {}
    for figure in frames.records(results):
        by_run.setdefault(f"{figure['model']}/{figure['variant']}", []).append(figure)
    sentences += few_clusters([figure for rows in by_run.values() for figure in rows])
    for what, values in {
        "data": {run.about.get("data", {}).get("records_sha256") for run in loaded},
        "protocol": {config.get("protocol") for config in configs},
        "alignment": {config.get("align") for config in configs},
        "size": {max(f["n"] + f["unscored"] for f in rows) for rows in by_run.values()},
    }.items():
        if len(values) > 1:
            sentences.append(f"the rows differ in {what}; they are not comparable with each other.")
    for name, rows in by_run.items():
        sentences += _losses(name, rows)
    sentences += [*_idle(loaded), *_reshaped(loaded)]
    for run in loaded:
        if lost := run.every.frame.loc[run.every.frame["failed"].notna(), "id"].nunique():
            calls = [call["command"] for call in run.about.get("invocations", []) if call.get("command")]
            again = f"Retry with: {shlex.join(['nein', *calls[-1]])}" if calls else "Give the command again."
            sentences.append(f"{run.label}: {lost} samples lack the answer of an endpoint. {again}")
    return sentences


def _idle(loaded: Sequence[RunDir]) -> Iterator[str]:
    """Runs with a remedy whose pictures are all those of the editor without it."""
    plain = {run.label: [*run.edits.values()] for run in loaded}
    for run in loaded:
        mend, name = run.about["identity"].get("mend"), f"{run.name.rpartition('+')[0]}/{run.track}"
        if mend and (count := idle(plain[run.label], plain.get(name, ()))):
            yield (
                f"{run.label}: --mend {mend} did not act: all {count} pictures are byte for byte those "
                f"of {name}. This is not the figure of a remedy that did not help."
            )


def _reshaped(loaded: Sequence[RunDir]) -> Iterator[str]:
    """Runs whose pictures came back with another aspect ratio, which metrics of targets do not see."""
    for run in loaded:
        stretched = [METRICS[name].title for name in run.metrics if "align" in METRICS[name].settings]
        if stretched and (count := sum(edit.reshaped for edit in run.edits.values())):
            yield (
                f"{run.label}: {count} of {len(run.edits)} pictures came back with another aspect ratio and "
                f"are stretched to the target's size for {', '.join(stretched)}."
            )


def few_clusters(results: list[dict[str, Any]]) -> list[str]:
    """A sentence about means of values without a range, where they are of few source images."""
    means = [f for f in results if METRICS[f["metric"]].span is None and f["metric"] != "fid"]
    few = [f for f in means if f["low"] is not None and f["clusters"] < FEW]
    if not few:
        return []
    names = ", ".join(dict.fromkeys(METRICS[f["metric"]].title for f in few))
    least = int(min(f["clusters"] for f in few))
    return [
        f"{names}: intervals from {least} source images. Where values are skewed, these intervals "
        "(Student's t) cover about 90 %, not 95 %."
    ]


def _losses(name: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Why samples of a run are unscored: edits that failed or were refused in a sentence each, then what each
    metric lost besides, with the commonest reasons."""
    reasons = {figure["metric"]: frames.reasons(figure) for figure in rows}
    attempted = max(figure["n"] + figure["unscored"] for figure in rows)
    sentences, failed = [], 0
    for start, happened in {NOT_EDITED: "failed", DECLINED: "were refused by the editor"}.items():
        lost = [{why: n for why, n in counts.items() if why.startswith(start)} for counts in reasons.values()]
        if most := max((sum(counts.values()) for counts in lost), default=0):
            example = next(reason for counts in lost for reason in counts).removeprefix(start)
            sentences.append(f"{name}: {most} of {attempted} edits {happened}, for instance: {example}")
            failed += most
    for figure in (figure for figure in rows if figure["unscored"] > failed):
        counts = reasons[figure["metric"]].items()
        others = [f"{n} × {why}" for why, n in counts if not why.startswith((NOT_EDITED, DECLINED))]
        more = f"{figure['unscored'] - failed}{' more' if failed else ''}"
        why = f": {'; '.join(others[:3])}" if others else ""
        sentences.append(f"{name}: {more} are unscored in {METRICS[figure['metric']].title}{why}")
    return sentences


def costs(loaded: Sequence[RunDir]) -> Iterator[Figure]:
    """Rows of the frame (task "costs"): samples, seconds, rate and peak memory of every run's stages."""
    for run in loaded:
        machines = [call.get("environment", {}) for call in reversed(run.about.get("invocations", []))]
        machine: dict[str, Any] = next((system for system in machines if system.get("device")), {})
        costs = run.costs()
        for stage in (name for name in ("edit", "score") if name in costs):
            count, seconds, peak = (costs[stage][name] for name in ("rows", "seconds", "peak_memory"))
            what: dict[str, Any] = {"task": "costs", "model": run.name, "variant": run.track}
            what["stage"] = stage
            what["device"] = machine.get("device_name") or machine.get("device") or "–"
            yield number(count, unit="count", metric="samples", **what)
            yield number(seconds, unit="", metric="seconds", **what)
            yield number(count / seconds if seconds else None, unit="", metric="rate", **what)
            yield number(peak.get("host", 0), unit="count", metric="host_bytes", **what)
            yield number(peak.get("device", 0), unit="count", metric="device_bytes", **what)
