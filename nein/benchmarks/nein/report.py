"""Makes the page of finished NeIn runs, for `nein eval` (tables alone) and `nein report`.

Parts: the page with its tables; the finding and the notes, in sentences; a card for every sample, the only
part that reads images. Torch is not imported.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks import compare
from nein.benchmarks.nein import calibrations, estimates, protocols, runs, sections
from nein.benchmarks.nein.config import EvalConfig, ReportConfig
from nein.benchmarks.nein.runs import DECLINED, NOT_EDITED, REMOVAL_JUDGES, TEMPLATES, RunDir
from nein.benchmarks.runner import Finished
from nein.datasets import nein as nein_data
from nein.engine import images
from nein.loading.errors import UserError
from nein.metrics import METRICS, Metric
from nein.reporting import cards, tables
from nein.reporting import figures as frames
from nein.reporting.cards import Thumbnail
from nein.reporting.page import Page, Part
from nein.reporting.scores import ScoreTable
from nein.statistics import two_way

NANO_LABEL = "nano (miniature models on drawn scenes; not comparable with the paper)"
HOW_TO_READ = (
    "Percentages except FID and LPIPS. ± and [ ]: 95 % interval, clustered by source image. "
    "↑ higher is better, ↓ lower is better."
)


# --- page and tables -------------------------------------------------------------------------
def make_page(finished: Sequence[Finished], options: EvalConfig | ReportConfig) -> Page | None:
    """The page of these runs: all of it for `nein report`; the tables alone for `nein eval`, or None if its
    stage report is not selected. Raises UserError."""
    if isinstance(options, EvalConfig) and "report" not in options.stages:
        return None
    if not finished:
        raise UserError("No run is complete; rerun nein eval with the stages edit and score.")
    is_report = isinstance(options, ReportConfig)
    loaded = runs.order_runs([entry.folder for entry in finished], same_data=is_report)
    # The content of both pages.
    presets = sorted({str(run.about.get("config", {}).get("preset")) for run in loaded})
    label = NANO_LABEL if presets == ["nano"] else ", ".join(presets)
    figures = {entry.folder.path: entry.figures for entry in finished}
    of_runs = []
    for run in loaded:  # a metric of a plug-in that is not installed here is left out
        rows = frames.select(figures[run.path], metric=(*METRICS, "refused"))
        if frames.select(rows, task="results")[["n", "unscored"]].isna().any(axis=None):
            raise UserError(f"figures.csv of '{run.path}' lacks a count; rerun its nein eval command.")
        of_runs.append(frames.with_columns(rows, model=run.name))
    results = frames.concat(of_runs)
    losses = frames.frame(estimates.estimate_losses(loaded))
    frame = frames.concat([results, estimates.estimate_gaps(loaded), losses], benchmark="nein")
    presence_first = reversed(sections.make_paper_tables())
    headline_tables = [table for table in presence_first if table.sheet(results).rows]
    content: dict[str, Any] = {"subtitle": f"Preset: {label}. {HOW_TO_READ}", "findings": make_finding(frame)}
    content |= {"headline": headline_tables[:1], "notes": make_notes(results, loaded)}
    if not isinstance(options, ReportConfig):
        return Page("NeIn", frame=frame, sections=sections.make_sections(), **content)
    # What `nein report` adds: comparisons, judges, labels, protocols, breakdowns and cards.
    folders = list(dict.fromkeys(options.calibration or [run.out / "calibration" for run in loaded]))
    judges = calibrations.load(folders, explicit=bool(options.calibration))
    run_sides = make_sides([run for run in loaded if run.track == "negative"] or loaded, {})
    pairs = compare.choose_pairs([*run_sides], options.baseline)
    comparison_rows = compare.compare_runs(run_sides, pairs, family=options.family)
    more = [*comparison_rows, *calibrations.compare_judges(loaded)]
    more += calibrations.estimate_judges(loaded, judges)
    if options.labels:
        more += calibrations.use_labels(loaded, calibrations.read_labels(options.labels))
    if options.protocols:
        more += [row for run in loaded for row in protocols.make_rows(run)]
    breakdowns = estimates.estimate_breakdowns(loaded)
    frame = frames.concat([frame, breakdowns, frames.frame(more)], benchmark="nein")
    kinds = dict.fromkeys(calibrations.KINDS[judge.kind] for judge in judges)
    content["notes"] += calibrations.list_flags(frame, kinds)
    title = options.title or f"NeIn: {', '.join(dict.fromkeys(run.name for run in loaded))}"
    content["sections"] = sections.make_sections(compare.make_table(comparison_rows))
    return Page(title, frame=frame, parts=[make_browser(loaded, options)], **content)


def make_sides(loaded: Sequence[RunDir], controls: Mapping[str, RunDir]) -> dict[str, compare.Side]:
    """Label of a run -> its scores for `nein compare`. controls: editor -> its run of "Remove the X."; the
    scores of that run minus those of the negative instructions are the negation gap."""
    sides = {}
    for run in loaded:
        # The variant is emptied, so that runs of two tracks can be paired.
        scores = ScoreTable(run.table.frame.assign(variant=pd.Categorical([None] * len(run.table))))
        control = controls.get(run.name)
        gap = None
        if control and run.track == "negative":
            removals = tuple(REMOVAL_JUDGES)
            gap = control.table.where(metric=removals).subtract(run.table.where(metric=removals))
        corpus = {name: vars(entry) for name, entry in run.corpus().items()}
        sides[run.label] = compare.Side(scores, gap, corpus)
    return sides


# --- finding and notes ---------------------------------------------------------------------
#: Findings of runs without a gap, the first that applies: (the estimates, a sentence with the model and value
#: of the lowest, its end with those of the highest).
_FINDINGS = (
    (
        {"task": "minimal_pairs", "statistic": "part", "group": two_way.TEXT},
        "Of 100 points by which a sentence and its denial should make edited pictures differ, {} makes {}",
        "{} {}",
    ),
    (
        {"task": "results", "variant": "negative"},
        "Told that X is absent, {} removes it in {} % of the samples",
        "{} in {} %",
    ),
)


def make_finding(frame: pd.DataFrame) -> list[str]:
    """The main result in a sentence, by the first judge with scores: the widest negation gap; or for minimal
    pairs, how much opposite sentences change an edit; or Removal. [] without a judge."""
    change = '"Remove the X." becomes a sentence that says X is absent'
    for metric, judge in REMOVAL_JUDGES.items():
        gaps = frames.select(frame, metric=metric, **estimates.OVERALL)
        quantity = f"Removal (judged by {judge})"
        if sentence := tables.describe_widest(gaps, quantity=quantity, change=change, models="editors"):
            return [sentence]
    for where, sentence_of_lowest, end_of_highest in _FINDINGS:
        for metric, judge in REMOVAL_JUDGES.items():
            selected = frames.select(frame, metric=metric, **where).dropna(subset="value")
            if rows := sorted(frames.records(selected), key=lambda row: row["value"]):
                sentence = sentence_of_lowest.format(rows[0]["model"], tables.format_estimate(rows[0]))
                if len(rows) > 1:
                    highest = tables.format_estimate(rows[-1], interval="none")
                    sentence += f", {end_of_highest.format(rows[-1]['model'], highest)}"
                return [f"{sentence} (judged by {judge})."]
    return []


FID_SMALL = 5000  # images below which a note warns of its bias


def make_notes(frame: pd.DataFrame, loaded: Sequence[RunDir]) -> list[str]:
    """Caveats: small samples, runs that are not comparable, unscored samples, idle remedies."""
    results = frames.records(frame, task="results")
    configs = [run.about.get("config", {}) for run in loaded]
    sentences = []
    # Small samples.
    sizes = [row["n"] for row in results if row["metric"] == "fid" and row["value"] is not None]
    if sizes and min(sizes) < FID_SMALL:
        sentences.append(
            f"FID of {min(sizes)} images is biased upward and not comparable with other sample sizes; a few "
            "thousand images are needed."
        )
    sentences += note_few_clusters(results)
    # Runs that differ.
    by_run: dict[str, list[frames.Figure]] = {}  # label of a run -> its results
    for row in results:
        by_run.setdefault(f"{row['model']}/{row['variant']}", []).append(row)
    for property_name, values in {
        "data": {run.about.get("data", {}).get("records_sha256") for run in loaded},
        "protocol": {config.get("protocol") for config in configs},
        "alignment": {config.get("align") for config in configs},
        "size": {max(row["n"] + row["unscored"] for row in rows) for rows in by_run.values()},
    }.items():
        if len(values) > 1:
            sentences.append(f"the rows differ in {property_name}; they are not comparable with each other.")
    # Samples and images of each run.
    for name, rows in by_run.items():
        sentences += _explain_losses(name, rows)
    sentences += _note_idle_remedies(loaded)
    for run in loaded:
        stretched = [METRICS[name].title for name in run.metrics if "align" in METRICS[name].settings]
        if stretched and (count := sum(edit.reshaped for edit in run.edits.values())):
            sentences.append(
                f"{run.label}: {count} of {len(run.edits)} images came back with another aspect ratio and "
                f"are stretched to the target's size for {', '.join(stretched)}."
            )
        if unanswered := run.all_scores.frame.dropna(subset="failed")["id"].nunique():
            calls = [call["command"] for call in run.about.get("invocations", []) if call.get("command")]
            advice = f"Retry with: {shlex.join(['nein', *calls[-1]])}" if calls else "Give the command again."
            sentences.append(f"{run.label}: {unanswered} samples lack the answer of an endpoint. {advice}")
    return sentences


def _note_idle_remedies(loaded: Sequence[RunDir]) -> Iterator[str]:
    """Yields a sentence for each run whose remedy changed requests, but no image."""
    from nein.models.remedies.editors import AFFIRMED, AS_IT_IS

    edits = {run.label: run.edits for run in loaded}
    for run in loaded:
        mend = run.about["identity"].get("mend")
        plain = f"{run.name.rpartition('+')[0]}/{run.track}"  # the run without the remedy
        if not mend or plain not in edits:
            continue
        changed = [row for row in run.edits.values() if not row.note.startswith((AFFIRMED, AS_IT_IS))]
        digests = [(row.sha256, edits[plain][row.id].sha256) for row in changed if row.id in edits[plain]]
        equal = [with_remedy == without for with_remedy, without in digests if with_remedy and without]
        if equal and all(equal):
            yield (
                f"{run.label}: --mend {mend} did not act: all {len(equal)} images are byte for byte those of "
                f"{plain}. These numbers do not show that the remedy is useless."
            )


#: With fewer source images, the interval of an unbounded mean is too short: docs/explanation/statistics.md.
MIN_CLUSTERS = 30


def note_few_clusters(results: Sequence[frames.Figure]) -> Iterator[str]:
    """Yields a sentence if means of unbounded values come from few source images."""
    means = [row for row in results if METRICS[row["metric"]].span is None and row["metric"] != "fid"]
    if few := [row for row in means if row["low"] is not None and row["clusters"] < MIN_CLUSTERS]:
        names = ", ".join(dict.fromkeys(METRICS[row["metric"]].title for row in few))
        yield (
            f"{names}: intervals from {int(min(row['clusters'] for row in few))} source images. With skewed "
            "values, such intervals (Student's t) cover about 90 %, not 95 %."
        )


def _explain_losses(name: str, rows: Sequence[frames.Figure]) -> Iterator[str]:
    """Yields why samples are unscored: for failed edits, for refused ones, for further samples by metric."""
    reasons = {row["metric"]: frames.read_reasons(row) for row in rows}  # metric -> reason -> count
    total = max(row["n"] + row["unscored"] for row in rows)
    failed = 0
    for prefix, event in {NOT_EDITED: "failed", DECLINED: "were refused by the editor"}.items():
        count = 0  # of such edits, by the metric that has most of them
        examples = list[str]()
        for counts in reasons.values():
            matching = [reason for reason in counts if reason.startswith(prefix)]
            count = max(count, sum(counts[reason] for reason in matching))
            examples += matching
        if count:
            example = examples[0].removeprefix(prefix)
            yield f"{name}: {count} of {total} edits {event}, for instance: {example}"
            failed += count
    for row in (row for row in rows if row["unscored"] > failed):
        counts = reasons[row["metric"]]
        others = [reason for reason in counts if not reason.startswith((NOT_EDITED, DECLINED))]
        causes = "; ".join(f"{counts[reason]} × {reason}" for reason in others[:3])
        part = f"{row['unscored'] - failed}{' more' if failed else ''} of {total}"
        title = METRICS[row["metric"]].title
        yield f"{name}: {part} are unscored in {title}{f': {causes}' if causes else ''}"


# --- cards of samples ----------------------------------------------------------------------
#: Entries of a judge's evidence that the page shows; evidence.js formats them.
EVIDENCE = ("answer", "p_yes", "p_no", "score", "threshold", "before", "after", "question")


def make_browser(loaded: Sequence[RunDir], options: ReportConfig) -> Part:
    """The browser of samples; without the data set, the images of samples and targets are missing."""
    note = ""
    try:
        dataset = nein_data.reload(loaded[0].about["data"], options.data, options.split)
        records = {sample.id: sample for sample in dataset.samples}
    except (UserError, KeyError) as error:
        if options.data:
            raise
        records, note = {}, f"Images of samples and targets are missing: {error} Pass --data."
    metrics = [name for name in METRICS if any(name in run.metrics for run in loaded)]
    track = "negative" if any(run.track == "negative" for run in loaded) else loaded[0].track
    return cards.make_browser(
        cards.Samples(
            [cards.Member(run.label, (run.name, run.track), run.track == track) for run in loaded],
            [_make_measure(METRICS[name]) for name in metrics],
            chosen="removal_vqa" if "removal_vqa" in metrics else "",
            rivals=("removal_vqa", "removal_ovd", "Judges disagree"),
            spread="Editors disagree",
            words=("samples", "Run", "Metric"),
            columns=("metric", "value", "reason", "evidence"),
            boxes="removal_ovd" in metrics,
        ),
        lambda: make_cards(loaded, records, metrics, options.thumbnails),
        note=note,
        out=options.out.with_suffix(".html"),
        budget=options.embed * 2**20,
        scripts=[Path(__file__).with_name("evidence.js")],
    )


def make_cards(
    loaded: Sequence[RunDir], records: Mapping[str, nein_data.Sample], metrics: Sequence[str], side: int
) -> Iterator[cards.Card]:
    """A card per sample. records: id -> sample, if the data are here; side: of images in pixels, or 0."""
    names = list(dict.fromkeys(name for run in loaded for name in run.edits))
    image_sources = (_list_image_sources(loaded, records.get(name), name) for name in names)
    values = [[run.values(metric) for metric in metrics] for run in loaded]  # [run][metric][sample]
    # A card shows the instruction of the first run that has the sample, preferably a negative one.
    by_track = sorted(loaded, key=lambda run: run.track != "negative")
    no_image: Thumbnail = {"none": "no pictures in this report"}
    for name, thumbnails in zip(names, cards.read_thumbnails(image_sources, side), strict=True):
        edit_thumbnails = thumbnails[2:] or [no_image] * len(loaded)
        edit = next(run.edits[name] for run in by_track if name in run.edits)
        sample = records.get(name)
        caption = f" · caption: {sample.caption}" if sample else ""
        template = None if edit.template is None else TEMPLATES[edit.template]
        facets = {"Object": edit.object, "Family": edit.family, "Instruction": template}
        card_values, replies = [], []  # of each run
        for run, run_values, thumbnail in zip(loaded, values, edit_thumbnails, strict=True):
            excuse = "no removal asked" if name in run.edits else "not in this run"
            card_values.append([_round_value(of_metric.get(name, excuse)) for of_metric in run_values])
            replies.append(_make_reply(run, thumbnail, name, metrics))
        yield cards.Card(
            name,
            edit.instruction,
            f"source image {edit.source_id} · object: {edit.object}{caption}",
            facets={key: [entry] for key, entry in facets.items() if entry},
            values=card_values,
            pictures=[*zip(("sample", "target"), thumbnails[:2], strict=False)],
            said=replies,
        )


def _list_image_sources(
    loaded: Sequence[RunDir], sample: nein_data.Sample | None, name: str
) -> list[cards.Source]:
    """The images of a sample: input, target, then the edit of each run."""
    sources: list[cards.Source] = [{"none": "not at hand"}] * 2
    if sample is not None:
        sources = [str(sample.sample_path), str(sample.source_path)]
    for run in loaded:
        edit = run.edits.get(name)
        if edit is None or edit.image is None:
            sources.append({"none": edit.why_not if edit else "not in this run"})
        else:
            sources.append(str(run.image_path(edit)))
    return sources


def _make_reply(run: RunDir, thumbnail: Thumbnail, name: str, metrics: Sequence[str]) -> cards.CardReply:
    """A run's edit on a card. A row per score: index of the metric, value, reason, evidence."""
    edit = run.edits.get(name)
    if edit is None:
        return cards.CardReply(thumbnail)
    seed = "" if edit.seed is None else f"seed {edit.seed}"
    facts = [edit.instruction, seed, edit.why_not if edit.error else "", edit.note]
    rows, boxes = [], []
    for row in run.replies(name):
        if row.detail.get("box") and row.detail["score"] > row.detail["threshold"]:
            boxes.append((f"{edit.object} {row.detail['score']:.2f}", *row.detail["box"]))
        cells: list[Any] = [metrics.index(row.metric), row.value]
        if row.reason or row.detail:
            cells.append(row.reason)
        if row.detail:
            cells.append({key: row.detail[key] for key in EVIDENCE if key in row.detail})
        rows.append(cells)
    if isinstance(thumbnail, dict):  # no image that boxes could be drawn on
        boxes = []
    size = images.read_size(run.image_path(edit)) if boxes else ()
    line = " · ".join(fact for fact in facts if fact)
    return cards.CardReply(thumbnail, size, boxes, line=line, rows=rows)


def _make_measure(metric: Metric) -> cards.Measure:
    badge = (REMOVAL_JUDGES[metric.name], "removed", "still there") if metric.name in REMOVAL_JUDGES else None
    digits = 2 if metric.scale == 1 else 1
    return cards.Measure(metric.name, metric.title, metric.higher_is_better, metric.scale, digits, badge)


def _round_value(value: float | str | None) -> float | int | str | None:
    """The value with five digits, which are enough to sort and show; a whole number as int."""
    if value is None or isinstance(value, str):
        return value
    number = float(f"{value:.5g}")
    return int(number) if number.is_integer() else number
