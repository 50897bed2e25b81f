"""Defines what a metric is (`Metric`) and what it scores (a `Batch` of `EditPair`s, under `Settings`).

`score` computes several metrics of one batch; the batch computes once what they share, such as features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np

from nein.loading.digests import pixel_digest
from nein.loading.errors import choose, isolate
from nein.loading.references import Need
from nein.metrics.base import MemoryStore, MetricError, Score, Store, check_image, split_chunks

#: Fields of `EditPair` with images that a metric can need.
IMAGES = ("edited", "target", "sample", "things")
#: Features of one image or text, (D,) float32, or the reason why there are none.
Feature = np.ndarray | str
Result = TypeVar("Result")


# --- what is scored: edits -----------------------------------------------------------------
@dataclass(frozen=True)
class SceneObject:
    """An object in a drawn image."""

    name: str
    stays: bool  # whether the right edit keeps it
    without: np.ndarray  # (H, W, 3) uint8: the image without it


@dataclass(frozen=True)
class EditPair:
    """One edit and its references. An image is (H, W, 3) uint8 RGB, or the reason why it is missing."""

    id: str
    edited: np.ndarray | str  # the editor's output
    target: np.ndarray | str = "no target image"  # the ideal output (NeIn: the source image)
    sample: np.ndarray | str = "no sample image"  # the unedited image
    object: str = ""  # the denied object: the instruction says that it is absent, e.g. "traffic light"
    caption: str = ""  # of the target; names the objects to retain; may be empty
    target_key: str = ""  # SHA-256 of size and pixels; "": computed here
    sample_key: str = ""  # likewise
    things: Sequence[SceneObject] | str = "the data do not list the objects in the image"  # in the sample
    upright: np.ndarray | None = None  # `edited`, rotated by its EXIF tag, for detectors; None: it has no tag
    sample_upright: np.ndarray | None = None  # `sample`, likewise

    def __post_init__(self) -> None:
        for name, image in (("target_key", self.target), ("sample_key", self.sample)):
            if not getattr(self, name) and isinstance(image, np.ndarray):
                object.__setattr__(self, name, pixel_digest(image))

    def find_sample(self, upright: bool) -> tuple[str, np.ndarray | str]:
        """Return (key, unedited image). upright: whether rotated by its EXIF tag, as detectors see it."""
        if upright and self.sample_upright is not None:
            return pixel_digest(self.sample_upright), self.sample_upright
        return self.sample_key, self.sample

    def find_fault(self, names: Sequence[str]) -> str | None:
        """Return why an image among `names` (of `IMAGES`) is unusable; None if all are usable."""
        for name in names:
            value = getattr(self, name)
            if isinstance(value, str):
                return value
            images = [thing.without for thing in value] if name == "things" else [value]
            try:
                for image in images:
                    check_image(image)
            except MetricError as error:
                return str(error)
        return None


# --- how: settings, and batches with what their metrics share ------------------------------
@dataclass(frozen=True)
class Settings:
    """Options of scoring. `Metric.settings` names those that decide a metric's values.

    align       "stretch", as published: the edited image is stretched to the target's size. "crop": the
                target is first cropped like NeIn's samples (rule r64), at `resolution`.
    protocol    "paper", as released: removed if the answer is exactly "No"; present if it is "yes" in any
                case; objects are roots of noun chunks, repetitions kept for VQA. "fixed": the first word
                decides, any other answer is unscored; objects are distinct nouns (`metrics.presence`).
    evidence    "both": Retention also asks about the other protocol's objects and stores all replies
                (`objects_of` in the detail). It can then be recomputed without a judge. Same scores."""

    align: Literal["stretch", "crop"] = "stretch"
    resolution: int = 512  # of the crop: 512 for NeIn, 64 for data of 64 pixels
    protocol: Literal["paper", "fixed"] = "paper"
    threshold: float = 0.1  # a detection counts strictly above it; 0.1 in the pipeline that NeIn uses
    article: Literal["none", "a_an"] = "none"  # in questions; released code: "none", paper: "a_an"
    evidence: Literal["own", "both"] = "own"
    asks_sample: bool = False  # Removal also asks about the object in the unedited sample; same scores
    batch_size: int = 32  # images per pass through a network

    def __post_init__(self) -> None:
        choose("alignment", self.align, ("stretch", "crop"))
        choose("protocol", self.protocol, ("paper", "fixed"))
        choose("article", self.article, ("none", "a_an"))
        choose("evidence", self.evidence, ("own", "both"))
        if not 0 <= self.threshold < 1:
            raise MetricError(f"The detection threshold is {self.threshold}; it must be in [0, 1).")

    def identity(self, name: str) -> Any:
        """Return the setting `name` for a fingerprint; "align" includes the resolution."""
        if name == "align" and self.align == "crop":
            return f"crop at {self.resolution}"
        return getattr(self, name)


@dataclass(frozen=True)
class Batch:
    """Edits that are scored together."""

    items: Sequence[EditPair]
    models: Mapping[str, Any] = field(default_factory=dict)  # kind ("clip", "vqa", ...) -> loaded model
    settings: Settings = field(default_factory=Settings)
    # Metrics whose questions a judge gets in one pass, including those already scored: the last bits of an
    # answer can depend on the other questions of its batch.
    names: tuple[str, ...] = ()
    features: Store = field(default_factory=MemoryStore)  # features of targets
    records: Store = field(default_factory=MemoryStore)  # judges' replies about unedited samples
    _computed: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def select(self, items: Sequence[EditPair]) -> Batch:
        """Return a copy with these items; for its own items the batch itself, with all that it computed."""
        return self if items is self.items else replace(self, items=items, _computed={})

    def compute_once(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Return `compute()`, called once per `key`."""
        if key not in self._computed:
            self._computed[key] = compute()
        return self._computed[key]

    @cached_property
    def targets(self) -> dict[str, Any]:
        """Target key -> target, cropped if `align` is "crop", in the order of the items."""
        targets: dict[str, Any] = {}
        for item in self.items:
            targets.setdefault(item.target_key, item.target)
        if self.settings.align == "stretch":
            return targets
        from nein.loading.resize import r64

        return {key: r64(target, self.settings.resolution) for key, target in targets.items()}

    @cached_property
    def pairs(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(edited image at its target's size, target) per item, each (H, W, 3) uint8."""
        from nein.metrics.preprocess import map_images, stretch

        pairs = [(np.asarray(item.edited), self.targets[item.target_key]) for item in self.items]
        jobs = [(edited, (target.shape[1], target.shape[0])) for edited, target in pairs]
        stretched = map_images(lambda job: stretch(image=job[0], size=job[1]), jobs)
        return [(edited, target) for edited, (_, target) in zip(stretched, pairs, strict=True)]

    def edited_features(self, kind: str) -> list[Feature]:
        """Features of every item's edited image, by the encoder `kind`."""
        images = [item.edited for item in self.items]
        return self.compute_once((kind, "edited"), lambda: self._encode(self.models[kind].encode, images))

    def target_features(self, kind: str) -> list[Feature]:
        """Features of every item's target, cached."""
        by_key = self.compute_once((kind, "target"), lambda: self._encode_targets(kind))
        return [by_key[item.target_key] for item in self.items]

    def caption_features(self, kind: str) -> list[Feature]:
        """Features of every item's caption."""
        captions = list(dict.fromkeys(item.caption for item in self.items if item.caption.strip()))
        rows = self._encode(self.models[kind].encode_text, captions)
        by_caption = dict(zip(captions, rows, strict=True))
        return [by_caption.get(item.caption, "no caption") for item in self.items]

    def _encode(self, encode: Callable[[Any], np.ndarray], inputs: Sequence[Any]) -> list[Feature]:
        """Features of every input, or the reason why it cannot be encoded."""
        rows: list[Feature] = []
        for chunk in split_chunks(inputs, self.settings.batch_size):
            rows += isolate(lambda part: list(encode(part)), chunk)  # (n, D) => n rows (D,)
        fault = "the features are not finite"
        return [row if isinstance(row, str) or np.isfinite(row).all() else fault for row in rows]

    def _encode_targets(self, kind: str) -> dict[str, Feature]:
        """Target key -> features. Cached per batch: last bits can depend on the other images of a pass."""
        model, targets = self.models[kind], self.targets
        alignment = "stretch" if self.settings.align == "stretch" else f"r64-{self.settings.resolution}"
        batch_key = hashlib.sha256("\n".join(targets).encode()).hexdigest()[:16]
        store_keys = {key: f"{key}-{alignment}-{batch_key}" for key in targets}
        cached = {key: self.features.get(model.fingerprint, store_keys[key]) for key in targets}
        if all(row is not None and row.ndim == 1 and np.isfinite(row).all() for row in cached.values()):
            return cached
        rows = dict(zip(targets, self._encode(model.encode, list(targets.values())), strict=True))
        if any(isinstance(row, str) for row in rows.values()):  # then nothing is cached
            return {key: f"the target: {row}" if isinstance(row, str) else row for key, row in rows.items()}
        for key, row in rows.items():
            self.features.put(model.fingerprint, store_keys[key], row)
        return rows


# --- metrics -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Metric:
    """One metric, an entry of `metrics.table.METRICS`.

    kind    "proportion" (0 or 1 per sample), "bounded" (often at an end of `range`: its interval is that of
            a proportion), "mean" (any other value per sample), "corpus" (no value per sample: FID).
    needs   Images ("edited", "target", "sample", "things"), and models: a kind of `ENCODERS` or `JUDGES`,
            or "module:function", called with `device=` for a network with `fingerprint` and `describe()`.
    corpus  For the kind "corpus": (edited features, target features, source image of every edited row, of
            every target row) -> object with the fields of `metrics.fid.FidInterval`."""

    name: str  # key in files and on the command line ("clip_i")
    title: str  # of its column ("CLIP-I")
    unit: Literal["per cent", "raw"]  # "per cent": values are shown times 100
    better: Literal["higher", "lower"]
    range: tuple[float, float]  # closed interval of possible values, before percentages
    kind: Literal["mean", "bounded", "proportion", "corpus"]
    needs: tuple[str, ...]
    score: Callable[[Batch], Sequence[Score]]  # one Score per item; every item has the images in `needs`
    settings: tuple[str, ...] = ()  # fields of `Settings` that decide its values
    source: str = ""  # paper and code that define it
    origins: tuple[Need, ...] = ()  # downloads of its "module:function" networks, for `nein fetch`
    corpus: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        choose("unit", self.unit, ("per cent", "raw"))
        choose("direction", self.better, ("higher", "lower"))
        choose("kind of metric", self.kind, ("mean", "bounded", "proportion", "corpus"))
        if (self.kind == "corpus") != (self.corpus is not None):
            raise MetricError(f"The metric '{self.name}' must set `corpus` exactly if its kind is 'corpus'.")

    @property
    def images(self) -> tuple[str, ...]:
        return tuple(need for need in self.needs if need in IMAGES)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(need for need in self.needs if need not in IMAGES)

    @property
    def by_judge(self) -> bool:
        """Whether a judge decides its values."""
        return bool({"vqa", "ovd", "itm"} & set(self.models))

    @property
    def by_truth(self) -> bool:
        """Whether it needs data that list the objects in an image, which NeIn's do not."""
        return "things" in self.needs

    @property
    def span(self) -> float | None:
        """Largest difference of two values; None if the kind has no bounds."""
        return self.range[1] - self.range[0] if self.kind in ("proportion", "bounded") else None

    @property
    def higher_is_better(self) -> bool:
        return self.better == "higher"

    @property
    def scale(self) -> float:
        """Factor for display: 100 for percentages, 1 for raw values."""
        return 100.0 if self.unit == "per cent" else 1.0


def score(metrics: Sequence[Metric], batch: Batch) -> dict[str, list[Score]]:
    """Compute metrics: name -> one Score per item, unscored if an image is missing or the metric fails.
    Judges also get the questions of the metrics `batch.names`. Raises MetricError."""
    for metric in metrics:
        for kind in metric.models:
            if kind not in batch.models:
                raise MetricError(f"'{metric.name}' needs the model '{kind}'; pass it in Batch.models.")
    names = tuple(dict.fromkeys([*batch.names, *(metric.name for metric in metrics)]))
    scores: dict[str, list[Score]] = {}
    # Images needed -> (fault per item, batch of the items without one), shared by metrics with equal needs.
    usable: dict[tuple[str, ...], tuple[list[str | None], Batch]] = {}
    for metric in metrics:
        if metric.images not in usable:
            faults = [item.find_fault(metric.images) for item in batch.items]
            items = [item for item, fault in zip(batch.items, faults, strict=True) if fault is None]
            usable[metric.images] = faults, replace(batch, items=items, names=names, _computed={})
        faults, part = usable[metric.images]
        scored = isolate(lambda items: metric.score(part.select(items)), part.items)  # noqa: B023 - called at once
        indices = [index for index, fault in enumerate(faults) if fault is None]  # of the scored items
        results: list[Any] = list(faults)  # per item: a Score, or why there is none
        for index, result in zip(indices, scored, strict=True):
            results[index] = result
        scores[metric.name] = [Score(None, r) if isinstance(r, str) else r for r in results]
    return scores
