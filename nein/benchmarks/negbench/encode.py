"""Features of pictures and sentences: each computed once, kept on disk, found again by content.

Pictures are cut into blocks over all tasks of a data set, sentences over all of a task's; a block is encoded
as a whole, so that no feature depends on `--limit` or on the tasks asked for.
"""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nein.datasets.negbench.records import Media
from nein.engine import features, images
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import Folder, Row
from nein.engine.stages import Model, Stage
from nein.loading.errors import isolated
from nein.metrics.dual import normalise, pool

UNUSABLE = "the picture is unusable: "


@dataclass(frozen=True)
class Encoded:
    """features: (N, D) float32 or float64, may lie in a file; rows: reference or sentence -> its row;
    reasons: reference or sentence -> why it has none."""

    features: np.ndarray
    rows: dict[str, int]
    reasons: dict[str, str]


@dataclass(frozen=True)
class Encoding:
    """What there is to encode of a run: a stage, and what came of it.

    output  Rows: name, key (SHA-256 of the content), reason.
    names   Distinct references or sentences, in an order that no selection changes.
    load    A name -> (what the model gets, key). Raises ImageError.
    encode  (model, what `load` gave) -> as many float32 arrays.
    cache   Folder of the features.
    among   What a feature depends on besides; None: nothing."""

    folder: Folder
    output: str
    names: Sequence[str]
    blocks: Blocks
    load: Callable[[str], tuple[Any, str]]
    encode: Callable[[Any, Sequence[Any]], Sequence[np.ndarray]]
    cache: Path
    among: Searched | None = None

    def stage(self, model: Model) -> Stage:
        """Encodes what the cache lacks. A failing picture or sentence has a reason, and is tried again."""
        after = () if self.among is None else (self.among.pictures.output,)
        how = (self._inputs, self._work, self._lost, model, self._usable)
        return Stage(self.output, (self.output,), self.blocks, *how, depends_on_all=after)

    def read(self, wanted: Collection[str], pooling: str | None = None) -> Encoded:
        """The features of `wanted` once the stage is done. pooling: how frames of a video become one feature;
        None for sentences. Raises UserError when features have vanished since."""
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

    def keys(self) -> dict[str, str]:
        """Name -> key of everything that has a feature, in the blocks that are there."""
        there = sorted(self.folder.done(self.output).intersection(self.blocks.numbers))
        return {row["name"]: row["key"] for row in self.folder.rows(self.output, there) if row["key"]}

    def _inputs(self, number: int) -> list[tuple[Row, Any]]:
        """(row, what the model gets) per name of a block; a row without content has a reason."""
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
        cached = features.read(self.cache, self._space(model.fingerprint), _scope(rows))
        todo = [(row, content) for row, content in inputs if row["key"]]
        if any(row["key"] not in cached for row, _ in todo):
            made = isolated(functools.partial(self.encode, model), [content for _, content in todo])
            entries = {}
            for (row, _), feature in zip(todo, made, strict=True):
                if isinstance(feature, str):
                    row |= {"key": "", "reason": feature}
                elif not np.isfinite(feature).all():
                    row |= {"key": "", "reason": "the model's feature is not finite"}
                else:
                    entries[row["key"]] = feature
            # By what could be encoded: what a failing picture left to the others is no whole block's.
            features.write(self.cache, self._space(model.fingerprint), _scope(rows), entries)
        return {self.output: rows}

    def _lost(self, number: int, reason: str, missing: tuple[str, ...]) -> dict[str, Any]:
        names = [self.names[index] for index in self.blocks.members(number)]
        return {self.output: [{"name": name, "key": "", "reason": reason} for name in names]}

    def _usable(self, output: str, number: int, rows: list[Row]) -> bool:
        """Whether nothing has vanished and nothing is worth another try."""
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
        fingerprint = self.folder.notes("models")["model"]["fingerprint"]
        return features.read(self.cache, self._space(fingerprint), _scope(rows))

    def _space(self, fingerprint: str) -> str:
        space = f"negbench/{self.output.partition('/')[0]}/{fingerprint}"
        return space if self.among is None else f"{space}/{self.among.digest()}"


@dataclass(frozen=True)
class Searched:
    """What a model adapts to before it encodes a sentence (`nein.models.remedies.encoders`): captions, and
    the pictures that they search.

    references  Of `pictures`; those without a feature are left out.
    pooling     As `Encoding.read` takes it.
    captions    That the model adapts to.
    """

    pictures: Encoding
    references: Sequence[str]
    pooling: str
    captions: Sequence[str]

    def gallery(self) -> np.ndarray:
        """(M, D) float64 features of length 1."""
        read = self.pictures.read(set(self.references), self.pooling)
        return normalise(read.features[[read.rows[name] for name in self.references if name in read.rows]])

    def digest(self) -> str:
        """Of the pictures, as far as they have features, and of the captions."""
        keys = self.pictures.keys()
        content = [[keys.get(name, "") for name in self.references], self.pooling, list(self.captions)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20]


def of_pictures(
    folder: Folder,
    output: str,
    references: Sequence[str],
    wanted: Collection[str],
    media: Media,
    *,
    batch_size: int,
    cache: Path,
) -> Encoding:
    """(frames, D) per picture or video, of the blocks of `references` that hold a wanted one."""

    def load(name: str) -> tuple[list[np.ndarray], str]:
        frames = media.frames(name)
        return frames, hashlib.sha256("".join(map(images.pixel_hash, frames)).encode()).hexdigest()

    def encode(model: Any, shown: Sequence[list[np.ndarray]]) -> list[np.ndarray]:
        ends = np.cumsum([len(frames) for frames in shown])[:-1]
        return np.split(model.encode([frame for frames in shown for frame in frames]), ends)

    blocks = Blocks(len(references), batch_size, [k for k, one in enumerate(references) if one in wanted])
    return Encoding(folder, output, references, blocks, load, encode, cache)


def of_sentences(
    folder: Folder,
    output: str,
    sentences: Sequence[str],
    wanted: Collection[str],
    *,
    batch_size: int,
    cache: Path,
    among: Searched | None = None,
) -> Encoding:
    """(D,) per distinct sentence, of the blocks of `sentences` that hold a wanted one."""
    names = list(dict.fromkeys(sentences))

    def load(text: str) -> tuple[str, str]:
        return text, hashlib.sha256(text.encode()).hexdigest()

    def encode(model: Any, texts: Sequence[str]) -> Sequence[np.ndarray]:
        if among is not None:
            return model.encode_among(list(texts), among.gallery(), among.captions)
        return model.encode_text(list(texts))

    blocks = Blocks(len(names), batch_size, [k for k, text in enumerate(names) if text in wanted])
    return Encoding(folder, output, names, blocks, load, encode, cache, among)


def _scope(rows: Sequence[Row]) -> str:
    """A block's content; a picture without a feature counts by why, which decides how others were encoded."""
    return features.scope_of(row["key"] or row["reason"].partition(":")[0] for row in rows)
