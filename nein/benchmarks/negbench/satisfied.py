"""A test that is defined by a judge's answers (SimpleNeg): is what a caption finds as it says?

Each caption brings two questions: whether what it denies is there, and whether what it affirms is. What is
found depends on the features of all pictures, so that blocks wait for all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nein.benchmarks.negbench import retrieved
from nein.benchmarks.negbench.encode import UNUSABLE, Encoded
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.negbench.retrieved import Query
from nein.benchmarks.negbench.vlm import MODEL, PICTURE, picture
from nein.datasets.negbench.records import RetrievalTask
from nein.engine.blocks import Blocks
from nein.engine.folder import Row
from nein.engine.stages import Model, Stage
from nein.models import judges


@dataclass(frozen=True)
class _Found:
    """What a block's captions find.

    pictures  Reference -> (H, W, 3) uint8 RGB, or why there is none.
    lost      Those of captions without a feature, and why.
    gallery   Of how many pictures.
    """

    queries: Sequence[Query]
    pictures: Mapping[str, np.ndarray | str]
    lost: Sequence[tuple[Query, str]]
    gallery: int


def judging(
    output: str,
    task: RetrievalTask,
    blocks: Blocks,
    *,
    features: Callable[[], tuple[Encoded, Encoded]],
    gallery: Callable[[], int],
    after: tuple[str, ...],
    model: Model,
    protocol: str,
    seed: int,
) -> Stage:
    """Asks about what the captions of blocks of a task find.

    features  Of the pictures and of the sentences, once the outputs `after` are there.
    gallery   How many pictures have a feature, as far as they are there.

    Rows: those of `retrieved.rows_of`, with `failed` as of `vlm.asking`, and `gallery`, the number of
    pictures searched: where more can be read than could be, others may be found.
    """

    def part(number: int) -> RetrievalTask:
        return replace(task, negated=tuple(task.negated[index] for index in blocks.members(number)))

    def read(number: int) -> _Found:
        pictures, texts = features()
        asked = retrieved.queries(part(number), pictures, texts, seed=seed)
        lost = [
            (query, texts.reasons[caption])
            for query, caption in retrieved.unfound(part(number))
            if caption in texts.reasons
        ]
        shown = dict.fromkeys(image for query in asked for image in query.shown)
        return _Found(asked, {image: picture(task.media, image) for image in shown}, lost, len(pictures.rows))

    def work(judge: Any, found: _Found, missing: tuple[str, ...]) -> dict[str, list[Row]]:
        said = _ask(judge, found, blocks.size)
        rows = [*retrieved.rows_of(found.queries, said, protocol), *_lost(found.lost, found.gallery)]
        return {output: [{**row, "failed": _failed(row), "gallery": found.gallery} for row in rows]}

    def lost(number: int, reason: str, missing: tuple[str, ...]) -> dict[str, list[Row]]:
        size, none = gallery(), [(query, reason) for query, _ in retrieved.unfound(part(number))]
        return {output: [{**row, "failed": MODEL, "gallery": size} for row in _lost(none, size)]}

    def usable(_: str, rows: list[Row]) -> bool:
        size = gallery()
        return not any(
            row["gallery"] != size
            or row["failed"] == MODEL
            or (row["failed"] == PICTURE and not isinstance(picture(task.media, row["image"]), str))
            for row in rows
        )

    return Stage(output, (output,), blocks, read, work, lost, model, usable, after=after)


def _ask(judge: Any, found: _Found, size: int) -> dict[tuple[str, str], dict[str, Any]]:
    """(picture, question) -> what the judge says, `size` pictures at a time; or why it was shown none."""
    words = retrieved.words(found.queries)
    said: dict[tuple[str, str], dict[str, Any]] = {}
    for image, seen in found.pictures.items():
        if isinstance(seen, str):
            said |= {(image, word.word): judges.unanswered(f"{UNUSABLE}{seen}") for word in words[image]}
    shown = [(image, seen) for image, seen in found.pictures.items() if not isinstance(seen, str)]
    for start in range(0, len(shown), size):
        images, pictures = zip(*shown[start : start + size], strict=True)
        asked = [words[image] for image in images]
        answers = judges.ask("vqa", judge, pictures, asked, judges.Manner())
        for image, these, row in zip(images, asked, answers, strict=True):
            said |= {(image, word.word): answer for word, answer in zip(these, row, strict=True)}
    return said


def _failed(row: Row) -> str:
    """What is tried again: see `vlm.asking`."""
    if row["absent"] is not None or row["reason"] == retrieved.UNPARSED:
        return ""
    return PICTURE if row["reason"].startswith(UNUSABLE) else MODEL


def _lost(queries: Sequence[tuple[Query, str]], gallery: int) -> list[Row]:
    """A row for every picture that would have been looked at."""
    return [
        retrieved.row_of(query, rank, "", None, reason)
        for query, reason in queries
        for rank in range(min(max(KS), gallery))
    ]
