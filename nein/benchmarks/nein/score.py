"""Stage 2: the numbers. Every sample gets a value per metric, or a reason why it has none.

One decode per picture: a block is read once and handed to all metrics.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy
from tqdm import tqdm

import metrics
from nein.benchmarks.nein.edit import by_sample
from nein.benchmarks.nein.plan import Plan
from nein.benchmarks.nein.runs import RunDir, identity_hash
from nein.datasets.nein.samples import Sample
from nein.engine import atomic, images, journal
from nein.engine.answers import BlockAnswers
from nein.engine.environment import peak_memory
from nein.engine.executors import one_thread, read_ahead, share
from nein.engine.features import FeatureCache, scope_of
from nein.engine.world import World

Scores = dict[str, list[metrics.Score]]


@dataclass
class Scorer:
    """The models of a command, loaded once for all its editors and tracks, and caches of one thread."""

    models: Mapping[str, Any]
    settings: metrics.Settings
    features: FeatureCache
    records: BlockAnswers

    def score(self, items: Sequence[metrics.Item], names: Sequence[str]) -> Scores:
        """Metric -> a score per item of one block, for the metrics `names`, whose models must be loaded."""
        scope = scope_of(item.id for item in items)
        self.features.open(scope)
        self.records.open(scope)
        batch = metrics.Batch(items, self.models, self.settings, features=self.features, records=self.records)
        scores = metrics.score([metrics.METRICS[name] for name in names], batch)
        self.features.flush()
        self.records.flush()
        return scores


def run_scores(
    scorers: Sequence[Scorer],
    run: RunDir,
    plan: Plan,
    pending: Mapping[int, Sequence[str]],
    *,
    world: World,
) -> None:
    """Scores this process's share of `pending` (block -> metrics still to do) and journals every block.

    As many blocks are in work at the same time as there are scorers.
    """
    blocks = share(sorted(pending), world.rank, world.size)
    edits = by_sample(run.edits())
    identities = (run.manifest() or {})["score_identity"]

    def read(block: int) -> list[metrics.Item]:
        return [_item(run, sample, edits[sample.id], pending[block]) for sample in plan.members(block)]

    free: queue.SimpleQueue[Scorer] = queue.SimpleQueue()
    for scorer in scorers:
        free.put(scorer)

    def score(block: int, items: list[metrics.Item]) -> tuple[list[metrics.Item], Scores, float]:
        scorer, start = free.get(), time.perf_counter()
        try:
            return items, scorer.score(items, pending[block]), time.perf_counter() - start
        finally:
            free.put(scorer)

    if len(scorers) > 1:
        finished = read_ahead(lambda block: score(block, read(block)), blocks, len(scorers), one_thread)
    else:
        finished = ((block, score(block, items)) for block, items in read_ahead(read, blocks))
    total = sum(len(plan.members(block)) for block in blocks)
    with (
        journal.Journal(run.journals, "scores", world.rank) as lines,
        tqdm(total=total, desc=f"score {run.label}", unit="image", disable=not world.is_main) as bar,
    ):
        for block, (items, scores, seconds) in finished:
            for name, row in scores.items():
                if metrics.METRICS[name].kind == "corpus":
                    _write_features(run, block, items, row)
            lines.append(
                {
                    "block": block,
                    "ids": [item.id for item in items],
                    "identity": {name: identity_hash(identities[name]) for name in scores},
                    "scores": {name: [_row(score) for score in row] for name, row in scores.items()},
                    "seconds": round(seconds, 3),
                    "at": time.time(),
                    "peak_memory": peak_memory(),
                }
            )
            bar.update(len(items))


def _row(score: metrics.Score) -> dict[str, Any]:
    value = None if score.value is None else float(score.value)
    return {"value": value, "reason": score.reason, "detail": dict(score.detail)}


def _item(run: RunDir, sample: Sample, edit: Mapping[str, Any], names: Sequence[str]) -> metrics.Item:
    """The pictures of a sample that the metrics `names` need; a sentence for every other."""
    if edit["image"] is None:
        return metrics.Item(sample.id, f"not edited: {edit['error']}")
    needed = {picture for name in names for picture in metrics.METRICS[name].pictures}
    edited = _read(run.image_path(sample.id), "edited")
    if not isinstance(edited, str) and images.pixel_hash(edited) != edit["sha256"]:
        edited = "the edited image on disk is not the one this run wrote; remove it and run again"
    target = _read(sample.source_path, "COCO") if "target" in needed else "not read"
    unedited = _read(sample.sample_path, "NeIn") if "sample" in needed else "not read"
    target_key = "" if isinstance(target, str) else images.pixel_hash(target)
    sample_key = "" if isinstance(unedited, str) else images.pixel_hash(unedited)
    if sample_key and sample_key != edit["sample_sha256"]:
        unedited = "the NeIn image is not the one that was edited; it was changed in between"
    return metrics.Item(
        sample.id, edited, target, unedited, sample.object, sample.caption, target_key, sample_key
    )


def _read(path: Any, role: str) -> np.ndarray | str:
    try:
        return images.decode(path)
    except images.ImageError as error:
        return f"the {role} image is unusable: {error}"


def _write_features(
    run: RunDir, block: int, items: Sequence[metrics.Item], scores: Sequence[metrics.Score]
) -> None:
    """One file per block: rows of edited pictures and of targets, for the samples that have both."""
    rows = [(item, s.features) for item, s in zip(items, scores, strict=True) if s.features is not None]
    width = rows[0][1][0].shape[0] if rows else 0
    tensors = {
        name: np.asarray([features[side] for _, features in rows], np.float32).reshape(len(rows), width)
        for side, name in enumerate(("edited", "target"))
    }
    metadata = {
        "ids": "\n".join(item.id for item, _ in rows),
        "target_keys": ",".join(item.target_key for item, _ in rows),
    }
    atomic.write_bytes(run.feature_path(block), safetensors.numpy.save(tensors, metadata=metadata))
