"""A metric is one object: what it is called, how it is read, what it needs, and how it scores a batch: edits
with what they are compared with, of which what several metrics need is made once."""

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
from nein.metrics.base import MemoryStore, MetricError, Score, Store, check_image, chunks

#: The pictures that a metric can need of an item.
PICTURES = ("edited", "target", "sample", "things")

Made = TypeVar("Made")
#: A (D,) float32 row of features, or a sentence saying why there is none.
Feature = np.ndarray | str


@dataclass(frozen=True)
class SceneObject:
    """A thing of a picture. without: the picture without it. stays: whether the right edit leaves it."""

    name: str
    stays: bool
    without: np.ndarray


@dataclass(frozen=True)
class EditPair:
    """One edit. A picture is (H, W, 3) uint8 RGB, or a sentence saying why there is none.

    edited      What the editor made; `upright`: the same for detectors, turned by its EXIF tag.
    target      The picture it should have made (NeIn: the source image).
    sample      The unedited picture, and `sample_upright`; `things`: everything on it, where known.
    object      What the instruction said should not be there, e.g. "traffic light".
    caption     Describes the target and names the objects to retain; may be empty.
    target_key, sample_key  SHA-256 of size and pixels; by default worked out.
    """

    id: str
    edited: np.ndarray | str
    target: np.ndarray | str = "no target picture"
    sample: np.ndarray | str = "no sample picture"
    object: str = ""
    caption: str = ""
    target_key: str = ""
    sample_key: str = ""
    things: Sequence[SceneObject] | str = "the data do not say which things the picture shows"
    upright: np.ndarray | None = None
    sample_upright: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name, picture in (("target_key", self.target), ("sample_key", self.sample)):
            if not getattr(self, name) and isinstance(picture, np.ndarray):
                object.__setattr__(self, name, pixel_digest(picture))

    def seen(self, turned: bool) -> tuple[str, np.ndarray | str]:
        """The unedited picture and its key, `turned` as detectors see it."""
        if turned and self.sample_upright is not None:
            return pixel_digest(self.sample_upright), self.sample_upright
        return self.sample_key, self.sample

    def lacks(self, pictures: Sequence[str]) -> str | None:
        """Why the first unusable one of `pictures` cannot be used; None where all can."""
        try:
            for name in pictures:
                if isinstance(picture := getattr(self, name), str):
                    return picture
                for image in [thing.without for thing in picture] if name == "things" else [picture]:
                    check_image(image)
        except MetricError as error:
            return str(error)
        return None


@dataclass(frozen=True)
class Settings:
    """How items are scored. A metric names those that decide its values (`Metric.settings`).

    align       "stretch", as published: where pixels are compared, the edited picture is stretched to the
                target's size. "crop": the target first gets the crop of NeIn's samples (rule r64) at
                `resolution` (512 for NeIn, 64 for 64-pixel data).
    protocol    "paper", as released: removed if the answer is exactly "No"; present if it is "yes" in any
                case; objects are roots of noun chunks, repetitions kept for VQA. "fixed": the first word
                decides, any other answer is unscored; objects are distinct nouns (`metrics.presence`).
    threshold   A detection counts when its score is strictly above this (0.1: the pipeline NeIn uses).
    article     In questions: "none" as in the released code, "a_an" as in the paper's text.
    evidence    "both": Retention also asks about the other protocol's objects and keeps all replies
                (`objects_of` in the detail), so that its figure needs no judge. The scores are the same.
    before      Removal also asks about the object in the unedited sample. The scores are the same.
    batch_size  Images per pass through a network.
    """

    align: Literal["stretch", "crop"] = "stretch"
    resolution: int = 512
    protocol: Literal["paper", "fixed"] = "paper"
    threshold: float = 0.1
    article: Literal["none", "a_an"] = "none"
    evidence: Literal["own", "both"] = "own"
    before: bool = False
    batch_size: int = 32

    def __post_init__(self) -> None:
        choose("alignment", self.align, ("stretch", "crop"))
        choose("protocol", self.protocol, ("paper", "fixed"))
        choose("article", self.article, ("none", "a_an"))
        choose("evidence", self.evidence, ("own", "both"))
        if not 0 <= self.threshold < 1:
            raise MetricError(
                f"The detection threshold must be at least 0 and below 1, not {self.threshold}."
            )

    def identity(self, name: str) -> Any:
        """The part of one setting that decides values: its value, of "align" the resolution too."""
        if name == "align" and self.align == "crop":
            return f"crop at {self.resolution}"
        return getattr(self, name)


@dataclass(frozen=True)
class Batch:
    """Items scored together.

    models    Kind -> what `load_encoder` or `load_judge` gave.
    names     Metrics asked for together in one pass of a judge, also where some are scored already: the last
              bits of an answer can depend on what is asked with it.
    features, records  Caches of features of targets, and of what judges said about unedited samples.
    """

    items: Sequence[EditPair]
    models: Mapping[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    names: tuple[str, ...] = ()
    features: Store = field(default_factory=MemoryStore)
    records: Store = field(default_factory=MemoryStore)
    _made: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def of(self, items: Sequence[EditPair]) -> Batch:
        """The same for other items; this batch itself for its own."""
        return self if items is self.items else replace(self, items=items, _made={})

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """`make()`, called once per `key`."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    @cached_property
    def targets(self) -> dict[str, Any]:
        """Target key -> the target as it is compared, in the order of the items."""
        targets: dict[str, Any] = {}
        for item in self.items:
            targets.setdefault(item.target_key, item.target)
        if self.settings.align == "stretch":
            return targets
        from nein.loading.resize import r64

        return {key: r64(target, self.settings.resolution) for key, target in targets.items()}

    @cached_property
    def pairs(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Per item the edited image at its target's size, and the target, each (H, W, 3) uint8."""
        from nein.metrics.preprocess import map_images, stretch

        pairs = [(np.asarray(item.edited), self.targets[item.target_key]) for item in self.items]
        jobs = [(edited, target.shape[1::-1]) for edited, target in pairs]
        stretched = map_images(lambda job: stretch(*job), jobs)
        return [(edited, target) for edited, (_, target) in zip(stretched, pairs, strict=True)]

    def edited_features(self, kind: str) -> list[Feature]:
        """Of every item's edited image."""
        images = [item.edited for item in self.items]
        return self.once((kind, "edited"), lambda: self._encoded(self.models[kind].encode, images))

    def target_features(self, kind: str) -> list[Feature]:
        """Of every item's target, from the cache where it can be."""
        by_key = self.once((kind, "target"), lambda: self._encoded_targets(kind))
        return [by_key[item.target_key] for item in self.items]

    def caption_features(self, kind: str) -> list[Feature]:
        captions = list(dict.fromkeys(item.caption for item in self.items if item.caption.strip()))
        rows = self._encoded(self.models[kind].encode_text, captions)
        by_caption = dict(zip(captions, rows, strict=True))
        return [by_caption.get(item.caption, "no caption") for item in self.items]

    def _encoded(self, encode: Callable[[Any], np.ndarray], inputs: Sequence[Any]) -> list[Feature]:
        """A row per input; a sentence for one that cannot be encoded."""
        rows: list[Feature] = []
        for part in chunks(inputs, self.settings.batch_size):
            rows += isolate(lambda chunk: list(encode(chunk)), part)  # (n, D) -> n rows (D,)
        wild = "the features are not finite"
        return [row if isinstance(row, str) or np.isfinite(row).all() else wild for row in rows]

    def _encoded_targets(self, kind: str) -> dict[str, Feature]:
        """From the store only with every target: a feature's last bits can depend on its batch."""
        targets, model = self.targets, self.models[kind]
        alignment = "stretch" if self.settings.align == "stretch" else f"r64-{self.settings.resolution}"
        company = hashlib.sha256("\n".join(targets).encode()).hexdigest()[:16]
        names = {key: f"{key}-{alignment}-{company}" for key in targets}
        cached = {key: self.features.get(model.fingerprint, name) for key, name in names.items()}
        if all(row is not None and row.ndim == 1 and np.isfinite(row).all() for row in cached.values()):
            return cached
        rows = dict(zip(targets, self._encoded(model.encode, list(targets.values())), strict=True))
        if any(isinstance(row, str) for row in rows.values()):
            return {key: f"the target: {row}" if isinstance(row, str) else row for key, row in rows.items()}
        for key, row in rows.items():
            self.features.put(model.fingerprint, names[key], row)
        return rows


@dataclass(frozen=True)
class Metric:
    """One metric, as `metrics.table.METRICS` holds them.

    name, title  Key in files and on the command line ("clip_i"); column title ("CLIP-I").
    unit      "per cent": values from 0 to 1 are shown as percentages; "raw": as they are.
    range     Closed interval of possible values, before percentages.
    kind      "proportion" (per sample 0 or 1), "bounded" (often at an end of `range`: its interval is that of
              a share), "mean" (any other value per sample), "corpus" (none per sample: FID).
    needs     Pictures ("edited", "target", "sample", "things"), and models: a kind of `ENCODERS` or `JUDGES`,
              or "module:function", called with `device=` for a network with `fingerprint` and `describe()`.
    score     One Score per item. Every item has the pictures named in `needs`.
    settings  Fields of `Settings` that decide its values: part of the identity of a score.
    origins   What its "module:function" networks download, for `nein fetch`.
    corpus    (edited rows, target rows, source image of every edited row, of every target row) -> something
              with the fields of `metrics.fid.FidInterval`.
    """

    name: str
    title: str
    unit: Literal["per cent", "raw"]
    better: Literal["higher", "lower"]
    range: tuple[float, float]
    kind: Literal["mean", "bounded", "proportion", "corpus"]
    needs: tuple[str, ...]
    score: Callable[[Batch], Sequence[Score]]
    settings: tuple[str, ...] = ()
    source: str = ""
    origins: tuple[Need, ...] = ()
    corpus: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        choose("unit", self.unit, ("per cent", "raw"))
        choose("direction", self.better, ("higher", "lower"))
        choose("kind of metric", self.kind, ("mean", "bounded", "proportion", "corpus"))
        if (self.kind == "corpus") != (self.corpus is not None):
            raise MetricError(f"The metric '{self.name}' is of kind 'corpus' if and only if it has `corpus`.")

    @property
    def pictures(self) -> tuple[str, ...]:
        return tuple(need for need in self.needs if need in PICTURES)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(need for need in self.needs if need not in PICTURES)

    @property
    def by_judge(self) -> bool:
        """Whether a judge looks at the pictures."""
        return bool({"vqa", "ovd", "itm"} & set(self.models))

    @property
    def by_truth(self) -> bool:
        """Whether it needs data that say which things a picture shows, beyond NeIn's layout."""
        return "things" in self.needs

    @property
    def span(self) -> float | None:
        """How far apart two values can be, where that bounds a mean; else None."""
        return self.range[1] - self.range[0] if self.kind in ("proportion", "bounded") else None

    @property
    def higher_is_better(self) -> bool:
        return self.better == "higher"

    @property
    def scale(self) -> float:
        """Factor for display: 100 for percentages, 1 for raw values."""
        return 100.0 if self.unit == "per cent" else 1.0


def score(wanted: Sequence[Metric], batch: Batch) -> dict[str, list[Score]]:
    """Metric name -> one Score per item; one that lacks an image, or that a metric fails on, is unscored.
    Judges are asked as if the metrics of `batch.names` were wanted too. Raises MetricError."""
    for metric in wanted:
        for kind in metric.models:
            if kind not in batch.models:
                raise MetricError(f"The metric '{metric.name}' needs the model '{kind}', which is not there.")
    names = tuple(dict.fromkeys([*batch.names, *(metric.name for metric in wanted)]))
    rows: dict[str, list[Score]] = {}
    parts: dict[tuple[str, ...], tuple[list[str | None], Batch]] = {}  # metrics of the same images share it
    for metric in wanted:
        if metric.pictures not in parts:
            lacking = [item.lacks(metric.pictures) for item in batch.items]
            usable = [item for item, why in zip(batch.items, lacking, strict=True) if why is None]
            parts[metric.pictures] = lacking, replace(batch, items=usable, names=names, _made={})
        lacking, part = parts[metric.pictures]
        found = iter(isolate(lambda items: metric.score(part.of(items)), part.items))  # noqa: B023 - at once
        scores = (Score(None, result) if isinstance(result, str) else result for result in found)
        rows[metric.name] = [next(scores) if why is None else Score(None, why) for why in lacking]
    return rows
