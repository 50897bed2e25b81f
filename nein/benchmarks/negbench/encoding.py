"""The stage that encodes images or sentences with a two-tower model, and the features that it caches.

Images are cut into blocks over all tasks of a data set, sentences over all of a task; a block is encoded as
a whole, so that no feature depends on `--limit` or on the selected tasks."""

from __future__ import annotations

import functools
import hashlib
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.folder import UNUSABLE
from nein.datasets.negbench.media import Media
from nein.engine import answers
from nein.engine.folder import Blocks, Folder, Row
from nein.engine.images import ImageError
from nein.engine.stages import Model, Stage
from nein.loading.digests import pixel_digest
from nein.loading.errors import UserError, isolate
from nein.metrics.dual import pool


@dataclass(frozen=True)
class Encoded:
    """Features of images or sentences."""

    features: np.ndarray  # (N, D) float32 or float64, may lie in a file
    rows: dict[str, int]  # reference or sentence -> its row
    reasons: dict[str, str]  # reference or sentence -> why it has none


class Encoding(Stage):
    """Encodes images or sentences that the cache lacks; an input on which the model failed is tried again.
    Rows: name, key (SHA-256 of the content), reason (why no feature), cut (the model truncates the sentence).

    names      Distinct references or sentences, in an order that no selection changes.
    selection  The names whose blocks are encoded.
    media      The images and videos; None: `names` are sentences."""

    def __init__(
        self,
        output: str,
        names: Sequence[str],
        selection: Collection[str],
        media: Media | None,
        *,
        folder: Folder,
        config: EvalConfig,
        model: Model | None,
    ) -> None:
        self.name, self.outputs = output, (output,)
        self.names, self.selection, self.media = names, selection, media
        self.folder, self.cache, self.model = folder, config.cache_dir, model
        chosen = [index for index, name in enumerate(names) if name in selection]
        self.blocks = Blocks(len(names), config.batch_size, chosen)

    def read(self, number: int) -> list[tuple[Row, Any]]:
        """Rows, each with its input: a sentence, the frames of an image or video, or None (unreadable)."""
        inputs: list[tuple[Row, Any]] = []
        for index in self.blocks.members(number):
            name = self.names[index]
            try:
                frames = [] if self.media is None else self.media.frames(name)
            except ImageError as error:
                inputs.append(({"name": name, "key": "", "reason": f"{UNUSABLE}{error}"}, None))
                continue
            content = "".join(map(pixel_digest, frames)) if frames else name
            key = hashlib.sha256(content.encode()).hexdigest()
            inputs.append(({"name": name, "key": key, "reason": ""}, frames or name))
        return inputs

    def work(self, model: Any, inputs: list[tuple[Row, Any]], missing: tuple[str, ...]) -> dict[str, Any]:
        rows: list[Row] = [row for row, _ in inputs]
        if self.media is None and hasattr(model, "overlong"):
            # A string in place of True or False: the tokenizer failed on the sentence.
            for row, is_cut in zip(rows, isolate(model.overlong, [row["name"] for row in rows]), strict=True):
                if is_cut is True:
                    row["cut"] = True
        cache, space = answers.FeatureCache(self.cache), self._space(model.fingerprint)
        cached = cache.get(space, _scope(rows))
        readable = [(row, content) for row, content in inputs if row["key"]]
        if all(row["key"] in cached for row, _ in readable):
            return {self.name: rows}
        encoded = isolate(functools.partial(self.encode, model), [content for _, content in readable])
        entries = {}
        for (row, _), feature in zip(readable, encoded, strict=True):
            if isinstance(feature, str):  # why the model failed on this input
                row.update(key="", reason=feature)
            elif not np.isfinite(feature).all():
                row.update(key="", reason="the model's feature is not finite")
            else:
                entries[row["key"]] = feature
        # Keyed by the inputs that could be encoded: a failed one changes the batch of the others.
        cache.put(space, _scope(rows), entries)
        return {self.name: rows}

    def encode(self, model: Any, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """(D,) float32 per sentence, (frames, D) per image or video."""
        if self.media is None:
            return model.encode_text(list(inputs))
        ends = np.cumsum([len(frames) for frames in inputs])[:-1]  # where each input's frames end
        return np.split(model.encode([frame for frames in inputs for frame in frames]), ends)

    def is_valid(self, output: str, number: int, rows: list[Row]) -> bool:
        if [row["name"] for row in rows] != [self.names[index] for index in self.blocks.members(number)]:
            return False
        cached = self._read_cache(rows)  # an input on which the model failed is tried again
        return all(row["key"] in cached or row["reason"].startswith(UNUSABLE) for row in rows)

    def files(self, records: range) -> list[Path]:
        return [] if self.media is None else self.media.files(self.names[index] for index in records)

    def read_features(self, selection: Collection[str]) -> Encoded:
        """The features of the selected names, after the stage. Raises UserError if they have vanished."""
        vectors = np.zeros((0, 1))  # (N, D)
        rows: dict[str, int] = {}
        reasons: dict[str, str] = {}
        for number in self.blocks.numbers:
            block = self.folder.read(self.name, number)
            cached = self._read_cache(block)
            for row in block:
                name = row["name"]
                if name not in selection:
                    continue
                if row["reason"]:
                    reasons[name] = row["reason"]
                    continue
                if row["key"] not in cached:
                    raise UserError(f"Features have vanished from '{self.cache}'; rerun the command.")
                feature = cached[row["key"]] if self.media is None else pool(cached[row["key"]])
                if not rows:
                    # An unnamed file: features of a million captions, 2 GiB, use no more than free memory.
                    with tempfile.TemporaryFile(dir=self.cache) as file:
                        vectors = np.memmap(file, feature.dtype, "w+", shape=(len(selection), len(feature)))
                vectors[len(rows)] = feature
                rows[name] = len(rows)
        return Encoded(vectors[: len(rows)], rows, reasons)

    def list_keys(self) -> dict[str, str]:
        """Name -> key of every feature in the finished blocks."""
        done = sorted(self.folder.list_blocks(self.name).intersection(self.blocks.numbers))
        return {row["name"]: row["key"] for row in self.folder.rows(self.name, done) if row["key"]}

    @functools.cached_property
    def _fingerprint(self) -> str:
        """The fingerprint of the model that made the features of this folder."""
        return str(self.folder.models()["model"]["fingerprint"])

    def _read_cache(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        return answers.FeatureCache(self.cache).get(self._space(self._fingerprint), _scope(rows))

    def _space(self, fingerprint: str) -> str:
        """The part of the cache with features of one model, of images or of sentences."""
        return f"negbench/{self.name.partition('/')[0]}/{fingerprint}"


def _scope(rows: Sequence[Row]) -> str:
    """The cache's key of a block: a hash of its contents in order; if unreadable, of the reason."""
    return answers.hash_scope(row["key"] or row["reason"].partition(":")[0] for row in rows)
