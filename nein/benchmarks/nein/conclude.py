"""The canonical files of a run, written once all blocks are there: edits, scores, figures of the whole."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from metrics import METRICS
from nein.benchmarks.nein import corpus
from nein.benchmarks.nein.plan import Plan
from nein.benchmarks.nein.runs import AGAIN, EDIT, RunDir, scores_of
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import Row

log = logging.getLogger(__name__)


def write(run: RunDir, plan: Plan, wanted: Sequence[str], protocol: str) -> dict[str, Any]:
    """Writes edits.jsonl and, if any metric is `wanted`, scores.jsonl and corpus.json; returns counts."""
    counts: dict[str, Any] = {"selected": len(plan.selected), "edited": 0, "edit_errors": 0}
    atomic.write_lines(run.path / "edits.jsonl", _edits(run, plan, counts))
    if wanted:
        counts["unscored"], counts["unanswered"] = _write_scores(run, plan, wanted, protocol)
    return counts


def whole_metrics(run: RunDir, plan: Plan) -> list[str]:
    """The metrics that are there for the whole selection, by this or an earlier command."""
    needed = set(plan.blocks.numbers)
    begun = run.metrics()
    return [name for name in METRICS if name in begun and needed <= run.done(scores_of(name))]


def _edits(run: RunDir, plan: Plan, counts: dict[str, Any]) -> Iterator[Row]:
    for row in run.selected(EDIT, plan.blocks, lambda index: plan.dataset.samples[index].id):
        counts["edited" if row["image"] is not None else "edit_errors"] += 1
        yield row


def _write_scores(
    run: RunDir, plan: Plan, wanted: Sequence[str], protocol: str
) -> tuple[dict[str, int], int]:
    """Writes scores.jsonl and corpus.json; returns how many samples each metric leaves unscored, and how many
    samples an endpoint did not answer about.

    Every metric that is there for the whole selection is written, also one that an earlier command computed;
    one that is there for a part of it is left out, with a warning.
    Raises UserError when one of `wanted` is not there for every selected sample.
    """
    names = whole_metrics(run, plan)
    missing = [name for name in wanted if name not in names]
    if missing:
        raise UserError(
            f"'{run.path}' lacks {', '.join(missing)} for some samples; "
            "give the same command again to score them."
        )
    partial = [name for name in run.metrics() if name not in names and run.done(scores_of(name))]
    if partial:
        log.warning(
            "%s: %s scored on a smaller selection only, and left out; add to --metrics to complete",
            run.label,
            ", ".join(partial),
        )
    reasons: dict[str, list[str]] = {name: [] for name in names}
    silent: set[str] = set()
    atomic.write_lines(run.path / "scores.jsonl", _scores(run, plan, names, reasons, silent))
    figures = {
        name: corpus.figure(name, run, plan, protocol, reasons[name])
        for name in names
        if METRICS[name].kind == "corpus"
    }
    atomic.write_json(run.path / "corpus.json", figures)
    return {name: len(reasons[name]) for name in names}, len(silent)


def _scores(
    run: RunDir, plan: Plan, names: Sequence[str], reasons: dict[str, list[str]], silent: set[str]
) -> Iterator[Row]:
    """A line per selected sample and metric, in data order; why samples are unscored goes to `reasons`, those
    that an endpoint did not answer about to `silent`."""
    selected = {sample.id for sample in plan.selection()}
    for number in plan.blocks.numbers:
        columns = [run.read(scores_of(name), number) for name in names]
        for rows in zip(*columns, strict=True):
            for name, row in zip(names, rows, strict=True):
                if row["id"] not in selected:
                    continue
                if row["value"] is None and row["reason"]:  # a row of a corpus metric has neither
                    reasons[name].append(row["reason"])
                if row.get(AGAIN):
                    silent.add(row["id"])
                if METRICS[name].kind != "corpus":
                    yield {"id": row["id"], "metric": name, **{k: v for k, v in row.items() if k != "id"}}
