"""Stage 2: the numbers. Every sample gets a value per metric, or a reason why it has none.

One decode per picture: a block is read once and handed to all image metrics and all judges. A block that
raises is scored sample by sample, so that one bad sample cannot cost its neighbours theirs.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from tqdm import tqdm

from metrics import IMAGE_METRICS, PRESENCE_METRICS, Score
from metrics.base import MODEL_ERRORS
from metrics.base import reason as why
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

if TYPE_CHECKING:
    from metrics.presence import Presence
    from metrics.similarity import ImageMetrics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scene:
    """One sample with what was decoded for it.

    edited, target, source  (H, W, 3) uint8 RGB, or a sentence saying why there is no picture.
    target_key, source_key  Pixel hashes, empty without a picture.
    """

    sample: Sample
    edited: Any
    target: Any
    source: Any
    target_key: str = ""
    source_key: str = ""


@dataclass
class Scorer:
    """The models of a command, loaded once for all its editors and tracks.

    image_metrics, presence  Make the engine for some metric names; the models behind it are shared.
    """

    image_metrics: Callable[[list[str]], ImageMetrics]
    presence: Callable[[list[str]], Presence]
    features: FeatureCache
    records: BlockAnswers

    def score(self, scenes: Sequence[Scene], names: Sequence[str]) -> Scored:
        """Scores of one block for the metrics `names`, whose models must be loaded."""
        scope = scope_of(scene.sample.id for scene in scenes)
        self.features.open(scope)
        self.records.open(scope)
        scored = Scored({name: {} for name in names})
        self._images(scenes, [name for name in IMAGE_METRICS if name in names], scored)
        self._presence(scenes, [name for name in PRESENCE_METRICS if name in names], scored)
        self.features.flush()
        self.records.flush()
        return scored

    def _images(self, scenes: Sequence[Scene], names: list[str], scored: Scored) -> None:
        if not names:
            return
        from metrics.similarity import ImageItem

        engine = self.image_metrics(names)
        usable = scored.sort_out(scenes, names, ("edited", "target"))

        def run(part: Sequence[Scene]) -> Any:
            return engine.score(
                [ImageItem(s.sample.id, s.edited, s.target, s.sample.caption, s.target_key) for s in part]
            )

        for part, found in _isolated(usable, run):
            if isinstance(found, str):
                scored.unscored(part[0], names, found)
                continue
            scored.take(part, found.scores)
            if found.fid_edited is not None and found.fid_target is not None:
                scored.take_features(part, found.fid_edited, found.fid_target, found.fid_reasons)

    def _presence(self, scenes: Sequence[Scene], names: list[str], scored: Scored) -> None:
        if not names:
            return
        from metrics.presence import PresenceItem

        engine = self.presence(names)
        usable = scored.sort_out(scenes, names, ("edited", "source"))

        def run(part: Sequence[Scene]) -> Any:
            items = []
            for s in part:
                noun, caption = s.sample.object, s.sample.caption
                items.append(PresenceItem(s.sample.id, s.edited, s.source, noun, caption, s.source_key))
            return engine.score(items)

        for part, found in _isolated(usable, run):
            if isinstance(found, str):
                scored.unscored(part[0], names, found)
            else:
                scored.take(part, found)


@dataclass
class Scored:
    """What came of a block: metric -> sample id -> row, and FID features of edits and targets."""

    rows: dict[str, dict[str, dict[str, Any]]]
    features: dict[str, tuple[np.ndarray, np.ndarray, str]] = field(default_factory=dict)

    def sort_out(self, scenes: Sequence[Scene], names: Sequence[str], needed: Sequence[str]) -> list[Scene]:
        """The scenes with every needed picture; the others are unscored with the first reason."""
        usable = []
        for scene in scenes:
            reason = next((v for key in needed if isinstance(v := getattr(scene, key), str)), None)
            if reason is None:
                usable.append(scene)
            else:
                self.unscored(scene, names, reason)
        return usable

    def unscored(self, scene: Scene, names: Sequence[str], reason: str) -> None:
        for name in names:
            self.rows[name][scene.sample.id] = {"value": None, "reason": reason, "detail": {}}

    def take(self, scenes: Sequence[Scene], scores: Mapping[str, Sequence[Score]]) -> None:
        for name, values in scores.items():
            for scene, score in zip(scenes, values, strict=True):
                value = None if score.value is None else float(score.value)
                row = {"value": value, "reason": score.reason, "detail": dict(score.detail)}
                self.rows[name][scene.sample.id] = row

    def take_features(
        self, scenes: Sequence[Scene], edited: np.ndarray, target: np.ndarray, reasons: Mapping[int, str]
    ) -> None:
        """Rows in scene order; an index in `reasons` has none, all others enter the distance."""
        for index, scene in enumerate(scenes):
            if index not in reasons:
                self.features[scene.sample.id] = (edited[index], target[index], scene.target_key)
            row: dict[str, Any] = {"value": None, "reason": reasons.get(index, ""), "detail": {}}
            self.rows["fid"][scene.sample.id] = row


def _isolated(scenes: list[Scene], work: Callable[[list[Scene]], Any]) -> Iterator[tuple[list[Scene], Any]]:
    """(scenes, work(scenes)); if that raises, one scene at a time, with the reason in place of a result.

    Running out of memory is about the batch, not about a sample: it ends the command, with advice.
    """
    if not scenes:
        return
    try:
        result = work(scenes)
    except MODEL_ERRORS as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise
        result = why(error)
    if not isinstance(result, str) or len(scenes) == 1:
        yield scenes, result
        return
    log.warning("scoring %d samples together failed (%s); scoring them one by one", len(scenes), result)
    for scene in scenes:
        yield from _isolated([scene], work)


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

    def read(block: int) -> list[Scene]:
        return [_scene(run, sample, edits[sample.id], pending[block]) for sample in plan.members(block)]

    free: queue.SimpleQueue[Scorer] = queue.SimpleQueue()
    for scorer in scorers:
        free.put(scorer)

    def score(block: int, scenes: Sequence[Scene]) -> tuple[list[Scene], Scored, float]:
        scorer, start = free.get(), time.perf_counter()
        try:
            return list(scenes), scorer.score(scenes, list(pending[block])), time.perf_counter() - start
        finally:
            free.put(scorer)

    if len(scorers) > 1:
        finished = read_ahead(lambda block: score(block, read(block)), blocks, len(scorers), one_thread)
    else:
        finished = ((block, score(block, scenes)) for block, scenes in read_ahead(read, blocks))
    total = sum(len(plan.members(block)) for block in blocks)
    with (
        journal.Journal(run.journals, "scores", world.rank) as lines,
        tqdm(total=total, desc=f"score {run.label}", unit="image", disable=not world.is_main) as bar,
    ):
        for block, (scenes, scored, seconds) in finished:
            names = list(pending[block])
            ids = [scene.sample.id for scene in scenes]
            if "fid" in names:
                _write_features(run, block, ids, scored)
            lines.append(
                {
                    "block": block,
                    "ids": ids,
                    "identity": {name: identity_hash(identities[name]) for name in names},
                    "scores": {name: [scored.rows[name][i] for i in ids] for name in names},
                    "seconds": round(seconds, 3),
                    "at": time.time(),
                    "peak_memory": peak_memory(),
                }
            )
            bar.update(len(ids))


def _scene(run: RunDir, sample: Sample, edit: Mapping[str, Any], names: Sequence[str]) -> Scene:
    edited: np.ndarray | str
    if edit["image"] is None:
        return Scene(sample, f"not edited: {edit['error']}", "not read", "not read")
    edited = _read(run.image_path(sample.id), "edited")
    if not isinstance(edited, str) and images.pixel_hash(edited) != edit["sha256"]:
        edited = "the edited image on disk is not the one this run wrote; remove it and run again"
    target: np.ndarray | str = "not read"
    source: np.ndarray | str = "not read"
    target_key = source_key = ""
    if any(name in IMAGE_METRICS for name in names):
        target = _read(sample.source_path, "COCO")
        target_key = "" if isinstance(target, str) else images.pixel_hash(target)
    if any(name in PRESENCE_METRICS for name in names):
        source = _read(sample.sample_path, "NeIn")
        source_key = "" if isinstance(source, str) else images.pixel_hash(source)
        if source_key and source_key != edit["sample_sha256"]:
            source = "the NeIn image is not the one that was edited; it was changed in between"
    return Scene(sample, edited, target, source, target_key, source_key)


def _read(path: Any, role: str) -> np.ndarray | str:
    try:
        return images.decode(path)
    except images.ImageError as error:
        return f"the {role} image is unusable: {error}"


def _write_features(run: RunDir, block: int, ids: Sequence[str], scored: Scored) -> None:
    """One file per block: rows of edited pictures and of targets, for the samples that have both."""
    kept = [sample_id for sample_id in ids if sample_id in scored.features]
    width = scored.features[kept[0]][0].shape[0] if kept else 0
    edited = [scored.features[sample_id][0] for sample_id in kept]
    target = [scored.features[sample_id][1] for sample_id in kept]
    tensors = {
        "edited": np.asarray(edited, dtype=np.float32).reshape(len(kept), width),
        "target": np.asarray(target, dtype=np.float32).reshape(len(kept), width),
    }
    keys = ",".join(scored.features[sample_id][2] for sample_id in kept)
    metadata = {"ids": "\n".join(kept), "target_keys": keys}
    atomic.write_bytes(run.feature_path(block), safetensors.numpy.save(tensors, metadata=metadata))
