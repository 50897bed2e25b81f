"""Ends the score stage of a run: canonical scores, the corpus figures, and the status."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from metrics import METRICS, MetricError
from nein.benchmarks.nein.plan import Plan
from nein.benchmarks.nein.runs import RunDir, identity_hash
from nein.engine import atomic
from nein.engine.errors import UserError

log = logging.getLogger(__name__)

Rows = dict[str, dict[str, dict[str, Any]]]


def pending_scores(run: RunDir, plan: Plan, wanted: Sequence[str]) -> dict[int, list[str]]:
    """Block -> metrics of `wanted` that the block still lacks."""
    done = run.scores()
    lacking = {block: [m for m in wanted if m not in done.get(block, {})] for block in plan.blocks}
    return {block: names for block, names in lacking.items() if names}


def finish_scores(run: RunDir, plan: Plan, wanted: Sequence[str], protocol: str) -> dict[str, Any]:
    """Writes scores.jsonl and corpus.json of a run; returns counts. For the main process.

    Every metric that is there for the whole selection is written, also one that an earlier command computed;
    one that is there for a part of it is left out, with a warning.
    Raises UserError when one of `wanted` is not there for every selected sample.
    """
    selection = plan.selection()
    rows: Rows = {}
    for metrics in run.scores().values():
        for metric, found in metrics.items():
            rows.setdefault(metric, {}).update(found)
    whole = [name for name in METRICS if all(sample.id in rows.get(name, {}) for sample in selection)]
    missing = [name for name in wanted if name not in whole]
    if missing:
        raise UserError(
            f"'{run.path}' lacks {', '.join(missing)} for some samples; "
            "run the same command again to score them."
        )
    partial = [name for name in METRICS if name in rows and name not in whole]
    if partial:
        log.warning(
            "%s: %s scored on a smaller selection only, and left out; add to --metrics to complete",
            run.label,
            ", ".join(partial),
        )
    run.write_scores(selection, [name for name in whole if METRICS[name].kind != "corpus"], rows)
    corpus = {
        name: _corpus_once(name, run, plan, rows[name], protocol)
        for name in whole
        if METRICS[name].kind == "corpus"
    }
    atomic.write_json(run.path / "corpus.json", corpus)
    return {name: sum(_is_unscored(rows[name][sample.id]) for sample in selection) for name in whole}


def _corpus_once(
    name: str, run: RunDir, plan: Plan, rows: Mapping[str, Mapping[str, Any]], protocol: str
) -> dict[str, Any]:
    """`corpus_figure`, or what corpus.json already says about the same samples: an interval takes minutes."""
    seal = identity_hash(
        {
            "samples": [sample.id for sample in plan.selection()],
            "identity": (run.manifest() or {})["score_identity"][name],
        }
    )
    path = run.path / "corpus.json"
    if path.exists() and (known := atomic.read_json(path).get(name, {})).get("seal") == seal:
        return known
    return {**corpus_figure(name, run, plan, rows, protocol), "seal": seal}


def corpus_figure(
    name: str, run: RunDir, plan: Plan, rows: Mapping[str, Mapping[str, Any]], protocol: str
) -> dict[str, Any]:
    """FID, say, of the selection, in the form of a summary's entry.

    protocol  "paper": against every target once, as a folder of the COCO images would be; "fixed": against
              the target of every sample, so that both sets weigh the scenes alike.
    """
    distance = METRICS[name].corpus
    assert distance is not None, name
    wanted = {sample.id: sample.source_id for sample in plan.selection()}
    edited, target, clusters, keys = [], [], [], []
    for block in plan.blocks:
        with safetensors.safe_open(run.feature_path(block), framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in ("edited", "target")}
            about = file.metadata() or {}
        ids = [name for name in about.get("ids", "").split("\n") if name]
        targets = about.get("target_keys", "").split(",")
        for index, sample_id in enumerate(ids):
            if sample_id in wanted:
                edited.append(tensors["edited"][index])
                target.append(tensors["target"][index])
                clusters.append(wanted[sample_id])
                keys.append(targets[index])
    unscored = len(wanted) - len(edited)
    reasons = [rows[sample_id]["reason"] for sample_id in wanted if rows[sample_id]["reason"]]
    entry: dict[str, Any] = {"value": None, "low": None, "high": None, "standard_error": None}
    entry |= {"n": len(edited), "n_unscored": unscored, "reasons": _commonest(reasons)}
    once = list({key: index for index, key in reversed(list(enumerate(keys)))}.values())[::-1]
    chosen = once if protocol == "paper" else list(range(len(keys)))
    entry |= {"n_target": len(chosen), "reference": "unique targets" if protocol == "paper" else "per sample"}
    if len(edited) < 2 or len(chosen) < 2:
        return {**entry, "reasons": entry["reasons"] or {"fewer than two images": 1}}
    try:
        found = distance(
            np.stack(edited),
            np.stack([target[index] for index in chosen]),
            clusters,
            [clusters[index] for index in chosen],
        )
    except MetricError as error:
        return {**entry, "n": 0, "n_unscored": len(wanted), "reasons": {str(error): 1}}
    return {
        **entry,
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "standard_error": found.standard_error,
        "clusters": len(set(clusters)),
    }


def begun(run: RunDir) -> list[str]:
    """The metrics a run has begun, by this or an earlier command."""
    return list((run.manifest() or {}).get("score_identity", {}))


def _is_unscored(row: Mapping[str, Any]) -> bool:
    return row["value"] is None and row["reason"] != ""  # a row of a corpus metric has neither


def _commonest(reasons: Sequence[str]) -> dict[str, int]:
    counts = {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}
    return dict(sorted(counts.items(), key=lambda pair: -pair[1])[:5])
