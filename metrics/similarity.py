"""The image metrics together: L1, L2, CLIP-I, CLIP-T, DINO, LPIPS, and the features for FID.

Nothing is opened here, every picture is encoded once per network, and the features of a target, which five
samples and every editor share, are kept in the store that the caller hands in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from metrics import IMAGE_METRICS, NEEDS, pixels
from metrics.base import (
    MODEL_ERRORS,
    FeatureStore,
    MemoryFeatures,
    MetricError,
    Score,
    check_image,
    choose,
    reason,
)
from metrics.preprocess import map_images, r64_fit, stretch


@dataclass(frozen=True)
class ImageItem:
    """One comparison.

    id          Identifies the sample.
    edited      (H, W, 3) uint8: what the editor made; None where it failed.
    target      (H', W', 3) uint8: the picture it should have made (NeIn: the source image); None if
                unreadable.
    caption     Describes the target, for CLIP-T; may be empty.
    target_key  SHA-256 of the target's pixels, hexadecimal: equal keys mean equal targets.
    """

    id: str
    edited: np.ndarray | None
    target: np.ndarray | None
    caption: str
    target_key: str


@dataclass(frozen=True)
class ImageScores:
    """What `ImageMetrics.score` found.

    scores       For every metric asked but FID, one Score per item, in item order.
    fid_edited   (N, D) float32 features when "fid" was asked, else None. A row of NaN stands for a sample
                 without features; leave those rows out before taking the distance.
    fid_target   The same for the targets (repeated where items share a target).
    fid_reasons  Item index -> why its row is NaN.
    """

    scores: dict[str, list[Score]]
    fid_edited: np.ndarray | None = None
    fid_target: np.ndarray | None = None
    fid_reasons: dict[int, str] = field(default_factory=dict)


@dataclass
class _Prepared:
    """An item ready to be compared: `same_size` is `edited` at the size of `target`."""

    index: int
    edited: np.ndarray
    target: np.ndarray
    target_key: str
    same_size: np.ndarray


class ImageMetrics:
    """Scores pictures against targets.

    names       Any of l1, l2, clip_i, clip_t, dino, lpips, fid.
    encoders    What `load_encoder` gave, by kind: "clip" for clip_i and clip_t, "dino", "lpips", "fid".
    align       "stretch", the published protocol: the edited picture is stretched to the target's size for
                L1, L2 and LPIPS; the networks see both pictures as they are. "crop": the target first gets
                the crop that NeIn's samples got (`r64_fit`), because those do not show all of it.
    resolution  Of that crop; 512 for NeIn, 64 for 64-pixel data.
    store       Cache for target features. Keys hold the encoder's fingerprint, the target's key, the
                alignment, and a digest of the targets encoded together.
    workers     Threads for resizing; None: by the number of cores.

    Edited pictures go through the networks in batches of `batch_size`, and so do the targets of one call. The
    last bits of a feature can depend on what else is in its batch; a cached one is therefore used only where
    the same targets, in the same order, are asked for again, and never changes a result.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        encoders: Mapping[str, object],
        align: Literal["stretch", "crop"] = "stretch",
        resolution: int = 512,
        store: FeatureStore | None = None,
        batch_size: int = 32,
        workers: int | None = None,
    ) -> None:
        for name in names:
            choose("image metric", name, IMAGE_METRICS)
            kind = NEEDS.get(name)
            if kind and kind not in encoders:
                raise MetricError(
                    f"The metric '{name}' needs the encoder '{kind}'; give encoders={{'{kind}': ...}}."
                )
        choose("alignment", align, ("stretch", "crop"))
        self.names = tuple(dict.fromkeys(names))
        self.encoders: Mapping[str, Any] = encoders
        self.align = align
        self.resolution = resolution
        self.store = store
        self.batch_size = batch_size
        self.workers = workers

    def describe(self) -> dict[str, Any]:
        """Names, alignment and every encoder used, JSON-serialisable."""
        kinds = sorted({NEEDS[name] for name in self.names if name in NEEDS})
        return {
            "metrics": list(self.names),
            "align": self._alignment,
            "encoders": {kind: self.encoders[kind].describe() for kind in kinds},
        }

    @property
    def _alignment(self) -> str:
        return "stretch" if self.align == "stretch" else f"r64-{self.resolution}"

    def score(self, items: Sequence[ImageItem]) -> ImageScores:
        """Score all items; a sample that cannot be scored gets a reason and does not disturb the others."""
        failures: dict[int, str] = {}
        ready = self._prepare(items, failures)
        scores: dict[str, list[Score]] = {}
        for name, function in (("l1", pixels.l1), ("l2", pixels.l2)):
            if name in self.names:
                values = {p.index: Score(function(p.same_size, p.target)) for p in ready}
                scores[name] = _fill(values, failures, len(items))
        if "lpips" in self.names:
            scores["lpips"] = _fill(self._lpips(ready), failures, len(items))
        if {"clip_i", "clip_t"} & set(self.names):
            self._clip(items, ready, failures, scores)
        if "dino" in self.names:
            edited, target = self._pair("dino", ready)
            scores["dino"] = _fill(_cosines(edited, target), failures, len(items))
        fid: tuple[Any, ...] = (None, None, {})
        if "fid" in self.names:
            fid = self._fid(ready, failures, len(items))
        return ImageScores({name: scores[name] for name in self.names if name != "fid"}, *fid)

    # ---------------------------------------------------------------------------------------- pictures

    def _prepare(self, items: Sequence[ImageItem], failures: dict[int, str]) -> list[_Prepared]:
        targets: dict[str, np.ndarray | str] = {}

        def aligned(item: ImageItem) -> np.ndarray | str:
            try:
                check_image(item.target)
                assert item.target is not None
                return item.target if self.align == "stretch" else r64_fit(item.target, self.resolution)
            except MetricError as error:
                return str(error)

        for item in items:
            if item.target is not None and item.target_key not in targets:
                targets[item.target_key] = aligned(item)
        good: list[tuple[int, ImageItem, np.ndarray, np.ndarray]] = []
        for index, item in enumerate(items):
            target = targets.get(item.target_key, "no target picture") if item.target is not None else None
            if item.edited is None:
                failures[index] = "no edited picture"
            elif target is None:
                failures[index] = "no target picture"
            elif isinstance(target, str):
                failures[index] = target
            else:
                try:
                    good.append((index, item, check_image(item.edited), target))
                except MetricError as error:
                    failures[index] = str(error)
        if {"l1", "l2", "lpips"} & set(self.names):
            jobs = [(edited, (target.shape[1], target.shape[0])) for _, _, edited, target in good]
            same = map_images(_stretch_job, jobs, self.workers)
        else:
            same = [edited for _, _, edited, _ in good]
        return [
            _Prepared(index, edited, target, item.target_key, fitted)
            for (index, item, edited, target), fitted in zip(good, same, strict=True)
        ]

    # ---------------------------------------------------------------------------------------- features

    def _pair(self, kind: str, ready: Sequence[_Prepared]) -> tuple[dict[int, Any], dict[int, Any]]:
        """Features of edited and target pictures by item index; a string in place of one is a reason."""
        encoder = self.encoders[kind]
        found = _encode_all(encoder.encode, [p.edited for p in ready], self.batch_size)
        edited = {p.index: row for p, row in zip(ready, found, strict=True)}
        rows = self._targets(encoder, {p.target_key: p.target for p in ready})
        return edited, {p.index: rows[p.target_key] for p in ready}

    def _targets(self, encoder: Any, targets: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Features of all targets by key, from the store where it has every one of them, else together."""
        store = self.store if self.store is not None else MemoryFeatures()
        company = hashlib.sha256("\n".join(targets).encode()).hexdigest()[:16]
        names = {key: f"{key}-{self._alignment}-{company}" for key in targets}
        found = {key: store.get(encoder.fingerprint, name) for key, name in names.items()}
        if all(row is not None and row.ndim == 1 and np.isfinite(row).all() for row in found.values()):
            return found
        rows: dict[str, Any] = dict(
            zip(targets, _encode_all(encoder.encode, list(targets.values()), self.batch_size), strict=True)
        )
        if any(isinstance(row, str) for row in rows.values()):
            return {key: f"the target: {row}" if isinstance(row, str) else row for key, row in rows.items()}
        for key, row in rows.items():
            store.put(encoder.fingerprint, names[key], row)
        return rows

    def _clip(
        self,
        items: Sequence[ImageItem],
        ready: Sequence[_Prepared],
        failures: Mapping[int, str],
        scores: dict[str, list[Score]],
    ) -> None:
        if "clip_i" in self.names:
            edited, target = self._pair("clip", ready)
            scores["clip_i"] = _fill(_cosines(edited, target), failures, len(items))
        else:
            rows = _encode_all(self.encoders["clip"].encode, [p.edited for p in ready], self.batch_size)
            edited = {p.index: row for p, row in zip(ready, rows, strict=True)}
        if "clip_t" in self.names:
            captions = {p.index: items[p.index].caption for p in ready if items[p.index].caption.strip()}
            unique = list(dict.fromkeys(captions.values()))
            rows = _encode_all(self.encoders["clip"].encode_text, unique, self.batch_size)
            text = dict(zip(unique, rows, strict=True))
            described = {index: text[caption] for index, caption in captions.items()}
            values = _cosines({i: edited[i] for i in described}, described)
            missing = {p.index: "no caption" for p in ready if p.index not in described}
            scores["clip_t"] = _fill(values, {**missing, **failures}, len(items))

    def _lpips(self, ready: Sequence[_Prepared]) -> dict[int, Score]:
        network = self.encoders["lpips"]
        keys = list(dict.fromkeys(p.target_key for p in ready))
        targets = {p.target_key: p.target for p in ready}

        def run(chunk: Sequence[_Prepared]) -> list[Score]:
            values = network.distances(
                [p.same_size for p in chunk],
                [targets[key] for key in keys],
                [keys.index(p.target_key) for p in chunk],
            )
            return [_finite(float(value)) for value in values]

        return dict(zip([p.index for p in ready], _attempt(run, ready, _unscored), strict=True))

    def _fid(
        self, ready: Sequence[_Prepared], failures: Mapping[int, str], count: int
    ) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
        edited, target = self._pair("fid", ready)
        reasons = dict(failures)
        width = next(
            (len(row) for row in (*edited.values(), *target.values()) if not isinstance(row, str)), 0
        )
        result = np.full((2, count, width), np.nan, dtype=np.float32)
        for index in edited:
            bad = next((row for row in (edited[index], target[index]) if isinstance(row, str)), None)
            if bad is not None:
                reasons[index] = bad
            else:
                result[0, index], result[1, index] = edited[index], target[index]
        return result[0], result[1], reasons


def _stretch_job(job: tuple[np.ndarray, tuple[int, int]]) -> np.ndarray:
    return stretch(*job)


def _attempt(
    run: Callable[[Any], list[Any]], inputs: Sequence[Any], failed: Callable[[str], Any]
) -> list[Any]:
    """`run(inputs)`; where that fails, one input at a time: only the culprit gets `failed(reason)`."""
    if not inputs:
        return []
    try:
        return list(run(inputs))
    except MODEL_ERRORS as error:
        if len(inputs) == 1:
            return [failed(reason(error))]
    return [_attempt(run, [one], failed)[0] for one in inputs]


def _encode(encode: Callable[[Any], np.ndarray], inputs: Sequence[Any]) -> list[Any]:
    """One (D,) float32 row per input, or a reason in its place."""
    rows = _attempt(lambda chunk: list(encode(chunk)), inputs, str)
    return [
        row if isinstance(row, str) or np.isfinite(row).all() else "the features are not finite"
        for row in rows
    ]


def _encode_all(encode: Callable[[Any], np.ndarray], inputs: Sequence[Any], size: int) -> list[Any]:
    return [
        row for start in range(0, len(inputs), size) for row in _encode(encode, inputs[start : start + size])
    ]


def _cosines(first: Mapping[int, Any], second: Mapping[int, Any]) -> dict[int, Score]:
    """Cosine of every pair, float64 arithmetic on float32 features; reasons pass through.

    torchmetrics' `pairwise_cosine_similarity` is asked for one pair at a time: it keeps float64 (its
    `cosine_similarity` does not), and a value then does not depend on the other samples to the last bit.
    """
    import torch
    from torchmetrics.functional import pairwise_cosine_similarity

    result: dict[int, Score] = {}
    for index, a in first.items():
        b = second[index]
        bad = next((x for x in (a, b) if isinstance(x, str)), None)
        if bad is None and not (np.any(a) and np.any(b)):
            bad = "a feature vector is zero"
        if bad is not None:
            result[index] = _unscored(bad)
            continue
        x, y = (torch.from_numpy(np.asarray(row, dtype=np.float64)[None]) for row in (a, b))
        value = float(pairwise_cosine_similarity(x, y)[0, 0])
        # Rounding can leave [-1, 1] by an ulp, on identical pictures above all. More would be a mistake.
        assert abs(value) <= 1 + 1e-9, value
        result[index] = Score(min(1.0, max(-1.0, value)))
    return result


def _finite(value: float) -> Score:
    return Score(value) if np.isfinite(value) else _unscored("the distance is not finite")


def _unscored(why: str) -> Score:
    return Score(None, why)


def _fill(values: Mapping[int, Score], failures: Mapping[int, str], count: int) -> list[Score]:
    return [values[i] if i in values else _unscored(failures[i]) for i in range(count)]
