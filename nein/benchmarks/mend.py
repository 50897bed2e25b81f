"""`nein mend MODEL`: finds the remedies that help one model, what they cost, and what they make worse.

Runs the model's benchmark command with `--mend` on a few samples, compares each remedy with the unchanged
model, sample by sample, and recommends one. Parts: the command; costs; verdicts; tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nein import editors
from nein.benchmarks import compare, registry
from nein.benchmarks.mend_config import KINDS, Kind, MendConfig, find_kind, make_command
from nein.engine.folder import Folder
from nein.engine.run import Executor
from nein.loading.errors import UserError
from nein.loading.references import is_served
from nein.loading.service import compute_price
from nein.metrics import METRICS
from nein.models import editor_choice, references
from nein.models.remedies import answers, encoders
from nein.models.remedies import editors as editor_remedies
from nein.reporting import figures as frames
from nein.reporting import tables
from nein.reporting.figures import Figure
from nein.reporting.page import Page, Section, format_headline, list_files, write
from nein.reporting.tables import Column, Row, Table


def run(config: MendConfig, executor: Executor) -> str | int | None:
    """The command; returns the text to print. Raises UserError for a model that no remedy fits."""
    kind = KINDS[find_kind(config)]
    benchmark = registry.get(kind.benchmark)
    remedies = config.mend or list_applicable(config)
    if not remedies:
        raise UserError(f"No remedy applies to '{config.model}' without another model; pass --mend REMEDY.")
    # A local model is loaded once for all remedies; a served one is called per remedy, to count its requests.
    groups = [remedies]
    if is_served(references.split_label(config.model)[1]):
        groups = [[], *([remedy] for remedy in remedies)]  # []: the unchanged model
    for group in groups:
        benchmark(make_command(config, group), executor)
    if not executor.concludes:
        return None
    command = make_command(config, remedies)
    folders: dict[str, list[Any]] = {}  # remedy ("": the unchanged model) -> its run folders
    for model_run in benchmark.runs(command, executor.device):
        folders.setdefault(model_run.identity.get("mend", ""), []).append(model_run.folder)
    # Compare, and report.
    rows = compare.correct_p([*compare_remedies(kind, folders)], "metric")
    for row in rows:
        variant = "told" if row["variant"] in kind.affirmative else row["variant"]  # told: without negation
        row["what"] = f"{_title(row['metric'])}, {variant}"
    verdicts = judge_remedies(kind, rows, remedies)
    costs: list[Figure] = []
    for remedy, runs in folders.items():
        costs += estimate_costs(config.model, remedy or "as it is", runs)
    figures = frames.frame([*costs, *rows, *verdicts], benchmark=kind.benchmark)
    sections = [Section("remedies", "Remedies", [REMEDIES, CHANGES])]
    page = Page(f"Remedies for {config.model}", findings=[recommend(verdicts, rows)], sections=sections)
    out = command.out_dir / "mend"
    names = list_files(out, write(out, figures, page, ("md", "csv")), 0)[:1]
    return format_headline(figures, [REMEDIES], [*page.findings, REMEDIES.note], [*names, f"In {out}"])


def list_applicable(config: MendConfig) -> list[str]:
    """The remedies that need no second model and apply to this one, the cheapest first."""
    kind = find_kind(config)
    name = references.split_label(config.model)[1]
    if kind == "editor":
        row = editor_choice.choose_editor(config.model, config.preset, {}).editor
        pairs = editor_remedies.BY_RULE.items()
        return [remedy for remedy, needs in pairs if not needs or editors.supports(row, needs)]
    if kind == "encoder":
        return [*encoders.REMEDIES]
    from nein.benchmarks.negvqa.runs import find_answerer

    has_probabilities = "logprob" in find_answerer(name, make_command(config, [])).scorings
    return [remedy for remedy in answers.REMEDIES if has_probabilities or remedy not in answers.IN_PAIRS]


def compare_remedies(kind: Kind, folders: Mapping[str, Sequence[Any]]) -> Iterator[Figure]:
    """Compares every remedy ("first") with the unchanged model ("second"). `model` in a row is the remedy."""
    benchmark = registry.get(kind.benchmark)
    for remedy in (name for name in folders if name):
        finished = benchmark.load_finished([folder.path for folder in (*folders[remedy], *folders[""])])
        sides = benchmark.sides(finished, None)
        run_names = {run.folder.path: run.name for run in finished}
        for mended, unchanged in zip(folders[remedy], folders[""], strict=True):
            track_or_data = mended.path.name  # track of NeIn, data of another benchmark
            suffix = f" ({track_or_data})" if len(folders[""]) > 1 and kind.benchmark != "nein" else ""
            for row in compare.compare_runs(sides, [(run_names[mended.path], run_names[unchanged.path])]):
                variant = row.get("variant") or track_or_data  # FID has no variant
                yield {**row, "variant": variant, "metric": row["metric"] + suffix, "model": remedy}


# --- costs -----------------------------------------------------------------------------------
def estimate_costs(model: str, remedy: str, folders: Sequence[Folder]) -> Iterator[Figure]:
    """Seconds of the model's stages, without judges; for a served model also requests and dollars."""
    labels: Figure = {"task": "costs", "model": remedy}
    stages = [cost for folder in folders for stage, cost in folder.sum_costs().items() if stage != "score"]
    yield frames.number(sum(cost["seconds"] for cost in stages), unit="", metric="seconds", **labels)
    reference = references.split_label(model)[1]
    if not is_served(reference):
        return
    address, name = editors.split_address(reference)
    usage: dict[str, Any] = {}  # requests and tokens over all runs
    for folder in folders:
        for key, record in folder.manifest()["usage"].items():
            if key.startswith(("editor-", "model-")):
                usage = editor_remedies.add_usage(usage, record)
    price = compute_price(name, {key: n for key, n in usage.items() if isinstance(n, int)}, address)
    yield frames.number(usage.get("requests", 0), unit="count", metric="requests", **labels)
    yield frames.number(None if price is None else float(price), unit="", metric="dollars", **labels)


# --- verdicts --------------------------------------------------------------------------------
SIGNIFICANT = 0.05  # a change counts if its p, corrected by Holm, is below this


def judge_remedies(kind: Kind, rows: Sequence[Figure], remedies: Sequence[str]) -> list[Figure]:
    """A row per remedy: whether it closes the gap by every judge, and what gets worse."""
    verdicts = []
    for remedy in remedies:
        changes = [row for row in rows if row["model"] == remedy and row["statistic"] == "difference"]
        gaps = [row["value"] for row in changes if row["variant"] == "gap" and _is_significant(row)]
        all_significant = bool(gaps) and len(gaps) == sum(row["variant"] == "gap" for row in changes)
        worse = [row["what"] for row in changes if _is_worse(kind, row)]
        if not any(row["value"] for row in changes):
            verdict = "did not act" if kind.benchmark == "nein" else "changes no score"
        elif all_significant and (max(gaps) < 0 or min(gaps) > 0):
            verdict = "closes the gap" if max(gaps) < 0 else "widens the gap"
        else:
            verdict = "no clear gain"
        good = "yes" if verdict == "closes the gap" and not worse else ""
        if worse:
            verdict += f"; worse: {'; '.join(worse[:2])}"
            verdict += f" and {len(worse) - 2} more" if len(worse) > 2 else ""
        verdicts.append({"task": "verdict", "model": remedy, "verdict": verdict, "good": good})
    return verdicts


def _is_significant(row: Figure) -> bool:
    return row["p_holm"] is not None and row["p_holm"] < SIGNIFICANT


#: Prefixes of metrics that a remedy is meant to change under denials.
_INTENDED = ("removal", "auc_removal", "clip_t")


def _is_worse(kind: Kind, row: Figure) -> bool:
    """Whether a remedy makes something significantly worse that it should leave unchanged."""
    metric = METRICS.get(row["metric"])
    is_side_effect = metric is not None and row["variant"] != "gap" and not metric.name.startswith(_INTENDED)
    change = row["value"] or 0
    got_worse = change < 0 if metric is None or metric.higher_is_better else change > 0
    return got_worse and _is_significant(row) and (is_side_effect or row["variant"] in kind.affirmative)


def recommend(verdicts: Sequence[Figure], rows: Sequence[Figure]) -> str:
    """Two sentences: the gap without a remedy; the remedy that lowers it most and makes nothing worse."""
    good = {row["model"] for row in verdicts if row["good"]}
    gaps = [row for row in rows if row["variant"] == "gap"]
    changes = [row for row in gaps if row["statistic"] == "difference"]
    unchanged = next((row for row in gaps if row["statistic"] == "second"), None)
    start = "No gap was measured."  # first sentence
    if unchanged:
        basis = f"{_title(unchanged['metric'])}, {changes[0]['n']} samples"
        gap = tables.format_number(unchanged["value"], "points")
        start = f"Without a remedy the gap is {gap} points ({basis})."
    candidates = [row for row in changes if row["metric"] == changes[0]["metric"] and row["model"] in good]
    if not candidates:
        return f"{start} Recommended: none; no remedy closes the gap significantly and makes nothing worse."
    best = min(candidates, key=lambda row: row["value"])
    change = f"{best['model']}, which changes the gap by {tables.format_estimate(best)} points"
    return f"{start} Recommended: {change} and makes nothing worse."


def _title(metric: str) -> str:
    return METRICS[metric].title if metric in METRICS else metric


# --- tables ----------------------------------------------------------------------------------
_GAP = {"variant": "gap", "statistic": "difference"}
_REMEDY = Row("model", "remedy")
_COLUMNS = (
    Column(by="metric", where=_GAP, names=lambda name: f"gap: {_title(name)}"),
    Column("seconds", {"metric": "seconds"}, tables.value(1)),
    Column("requests", {"metric": "requests"}, tables.value()),
    Column("dollars", {"metric": "dollars"}, tables.value(2)),
    Column("verdict", {"task": "verdict"}, tables.entry("verdict")),
)
_NOTE = (
    "Gap: score on affirmative inputs minus score on negated ones; here its change by the remedy, in points. "
    "Closes, worse: p below 0.05 after Holm's correction over the remedies. Seconds: without judges."
)
REMEDIES = Table("remedies", "Remedies against the unchanged model", (_REMEDY,), _COLUMNS, {}, _NOTE)
_TITLE, _ROWS = "A: with the remedy, B: as it is", (_REMEDY, Row("what"))
CHANGES = Table("changes", _TITLE, _ROWS, compare.COMPARISONS.columns, {"task": "comparisons"})
