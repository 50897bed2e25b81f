"""What samples add to a metric of the whole (FID), as a run keeps it, and the figure of a selection."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
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
    """Rows of the scored samples of a run, in data order.

    edited, target  (N, D) float32.
    target_keys     Pixel hash of every target: equal keys, equal pictures.
    source_ids      The source image of every row.
    """

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
    blocks = [number for number in run.run.selection().numbers if number in run.run.done(scores_of(metric))]
    ids: list[str] = []
    edited, target, keys = [], [], []
    for number in blocks:
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
    """The metric of the selection, or what corpus.json already says about the same features: an interval
    takes minutes. A block that was made again may have other features, and of other samples.

    Of the protocol "paper": against every target once, as a folder of the COCO images would be; "fixed":
    against the target of every sample, so that both sets weigh the scenes alike.
    """
    protocol = run.manifest["config"]["protocol"]
    folder, blocks = run.run, run.run.selection()
    rows = (row for number in blocks.numbers for row in folder.chosen(scores_of(metric), number, blocks))
    reasons = [row["reason"] for row in rows if row["reason"]]
    seal = identity_hash(
        {
            "samples": [edit["id"] for edit in run.edits],
            "identity": folder.metrics()[metric],
            "features": [_content(folder, metric, number) for number in blocks.numbers],
            "reasons": reasons,
        }
    )
    if (earlier := folder.read_corpus().get(metric, {})).get("seal") == seal:
        return dict(earlier)
    return {**_figure(metric, read(run, metric), run, protocol, reasons), "seal": seal}


def _content(run: RunDir, metric: str, number: int) -> dict[str, Any]:
    """Which samples and targets a block has features of, and the hash of those of the edits."""
    return _block(run, metric, number)[1]


def _block(run: RunDir, metric: str, number: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The features of a block, and what its file says of them. Raises UserError for a file that is damaged or
    of another block."""
    path = run.feature_path(metric, number)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            tensors = {side: file.get_tensor(side) for side in ("edited", "target")}
            about = json.loads((file.metadata() or {})["about"])
    except (OSError, KeyError, ValueError, safetensors.SafetensorError) as error:
        raise UserError(
            f"'{path}' is damaged ({error}); remove it and give the same command again."
        ) from None
    if (about.get("block"), about.get("track")) != (number, run.track):
        raise UserError(f"'{path}' belongs to another block; remove it and give the same command again.")
    return tensors, about


def _figure(
    metric: str, features: Features | None, run: Records, protocol: str, reasons: Sequence[str]
) -> dict[str, Any]:
    """An entry of corpus.json."""
    n = len(features.ids) if features is not None else 0
    entry: dict[str, Any] = {"value": None, "low": None, "high": None, "standard_error": None}
    entry |= {"n": n, "n_unscored": len(run.edits) - n, "reasons": dict(Counter(reasons).most_common(5))}
    chosen: list[int] = []
    if features is not None:
        chosen = features.unique_targets() if protocol == "paper" else list(range(n))
    entry |= {"n_target": len(chosen), "reference": "unique targets" if protocol == "paper" else "per sample"}
    if features is None or min(n, len(chosen)) < 2:
        return {**entry, "reasons": entry["reasons"] or {"fewer than two images": 1}}
    distance = METRICS[metric].corpus
    assert distance is not None, metric
    sources = features.source_ids
    try:
        made = distance(features.edited, features.target[chosen], sources, [sources[i] for i in chosen])
    except MetricError as error:
        return {**entry, "n": 0, "n_unscored": len(run.edits), "reasons": {str(error): 1}}
    return {
        **entry,
        "value": made.value,
        "low": made.low,
        "high": made.high,
        "standard_error": made.standard_error,
        "clusters": len(set(sources)),
        "columns": features.edited.shape[1],
        "left_out": list(made.left_out),
        "sources": identity_hash({"sources": sorted(set(sources))}),
    }


def interval_of(entry: Mapping[str, Any]) -> FidInterval:
    """The distance of an entry of corpus.json with the distances it was worked out from."""
    from nein.metrics.fid import FidInterval

    ends = (entry["low"], entry["high"], entry["standard_error"])
    return FidInterval(entry["value"], *ends, tuple(entry["left_out"]))
