"""Features of pictures and sentences: each computed once, kept on disk, found again by content.

Pictures are cut into fixed blocks over all tasks of a data set (`nein.engine.blocks`), sentences over all
of a task's; a block is encoded as a whole, by one process on one thread, so that no feature depends on
`--limit`, on the tasks asked for, on kills or on the number of processes.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from metrics.base import isolated
from metrics.dual.base import pool
from nein.datasets.negbench.records import Media
from nein.engine import images, journal
from nein.engine.cache import FeatureCache, scope_of
from nein.engine.executors import one_thread, read_ahead, share
from nein.engine.world import World

log = logging.getLogger(__name__)
UNUSABLE = "the picture is unusable: "


@dataclass(frozen=True)
class Encoded:
    """Features by name (a picture's reference, or a sentence), and why some have none.

    features  (N, D) float32 or float64 rows; `rows` name -> row; `reasons` name -> sentence.
    """

    features: np.ndarray
    rows: dict[str, int]
    reasons: dict[str, str]


class Encoder:
    """A model with its cache, shared by all data sets of a command.

    load      Makes the model; called when the first feature is missing, so a finished run loads none.
    identity  Fingerprint of the model as an earlier command of the run found it; None asks the model.
    """

    def __init__(
        self,
        load: Callable[[], Any],
        identity: str | None,
        cache: Path,
        *,
        batch_size: int,
        workers: int,
        world: World,
    ) -> None:
        self._load = functools.cache(load)
        self._identity = identity
        self.cache = cache
        self.batch_size = batch_size
        self.workers = workers
        self.world = world

    @property
    def model(self) -> Any:
        return self._load()

    @property
    def identity(self) -> str:
        return self._identity or str(self.model.fingerprint)

    # --- pictures --------------------------------------------------------------------------

    def pictures(
        self, media: Media, references: Sequence[str], needed: Sequence[str], journals: Path, *, label: str
    ) -> None:
        """Encodes the blocks of `references` that hold a needed one and are not done; journals each."""
        blocks = self.blocks(references)
        wanted = set(needed)
        cache = FeatureCache(self.cache)
        done = {
            number: rows
            for number, rows in self._journal(journals).items()
            if self._cached(cache, "images", rows) and not _failed(rows) and not _mended(media, rows)
        }
        todo = [b for b, names in enumerate(blocks) if b not in done and wanted.intersection(names)]
        self.world.barrier()  # all have read the journal before one of them writes
        mine = share(todo, self.world.rank, self.world.size)
        with journal.Journal(journals, "pictures", self.world.rank) as lines:
            for number, rows in self._each(
                mine, lambda b, own: self._block(media, blocks[b], own), f"pictures of {label}", len(todo)
            ):
                record = {"block": number, "model": self.identity, "rows": rows, "at": time.time()}
                lines.append(record)
        self.world.barrier()

    def read_pictures(
        self, references: Sequence[str], needed: Sequence[str], journals: Path, *, pooling: str
    ) -> Encoded:
        """One row per readable picture among `needed`, frames of a video averaged as `pooling` says."""
        cache, found = FeatureCache(self.cache), self._journal(journals)
        wanted = set(needed)
        features: list[np.ndarray] = []
        rows: dict[str, int] = {}
        reasons: dict[str, str] = {}
        for number, names in enumerate(self.blocks(references)):
            if not wanted.intersection(names):
                continue
            block = found[number]
            cache.open(_scope(block))
            for row in block:
                name = row["reference"]
                if name not in wanted:
                    continue
                kept = cache.get(self._space("images"), row["key"]) if row["key"] else None
                if kept is None:
                    reasons[name] = row["reason"] or "its features have vanished from the cache; run again"
                    continue
                rows[name] = len(features)
                features.append(pool(kept, pooling))
        return Encoded(np.stack(features) if features else np.zeros((0, 1)), rows, reasons)

    def blocks(self, names: Sequence[str]) -> list[list[str]]:
        return [list(names[i : i + self.batch_size]) for i in range(0, len(names), self.batch_size)]

    def _block(self, media: Media, names: Sequence[str], cache: FeatureCache) -> list[dict[str, str]]:
        """Reads a block's pictures and encodes what the cache lacks; one row per picture."""
        rows, frames = [], []
        for name in names:
            try:
                shown = media.frames(name)
                key = hashlib.sha256("".join(map(images.pixel_hash, shown)).encode()).hexdigest()
                rows.append({"reference": name, "key": key, "reason": ""})
                frames.append(shown)
            except images.ImageError as error:
                rows.append({"reference": name, "key": "", "reason": f"{UNUSABLE}{error}"})
                frames.append([])
        cache.open(_scope(rows))
        space = self._space("images")
        todo = [i for i, row in enumerate(rows) if row["key"]]
        if any(cache.get(space, rows[i]["key"]) is None for i in todo):
            for i, found in zip(todo, self._encode_frames([frames[i] for i in todo]), strict=True):
                if isinstance(found, str):
                    rows[i] |= {"reason": found, "key": ""}
                else:
                    cache.put(space, rows[i]["key"], found)
            if any(not rows[i]["key"] for i in todo):  # the address is made of what could be encoded
                kept = {row["key"]: cache.get(space, row["key"]) for row in rows if row["key"]}
                cache.open(_scope(rows))
                for key, value in kept.items():
                    assert value is not None
                    cache.put(space, key, value)
            cache.flush()
        return rows

    def _encode_frames(self, shown: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray | str]:
        """(F, D) per picture or video, or why there is none."""
        flat = [frame for frames in shown for frame in frames]
        found = _features(self.model.encode, flat)
        parts, start = [], 0
        for frames in shown:
            own = found[start : start + len(frames)]
            start += len(frames)
            parts.append(_first_reason(own) or np.stack(own))
        return parts

    # --- sentences -------------------------------------------------------------------------

    def texts(self, sentences: Sequence[str], needed: Sequence[str], *, label: str) -> None:
        """Encodes what the cache lacks of the blocks of `sentences` that hold a needed one."""
        blocks, wanted = self.blocks(list(dict.fromkeys(sentences))), set(needed)
        cache = FeatureCache(self.cache)
        todo = [
            b
            for b, names in enumerate(blocks)
            if wanted.intersection(names) and not self._texts_cached(cache, names)
        ]
        self.world.barrier()
        mine = share(todo, self.world.rank, self.world.size)
        for _ in self._each(
            mine, lambda b, own: self._text_block(blocks[b], own), f"sentences of {label}", len(todo)
        ):
            pass
        self.world.barrier()

    def read_texts(self, sentences: Sequence[str], needed: Sequence[str]) -> Encoded:
        """One row per distinct sentence among `needed`."""
        cache, wanted = FeatureCache(self.cache), set(needed)
        features: list[np.ndarray] = []
        rows: dict[str, int] = {}
        reasons: dict[str, str] = {}
        for names in self.blocks(list(dict.fromkeys(sentences))):
            cache.open(scope_of(names))
            for name in (n for n in names if n in wanted):
                kept = cache.get(self._space("texts"), _text_key(name))
                if kept is None:
                    reasons[name] = "the model gives no finite feature for the sentence"
                    continue
                rows[name] = len(features)
                features.append(kept)
        return Encoded(np.stack(features) if features else np.zeros((0, 1)), rows, reasons)

    def _texts_cached(self, cache: FeatureCache, names: Sequence[str]) -> bool:
        cache.open(scope_of(names))
        return all(cache.get(self._space("texts"), _text_key(name)) is not None for name in names)

    def _text_block(self, names: Sequence[str], cache: FeatureCache) -> None:
        cache.open(scope_of(names))
        for name, feature in zip(names, _features(self.model.encode_text, names), strict=True):
            if isinstance(feature, str):  # not kept: the next command tries again
                log.warning("a sentence cannot be encoded (%s): %.80s", feature, name)
                continue
            cache.put(self._space("texts"), _text_key(name), feature)
        cache.flush()

    # --- shared ----------------------------------------------------------------------------

    def _space(self, what: str) -> str:
        return f"negbench/{what}/{self.identity}"

    def _journal(self, journals: Path) -> dict[int, list[dict[str, str]]]:
        """Block -> its rows, the latest where a block was done again."""
        found = [record for record in journal.read(journals, "pictures") if record["model"] == self.identity]
        return {record["block"]: record["rows"] for record in sorted(found, key=lambda record: record["at"])}

    def _cached(self, cache: FeatureCache, what: str, rows: Sequence[dict[str, str]]) -> bool:
        cache.open(_scope(rows))
        return all(not row["key"] or cache.get(self._space(what), row["key"]) is not None for row in rows)

    def _each(
        self, numbers: Sequence[int], work: Callable[[int, FeatureCache], Any], label: str, total: int
    ) -> Iterator[tuple[int, Any]]:
        """(number, work(number, cache)) in order; on a CPU several at once, each on one thread."""
        if not numbers:
            return
        assert self.model is not None  # loaded here, not by several threads at once
        free: queue.SimpleQueue[FeatureCache] = queue.SimpleQueue()
        for _ in range(max(2, self.workers)):
            free.put(FeatureCache(self.cache))

        def run(number: int) -> Any:
            cache = free.get()
            try:
                return work(number, cache)
            finally:
                free.put(cache)

        quiet = not self.world.is_main
        with tqdm(total=len(numbers), desc=label, unit="block", disable=quiet or None) as bar:
            if self.workers > 1:
                found = read_ahead(run, numbers, self.workers, one_thread)
            else:
                found = ((number, run(number)) for number in numbers)
            for number, result in found:
                yield number, result
                bar.update(1)


def _failed(rows: Sequence[dict[str, str]]) -> bool:
    """Whether the model could not encode a picture, which it may be able to the next time."""
    return any(row["reason"] and not row["reason"].startswith(UNUSABLE) for row in rows)


def _mended(media: Media, rows: Sequence[dict[str, str]]) -> bool:
    """Whether a picture that could not be read is there now: its block is then encoded again, as a whole."""
    for row in rows:
        if row["reason"].startswith(UNUSABLE):
            try:
                media.frames(row["reference"])
            except images.ImageError:
                continue
            return True
    return False


def _scope(rows: Sequence[dict[str, str]]) -> str:
    return scope_of(row["key"] for row in rows)


def _text_key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _first_reason(parts: Sequence[np.ndarray | str]) -> str | None:
    return next((part for part in parts if isinstance(part, str)), None)


def _features(encode: Callable[[Sequence[Any]], np.ndarray], items: Sequence[Any]) -> list[np.ndarray | str]:
    """A feature per item; a sentence in place of one that cannot be had or is not finite."""
    return [
        row if isinstance(row, str) or np.isfinite(row).all() else "the model's feature is not finite"
        for row in isolated(encode, items)
    ]
