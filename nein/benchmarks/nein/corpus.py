"""What samples add to a metric of the whole (FID), as a run keeps it, and the figure of a selection."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors

from nein.benchmarks.nein.records import Records
from nein.benchmarks.nein.runs import RunDir, identity_hash, scores_of
from nein.engine.errors import UserError
from nein.metrics import METRICS, MetricError

if TYPE_CHECKING:
    from nein.metrics.fid import FidInterval


@dataclass(frozen=True)
class Features:
    """The scored samples of a run, in data order: (N, D) float32, pixel hashes of targets, source images."""

    ids: list[str]
    edited: np.ndarray
    target: np.ndarray
    target_keys: list[str]
    source_ids: list[str]

    def unique_targets(self) -> list[int]:
        """The first row of every distinct target: the reference set of the paper's protocol."""
        first: dict[str, int] = {}
        for index, key in enumerate(self.target_keys):
            first.setdefault(key, index)
        return list(first.values())


def read(run: Records, metric: str = "fid") -> Features | None:
    """The features of the samples of a run; None without any."""
    done = run.run.done(scores_of(metric))
    ids: list[str] = []
    edited, target, keys = [], [], []
    for number in (number for number in run.run.selection().numbers if number in done):
        tensors, about = _block(run.run, metric, number)
        for index, (name, key) in enumerate(zip(about["ids"], about["target_keys"], strict=True)):
            if name in run.sources:
                ids.append(name)
                edited.append(tensors["edited"][index])
                target.append(tensors["target"][index])
                keys.append(key)
    if not ids:
        return None
    return Features(ids, np.stack(edited), np.stack(target), keys, [run.sources[name] for name in ids])


def figure(metric: str, run: Records) -> dict[str, Any]:
    """The metric of the selection, an entry of corpus.json; the one there for the same features, since an
    interval takes minutes. Protocol "paper": against every target once; "fixed": against that of every
    sample, so that both sets weigh the scenes alike."""
    protocol = run.manifest["config"]["protocol"]
    folder, blocks = run.run, run.run.selection()
    rows = (row for number in blocks.numbers for row in folder.chosen(scores_of(metric), number, blocks))
    reasons = [row["reason"] for row in rows if row["reason"]]
    seal = identity_hash({
        "samples": [edit["id"] for edit in run.edits], "identity": folder.metrics()[metric],
        "features": [_block(folder, metric, number)[1] for number in blocks.numbers], "reasons": reasons,
    })  # fmt: skip
    if (earlier := folder.read_corpus().get(metric, {})).get("seal") == seal:
        return dict(earlier)
    features = read(run, metric)
    n, paper = len(features.ids) if features is not None else 0, protocol == "paper"
    entry: dict[str, Any] = {"value": None, "low": None, "high": None, "standard_error": None, "seal": seal}
    entry |= {"n": n, "n_unscored": len(run.edits) - n, "reasons": dict(Counter(reasons).most_common(5))}
    chosen = features.unique_targets() if features is not None and paper else list(range(n))
    entry |= {"n_target": len(chosen), "reference": "unique targets" if paper else "per sample"}
    if features is None or min(n, len(chosen)) < 2:
        return {**entry, "reasons": entry["reasons"] or {"fewer than two images": 1}}
    distance, sources = METRICS[metric].corpus, features.source_ids
    assert distance is not None, metric
    try:
        made = distance(features.edited, features.target[chosen], sources, [sources[i] for i in chosen])
    except MetricError as error:
        return {**entry, "n": 0, "n_unscored": len(run.edits), "reasons": {str(error): 1}}
    ends = {name: getattr(made, name) for name in ("value", "low", "high", "standard_error")}
    return {
        **entry, **ends, "clusters": len(set(sources)), "columns": features.edited.shape[1],
        "left_out": list(made.left_out), "sources": identity_hash({"sources": sorted(set(sources))}),
    }  # fmt: skip


def _block(run: RunDir, metric: str, number: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The features of a block, and of which samples and targets they are. Raises UserError."""
    path = run.feature_path(metric, number)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            tensors = {side: file.get_tensor(side) for side in ("edited", "target")}
            about = json.loads((file.metadata() or {})["about"])
    except (OSError, KeyError, ValueError, safetensors.SafetensorError) as error:
        raise UserError(f"'{path}' is damaged ({error}); remove it, give the same command again.") from None
    if (about.get("block"), about.get("track")) != (number, run.track):
        raise UserError(f"'{path}' belongs to another block; remove it and give the same command again.")
    return tensors, about


def interval_of(entry: Mapping[str, Any]) -> FidInterval:
    """The distance of an entry of corpus.json with the distances it was worked out from."""
    from nein.metrics.fid import FidInterval

    ends = (entry["low"], entry["high"], entry["standard_error"])
    return FidInterval(entry["value"], *ends, tuple(entry["left_out"]))
