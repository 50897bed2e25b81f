"""`nein mend MODEL`: which remedies help one model, what they cost, and what they break.

It runs the command of the model's benchmark with `--mend` on a few samples, and compares each remedy with the
unchanged model, sample by sample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nein import editors
from nein.benchmarks import compare, registry
from nein.benchmarks.mend_config import KINDS, Kind, MendConfig, find_kind, make_command
from nein.engine.folder import Folder
from nein.engine.run import Executor
from nein.loading.errors import UserError
from nein.loading.references import is_served
from nein.loading.service import price as price_of
from nein.metrics import METRICS
from nein.models import editor_choice, references
from nein.models.remedies import answers, encoders
from nein.models.remedies import editors as edits
from nein.reporting import figures as frames
from nein.reporting import tables
from nein.reporting.figures import Figure
from nein.reporting.page import Page, Section, headline, places, write
from nein.reporting.tables import Column, Row, Table

SIGNIFICANT = 0.05  #: a change counts if its p, corrected by Holm, is below
#: Metrics that a remedy is meant to change under denials.
REMOVAL = ("removal", "auc_removal", "clip_t")


def run(config: MendConfig, executor: Executor) -> str | int | None:
    """The command. Raises UserError for a model without a remedy, or of unknown kind."""
    kind = KINDS[find_kind(config)]
    benchmark, arms = registry.get(kind.benchmark), config.mend or list_applicable(config)
    if not arms:
        raise UserError(f"No remedy applies to '{config.model}' without another model; pass --mend REMEDY.")
    # A local model is loaded once for all remedies; a served one is called per remedy, to count its requests.
    calls = [[], *([arm] for arm in arms)] if is_served(references.split_label(config.model)[1]) else [arms]
    for remedies in calls:
        benchmark(make_command(config, remedies), executor)
    if not executor.concludes:
        return None
    inner = make_command(config, arms)
    folders: dict[str, list[Any]] = {}  # remedy, "" without -> its runs
    for model_run in benchmark.runs(inner, executor.device):
        folders.setdefault(model_run.identity.get("mend", ""), []).append(model_run.folder)
    rows = compare.correct_p([*compare_remedies(kind, folders)], "metric")
    for row in rows:
        row["what"] = f"{_title(row['metric'])}, {'told' if row['variant'] in kind.told else row['variant']}"
    judged = judge_remedies(kind, rows, arms)
    paid = [
        row
        for arm, arm_folders in folders.items()
        for row in estimate_costs(config.model, arm or "as it is", arm_folders)
    ]
    figures = frames.frame([*paid, *rows, *judged], benchmark=kind.benchmark)
    sections = [Section("remedies", "Remedies", [REMEDIES, CHANGES])]
    page = Page(f"Remedies for {config.model}", findings=[recommend(judged, rows)], sections=sections)
    out = inner.out_dir / "mend"
    names = places(out, write(out, figures, page, ("md", "csv")), 0)[:1]
    return headline(figures, [REMEDIES], [*page.findings, REMEDIES.note], [*names, f"In {out}"])


def list_applicable(config: MendConfig) -> list[str]:
    """The remedies that apply to the model without another model, the cheapest first."""
    kind, name = find_kind(config), references.split_label(config.model)[1]
    if kind == "editor":
        row = editor_choice.choose_editor(config.model, config.preset, {}).row
        return [arm for arm, needs in edits.BY_RULE.items() if not needs or editors.can(row, needs)]
    if kind == "encoder":
        return [*encoders.ARMS]
    from nein.benchmarks.negvqa.runs import find_answerer

    by_probability = "logprob" in find_answerer(name, make_command(config, [])).scorings
    return [arm for arm in answers.REMEDIES if by_probability or arm not in answers.IN_PAIRS]


def compare_remedies(kind: Kind, folders: Mapping[str, Sequence[Any]]) -> Iterator[Figure]:
    """The comparisons of every remedy ("first") with the unchanged model; `model` is the remedy."""
    benchmark = registry.get(kind.benchmark)
    for arm in filter(None, folders):
        finished = benchmark.load_finished([folder.path for folder in (*folders[arm], *folders[""])])
        sides = benchmark.sides(finished, None)
        names = {entry.folder.path: entry.name for entry in finished}
        for folder, plain in zip(folders[arm], folders[""], strict=True):
            place = folder.path.name  # a track, or a data set
            data = f" ({place})" if len(folders[""]) > 1 and kind.benchmark != "nein" else ""
            for row in compare.compare_runs(sides, [(names[folder.path], names[plain.path])]):
                variant = row.get("variant") or place  # FID has none
                yield {**row, "variant": variant, "metric": row["metric"] + data, "model": arm}


def estimate_costs(model: str, arm: str, folders: Sequence[Folder]) -> Iterator[Figure]:
    """Seconds of the model's stages, without judges; for a served model also requests and dollars."""
    labels: Figure = {"task": "costs", "model": arm}
    stages = [cost for folder in folders for stage, cost in folder.sum_costs().items() if stage != "score"]
    yield frames.number(sum(cost["seconds"] for cost in stages), unit="", metric="seconds", **labels)
    reference = references.split_label(model)[1]
    if not is_served(reference):
        return
    address, name = editors.split_address(reference)
    usage: dict[str, Any] = {}  # requests and tokens over all runs
    for key, record in (item for folder in folders for item in folder.manifest()["usage"].items()):
        usage = edits.add_usage(usage, record) if key.startswith(("editor-", "model-")) else usage
    price = price_of(name, {key: n for key, n in usage.items() if isinstance(n, int)}, address)
    yield frames.number(usage.get("requests", 0), unit="count", metric="requests", **labels)
    yield frames.number(None if price is None else float(price), unit="", metric="dollars", **labels)


def judge_remedies(kind: Kind, rows: Sequence[Figure], arms: Sequence[str]) -> list[Figure]:
    """A row per remedy: whether it closes the gap by every judge, and what gets worse."""
    rows_made = []
    for arm in arms:
        changes = [row for row in rows if row["model"] == arm and row["statistic"] == "difference"]
        gaps = [row["value"] for row in changes if row["variant"] == "gap" and _is_significant(row)]
        by_all = 0 < len(gaps) == sum(row["variant"] == "gap" for row in changes)
        worse = [row["what"] for row in changes if _is_worse(kind, row)]
        if not any(row["value"] for row in changes):
            verdict = "did not act" if kind.benchmark == "nein" else "changes no score"
        elif by_all and (max(gaps) < 0 or min(gaps) > 0):
            verdict = "closes the gap" if max(gaps) < 0 else "widens the gap"
        else:
            verdict = "no clear gain"
        good = "yes" if verdict == "closes the gap" and not worse else ""
        if worse:
            verdict += f"; worse: {'; '.join(worse[:2])}"
            verdict += f" and {len(worse) - 2} more" if len(worse) > 2 else ""
        rows_made.append({"task": "verdict", "model": arm, "verdict": verdict, "good": good})
    return rows_made


def _is_significant(row: Figure) -> bool:
    """Whether a change is significant after Holm's correction."""
    return row["p_holm"] is not None and row["p_holm"] < SIGNIFICANT


def _is_worse(kind: Kind, row: Figure) -> bool:
    """Whether something that a remedy should leave unchanged gets worse."""
    metric = METRICS.get(row["metric"])
    is_side_effect = metric is not None and row["variant"] != "gap" and not metric.name.startswith(REMOVAL)
    fell = (row["value"] or 0) * (1 if metric is None or metric.higher_is_better else -1) < 0
    return fell and _is_significant(row) and (is_side_effect or row["variant"] in kind.told)


def recommend(judged: Sequence[Figure], rows: Sequence[Figure]) -> str:
    """A sentence that recommends the remedy with the smallest gap among those that make nothing worse."""
    good = {row["model"] for row in judged if row["good"]}
    gaps = [row for row in rows if row["variant"] == "gap" and row["statistic"] == "difference"]
    before = next((row for row in rows if row["variant"] == "gap" and row["statistic"] == "second"), None)
    start = "Without a gap to close. "
    if before is not None:
        gap = tables.number(before["value"], "points")
        start = (
            f"Without a remedy the gap is {gap} points ({_title(before['metric'])}, {gaps[0]['n']} samples). "
        )
    first = [row for row in gaps if row["metric"] == gaps[0]["metric"] and row["model"] in good]
    if not first:
        return f"{start}Recommended: none; no remedy closes the gap significantly and makes nothing worse."
    best = min(first, key=lambda row: row["value"])
    change = f"changes the gap by {tables.text(best)} points"
    return f"{start}Recommended: {best['model']}, which {change} and makes nothing worse."


def _title(metric: str) -> str:
    return METRICS[metric].title if metric in METRICS else metric


_GAP = {"variant": "gap", "statistic": "difference"}
REMEDIES = Table(
    "remedies",
    "Remedies against the unchanged model",
    (Row("model", "remedy"),),
    (
        Column(by="metric", where=_GAP, names=lambda name: f"gap: {_title(name)}"),
        Column("seconds", {"metric": "seconds"}, tables.value(1)),
        Column("requests", {"metric": "requests"}, tables.value()),
        Column("dollars", {"metric": "dollars"}, tables.value(2)),
        Column("verdict", {"task": "verdict"}, tables.entry("verdict")),
    ),
    {},
    "Gap: score on affirmative inputs minus score on negated ones; here its change by the remedy, in points. "
    "Closes, worse: p below 0.05 after Holm's correction over the remedies. Seconds: without judges.",
)
CHANGES = dataclasses.replace(
    compare.COMPARISONS,
    key="changes",
    title="A: with the remedy, B: as it is",
    rows=(Row("model", "remedy"), Row("what")),
    where={"task": "comparisons"},
    note="",
)
