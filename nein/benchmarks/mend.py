"""`nein mend MODEL`: which remedies help one model, what they cost, and what they break.

It gives the command of the model's benchmark with `--mend`, on few samples, and compares each remedy with the
model as it is, sample by sample.
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

#: A change is none by chance where Holm's p is below this.
SIGNIFICANT = 0.05
#: Metrics that a remedy should change where a thing is denied.
REMOVAL = ("removal", "auc_removal", "clip_t")


def run(config: MendConfig, executor: Executor) -> str | int | None:
    """Raises UserError for a model that no remedy can act on, or whose kind is not known."""
    kind = KINDS[find_kind(config)]
    benchmark, arms = registry.get(kind.benchmark), config.mend or list_applicable(config)
    if not arms:
        raise UserError(f"No remedy that needs no other model can act on '{config.model}'.")
    # A model here is loaded once for all; of one behind an address the requests of each remedy are counted.
    calls = [[], *([arm] for arm in arms)] if is_served(references.split_label(config.model)[1]) else [arms]
    for some in calls:
        benchmark(make_command(config, some), executor)
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
        row for arm, some in folders.items() for row in estimate_costs(config.model, arm or "as it is", some)
    ]
    figures = frames.frame([*paid, *rows, *judged], benchmark=kind.benchmark)
    sections = [Section("remedies", "Remedies", [REMEDIES, CHANGES])]
    page = Page(f"Remedies for {config.model}", findings=[recommend(judged, rows)], sections=sections)
    out = inner.out_dir / "mend"
    names = places(out, write(out, figures, page, ("md", "csv")), 0)[:1]
    return headline(figures, [REMEDIES], [*page.findings, REMEDIES.note], [*names, f"In {out}"])


def list_applicable(config: MendConfig) -> list[str]:
    """The remedies that can act on the model and need no other one, the cheapest first."""
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
    """The comparisons of every remedy ("first") with the model as it is; `model` is the remedy."""
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
    """Seconds of the model's stages, without judges; of a model behind an address requests and dollars."""
    labels: Figure = {"task": "costs", "model": arm}
    stages = [cost for folder in folders for stage, cost in folder.costs().items() if stage != "score"]
    yield frames.number(sum(cost["seconds"] for cost in stages), unit="", metric="seconds", **labels)
    reference = references.split_label(model)[1]
    if not is_served(reference):
        return
    address, name = editors.split_address(reference)
    usage: dict[str, Any] = {}
    for key, record in (item for folder in folders for item in folder.manifest()["usage"].items()):
        usage = edits.add_usage(usage, record) if key.startswith(("editor-", "model-")) else usage
    price = price_of(name, {key: n for key, n in usage.items() if isinstance(n, int)}, address)
    yield frames.number(usage.get("requests", 0), unit="count", metric="requests", **labels)
    yield frames.number(None if price is None else float(price), unit="", metric="dollars", **labels)


def judge_remedies(kind: Kind, rows: Sequence[Figure], arms: Sequence[str]) -> list[Figure]:
    """A row of every remedy: whether it closes the gap, by every judge, and what gets worse."""
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
    """Never with so few images that no p could be small."""
    return row["p_holm"] is not None and row["p_holm"] < SIGNIFICANT


def _is_worse(kind: Kind, row: Figure) -> bool:
    """Whether a change is for the worse, of something that a remedy should leave as it is."""
    metric = METRICS.get(row["metric"])
    kept = metric is not None and row["variant"] != "gap" and not metric.name.startswith(REMOVAL)
    fell = (row["value"] or 0) * (1 if metric is None or metric.higher_is_better else -1) < 0
    return fell and _is_significant(row) and (kept or row["variant"] in kind.told)


def recommend(judged: Sequence[Figure], rows: Sequence[Figure]) -> str:
    """The remedy that closes the gap most of those that break nothing, in a sentence."""
    good = {row["model"] for row in judged if row["good"]}
    gaps = [row for row in rows if row["variant"] == "gap" and row["statistic"] == "difference"]
    before = next((row for row in rows if row["variant"] == "gap" and row["statistic"] == "second"), None)
    start = "Without a gap to close. "
    if before is not None:
        gap = tables.number(before["value"], "points")
        start = f"As it is, the gap is {gap} points ({_title(before['metric'])}, {gaps[0]['n']} samples). "
    first = [row for row in gaps if row["metric"] == gaps[0]["metric"] and row["model"] in good]
    if not first:
        return f"{start}Recommended: none; no remedy closes the gap beyond chance and makes nothing worse."
    best = min(first, key=lambda row: row["value"])
    change = f"changes the gap by {tables.text(best)} points"
    return f"{start}Recommended: {best['model']}, which {change} and makes nothing worse."


def _title(metric: str) -> str:
    return METRICS[metric].title if metric in METRICS else metric


_GAP = {"variant": "gap", "statistic": "difference"}
REMEDIES = Table(
    "remedies",
    "Remedies beside the model as it is",
    (Row("model", "remedy"),),
    (
        Column(by="metric", where=_GAP, names=lambda name: f"gap: {_title(name)}"),
        Column("seconds", {"metric": "seconds"}, tables.value(1)),
        Column("requests", {"metric": "requests"}, tables.value()),
        Column("dollars", {"metric": "dollars"}, tables.value(2)),
        Column("verdict", {"task": "verdict"}, tables.entry("verdict")),
    ),
    {},
    "Gap: what is reached when a thing is told minus when it is denied; here its change, in points. Closes, "
    "worse: p below 0.05 after Holm, over the remedies. Seconds without judges.",
)
CHANGES = dataclasses.replace(
    compare.COMPARISONS,
    key="changes",
    title="A: with the remedy, B: as it is",
    rows=(Row("model", "remedy"), Row("what")),
    where={"task": "comparisons"},
    note="",
)
