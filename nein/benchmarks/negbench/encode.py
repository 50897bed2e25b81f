"""Features of pictures and sentences: each computed once, kept on disk, found again by content.

Pictures are cut into blocks over all tasks of a data set, sentences over all of a task's; a block is encoded
as a whole, so that no feature depends on `--limit` or on the tasks asked for.
"""

from __future__ import annotations

import functools
import hashlib
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nein.datasets.negbench.records import Media
from nein.engine import answers, images
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import Folder, Row
from nein.engine.stages import Functions, Model, Stage
from nein.loading.errors import isolated
from nein.metrics.dual import pool

UNUSABLE = "the picture is unusable: "


@dataclass(frozen=True)
class Encoded:
    features: np.ndarray  # (N, D) float32 or float64, may lie in a file
    rows: dict[str, int]  # reference or sentence -> its row
    reasons: dict[str, str]  # reference or sentence -> why it has none


@dataclass(frozen=True)
class Encoding:
    """What a run encodes: a stage, and its features. Rows: name, key (SHA-256 of the content), reason."""

    folder: Folder
    output: str
    names: Sequence[str]  # distinct references or sentences, in an order that no selection changes
    wanted: Collection[str]  # blocks with one of them are encoded
    size: int  # of a block
    cache: Path  # of the features
    media: Media | None = None  # of pictures and videos; None: sentences

    @functools.cached_property
    def blocks(self) -> Blocks:
        chosen = [index for index, name in enumerate(self.names) if name in self.wanted]
        return Blocks(len(self.names), self.size, chosen)

    def load(self, name: str) -> tuple[Any, str]:
        """(what the model gets, key). Raises ImageError."""
        frames = [] if self.media is None else self.media.frames(name)
        content = "".join(map(images.pixel_hash, frames)) if frames else name
        return frames or name, hashlib.sha256(content.encode()).hexdigest()

    def encode(self, model: Any, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """(D,) float32 per sentence, (frames, D) per picture or video."""
        if self.media is None:
            return model.encode_text(list(inputs))
        ends = np.cumsum([len(frames) for frames in inputs])[:-1]
        return np.split(model.encode([frame for frames in inputs for frame in frames]), ends)

    def stage(self, model: Model) -> Stage:
        """Encodes what the cache lacks; what fails has a reason, and is tried again."""
        how = (self._inputs, self._work, model, self._usable)
        state = None if self.media is None else self._state
        return Functions(self.output, (self.output,), self.blocks, *how, state=state)

    def read(self, wanted: Collection[str], pooling: str | None = None) -> Encoded:
        """Features once the stage is done. pooling: of the frames of a video. Raises UserError when features
        have vanished since."""
        vectors = np.zeros((0, 1))
        rows: dict[str, int] = {}
        reasons: dict[str, str] = {}
        for number in self.blocks.numbers:
            block = self.folder.read(self.output, number)
            cached = self._cached(block)
            for row in block:
                name = row["name"]
                if name not in wanted:
                    continue
                if row["reason"]:
                    reasons[name] = row["reason"]
                    continue
                if row["key"] not in cached:
                    raise UserError(
                        f"Features have vanished from '{self.cache}'; give the same command again."
                    )
                feature = cached[row["key"]] if pooling is None else pool(cached[row["key"]], pooling)
                if not rows:
                    # In a file without a name: a million captions' features, 2 GiB, take free memory only.
                    with tempfile.TemporaryFile(dir=self.cache) as file:
                        vectors = np.memmap(file, feature.dtype, "w+", shape=(len(wanted), len(feature)))
                vectors[len(rows)] = feature
                rows[name] = len(rows)
        return Encoded(vectors[: len(rows)], rows, reasons)

    def cut(self) -> int:
        """How many of the wanted sentences are longer than what the model reads."""
        rows = self.folder.rows(self.output, self.blocks.numbers)
        return sum(bool(row.get("cut")) for row in rows if row["name"] in self.wanted)

    def keys(self) -> dict[str, str]:
        """Name -> key, of what has a feature, in the blocks that are there."""
        done = sorted(self.folder.done(self.output).intersection(self.blocks.numbers))
        return {row["name"]: row["key"] for row in self.folder.rows(self.output, done) if row["key"]}

    def _inputs(self, number: int) -> list[tuple[Row, Any]]:
        inputs = []
        for index in self.blocks.members(number):
            name = self.names[index]
            try:
                content, key = self.load(name)
                inputs.append(({"name": name, "key": key, "reason": ""}, content))
            except images.ImageError as error:
                inputs.append(({"name": name, "key": "", "reason": f"{UNUSABLE}{error}"}, None))
        return inputs

    def _work(self, model: Any, inputs: list[tuple[Row, Any]], missing: tuple[str, ...]) -> dict[str, Any]:
        rows = [row for row, _ in inputs]
        if self.media is None and hasattr(model, "overlong"):
            for row, cut in zip(rows, isolated(model.overlong, [row["name"] for row in rows]), strict=True):
                row |= {"cut": True} if cut is True else {}
        cached = answers.FeatureCache(self.cache).get(self._space(model.fingerprint), _scope(rows))
        todo = [(row, content) for row, content in inputs if row["key"]]
        if any(row["key"] not in cached for row, _ in todo):
            encoded = isolated(functools.partial(self.encode, model), [content for _, content in todo])
            entries = {}
            for (row, _), feature in zip(todo, encoded, strict=True):
                if isinstance(feature, str):
                    row |= {"key": "", "reason": feature}
                elif not np.isfinite(feature).all():
                    row |= {"key": "", "reason": "the model's feature is not finite"}
                else:
                    entries[row["key"]] = feature
            # By what could be encoded: what a failing picture left to the others is no whole block's.
            answers.FeatureCache(self.cache).put(self._space(model.fingerprint), _scope(rows), entries)
        return {self.output: rows}

    def _state(self, records: range) -> list[int | None]:
        assert self.media is not None
        return self.media.sizes(self.names[index] for index in records)

    def _usable(self, output: str, number: int, rows: list[Row]) -> bool:
        if [row["name"] for row in rows] != [self.names[index] for index in self.blocks.members(number)]:
            return False
        cached = self._cached(rows)
        return all(row["key"] in cached if row["key"] else self._unreadable(row) for row in rows)

    def _unreadable(self, row: Row) -> bool:
        """Whether a row without a feature stays one: what a model failed on, it may not fail on again."""
        if not row["reason"].startswith(UNUSABLE):
            return False
        try:
            self.load(row["name"])
        except images.ImageError:
            return True
        return False

    def _cached(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        return answers.FeatureCache(self.cache).get(self._space(self._fingerprint), _scope(rows))

    @functools.cached_property
    def _fingerprint(self) -> str:
        """Of the model that made what is there."""
        return str(self.folder.models()["model"]["fingerprint"])

    def _space(self, fingerprint: str) -> str:
        return f"negbench/{self.output.partition('/')[0]}/{fingerprint}"


def _scope(rows: Sequence[Row]) -> str:
    """A block's content; a picture without a feature counts by why, which decides how others were encoded."""
    return answers.scope_of(row["key"] or row["reason"].partition(":")[0] for row in rows)
