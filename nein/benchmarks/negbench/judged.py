"""Judged retrieval: do the first images that a negated caption finds really lack the object?

Recall ignores what else a caption finds. Each negated caption is compared with the original caption of the
same image, and with images drawn at random. If a judge's answers
define the test (SimpleNeg), a caption has two questions, which `nein negbench eval` asks once all images have
features. The others are asked by `nein negbench judge`, with a calibrated judge (judged.csv).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nein.benchmarks.negbench import retrieval
from nein.benchmarks.negbench.encoding import Encoded
from nein.benchmarks.negbench.folder import MODEL, PICTURE, UNUSABLE, VERDICTS
from nein.benchmarks.negbench.questions import Picture, picture
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.negbench.stages import ModelTasks
from nein.datasets.negbench.records import NEGATED, ORIGINAL, RetrievalTask
from nein.engine.folder import Row, sample_seed
from nein.engine.stages import Model, Stage
from nein.models import judges
from nein.models.judges import Word
from nein.wording.families import find_named

RANDOM = "at random"
KINDS = (NEGATED, ORIGINAL, RANDOM)
JUDGED_CSV = "judged.csv"
UNPARSED = "neither yes nor no"


@dataclass(frozen=True)
class Query:
    """One caption, with one object that the negated caption of its image denies."""

    id: str  # of caption and object: the same in all of `KINDS`
    source: str  # the image: intervals cluster by it
    kind: str  # of `KINDS`
    thing: str  # the object's name, or a question about it
    shown: tuple[str, ...]  # references of the images found, the best first
    also: str = ""  # a question about what the caption affirms, which must be in the image


def make_queries(
    task: RetrievalTask, pictures: Encoded, texts: Encoded, most: int | None = None, seed: int = 0
) -> list[Query]:
    """The images that `most` negated captions (evenly spread; None: all), their original captions, and chance
    find, among images with features. Captions that deny no named object or have no feature are left out."""
    encoded = texts.rows.keys()
    denials = [pair for pair in _list_denials(task) if encoded >= {*pair[1].values()} - {None}]
    if most is not None and len(denials) > most:
        denials = [denials[k * len(denials) // most] for k in range(most)]
    queries: list[Query] = []
    for kind in (NEGATED, ORIGINAL):
        searches = [(query, text) for query, phrases in denials if (text := phrases[kind]) is not None]
        seeds = [sample_seed(seed, f"{query.id}/{kind}") for query, _ in searches]
        results = find_images(task, pictures, texts, [text for _, text in searches], seeds)
        for (query, _), images in zip(searches, results, strict=True):
            queries.append(replace(query, kind=kind, shown=images))
    gallery = [name for name in task.references if name in pictures.rows]
    for query, _ in denials:
        drawn = np.random.default_rng(sample_seed(seed, f"{query.id}/{RANDOM}")).permutation(len(gallery))
        queries.append(replace(query, kind=RANDOM, shown=tuple(gallery[k] for k in drawn[: max(KS)])))
    return queries


def find_images(
    task: RetrievalTask, pictures: Encoded, texts: Encoded, captions: Sequence[str], seeds: Sequence[int]
) -> list[tuple[str, ...]]:
    """References of the first max(KS) images that each caption finds among those with features, the best
    first; equal ones in an order drawn by the caption's seed."""
    gallery = [name for name in task.references if name in pictures.rows]
    gallery_rows, rows = (
        np.array([place[name] for name in names], dtype=np.int64)
        for place, names in ((pictures.rows, gallery), (texts.rows, captions))
    )
    entries = retrieval.find_top(texts.features, pictures.features, rows, gallery_rows, max(KS), seeds)
    return [tuple(gallery[k] for k in row) for row in entries]  # of (captions, max(KS))


def list_unsearched(task: RetrievalTask) -> Iterator[tuple[Query, str]]:
    """The queries of every negated caption, and of chance, before any search, each with the caption."""
    for query, phrases in _list_denials(task):
        for kind in (NEGATED, RANDOM):
            yield replace(query, kind=kind), phrases[NEGATED] or ""


def _list_denials(task: RetrievalTask) -> Iterator[tuple[Query, dict[str, str | None]]]:
    """Queries without a kind, each with its captions by kind; None: the original one is missing."""
    plain = {item.id: item.captions for item in task.original}
    for item in task.negated:
        also = item.asked[1] if item.asked else ""
        for k, caption in enumerate(item.captions):
            originals = plain.get(item.id, ())
            twin = originals[k] if len(originals) == len(item.captions) else None
            things = item.asked[:1] if item.asked else find_named((caption,), item.negatives or ())
            for thing in things:
                query = Query(f"{item.id}#{k}/{thing}", item.cluster, "", thing, (), also)
                yield query, {NEGATED: caption, ORIGINAL: twin}


def collect_words(queries: Sequence[Query]) -> dict[str, list[Word]]:
    """Image found -> the objects and questions that the judge is asked about it, each once."""
    by_image: dict[str, dict[Word, None]] = {}
    for query in queries:
        for image in query.shown:
            for text in filter(None, (query.thing, query.also)):
                word = Word(text, None, judges.QUESTION if query.also else judges.OBJECT)
                by_image.setdefault(image, {})[word] = None
    return {image: list(word_set) for image, word_set in by_image.items()}


def make_verdict_rows(
    queries: Sequence[Query], verdicts: Mapping[tuple[str, str], Mapping[str, Any]], protocol: str
) -> Iterator[Row]:
    """A row per caption, object and image: id, source, kind, thing, asked (it is a question), rank, image,
    absent (1.0, 0.0 or None), reason. verdicts: (image, object or question) -> the judge's row."""
    for query in queries:
        for rank, image in enumerate(query.shown):
            answers = [verdicts[image, text] for text in (query.thing, query.also) if text]
            present = [row[f"verdict_{protocol}"] for row in answers]  # True, False, or None: unscored
            unscored = [row for row, verdict in zip(answers, present, strict=True) if verdict is None]
            reason = unscored[0]["reply"].get("error", UNPARSED) if unscored else ""
            absent = None if unscored else float(not present[0] and all(present[1:]))
            yield {**_make_row(query, rank, reason), "image": image, "absent": absent}


def _make_row(query: Query, rank: int, reason: str) -> Row:
    facts = {name: getattr(query, name) for name in ("id", "source", "kind", "thing")}
    entries = {"asked": bool(query.also), "rank": rank, "image": "", "absent": None, "reason": reason}
    return {**facts, **entries}


class Judging(Stage):
    """Asks the judge about the images that the captions of a task find, once all features exist. Rows: those
    of `make_verdict_rows`, with `failed` as in `stages.Questions`."""

    def __init__(self, *, tasks: ModelTasks, task: RetrievalTask, model: Model) -> None:
        complete = tasks.find_complete(task)
        assert isinstance(complete, RetrievalTask)
        self.name = name_output(task)
        self.outputs, self.blocks, self.model = (self.name,), tasks.blocks(task), model
        self.tasks, self.task, self.complete, self.pictures = tasks, task, complete, tasks.pictures()
        self.depends_on_all = (self.pictures.name, tasks.sentences(task).name)

    def read(self, number: int) -> tuple[list[Query], dict[str, Picture], list[Row]]:
        """(queries with their images, image by reference, rows of the captions without a feature)."""
        pictures, texts = self.tasks.features(self.tasks.complete_blocks(self.task))
        captions = tuple(self.complete.negated[k] for k in self.blocks.members(number))
        part = replace(self.complete, negated=captions)
        queries = make_queries(part, pictures, texts, seed=self.tasks.config.seed)
        failed = [(q, texts.reasons[text]) for q, text in list_unsearched(part) if text in texts.reasons]
        ranks = range(min(max(KS), len(pictures.rows)))
        rows = [_make_row(query, rank, reason) for query, reason in failed for rank in ranks]
        names = dict.fromkeys(image for query in queries for image in query.shown)
        return queries, {name: picture(self.complete.media, name) for name in names}, rows

    def work(self, model: Any, block: tuple[Any, ...], missing: tuple[str, ...]) -> dict[str, list[Row]]:
        queries, images, failed = block
        words, answers = collect_words(queries), dict[tuple[str, str], Row]()
        for name in (name for name, image in images.items() if isinstance(image, str)):
            reply = judges.make_unanswered(f"{UNUSABLE}{images[name]}")
            answers |= {(name, word.word): reply for word in words[name]}
        names = [name for name, image in images.items() if not isinstance(image, str)]
        for batch in (names[k : k + self.blocks.size] for k in range(0, len(names), self.blocks.size)):
            questions = [words[name] for name in batch]
            pixels: Any = [images[name] for name in batch]  # (H, W, 3) uint8 each
            replies = judges.ask("vqa", model, pixels, questions, judges.JudgeOptions())
            for name, asked_words, row in zip(batch, questions, replies, strict=True):
                answers |= {(name, word.word): answer for word, answer in zip(asked_words, row, strict=True)}
        rows = [*make_verdict_rows(queries, answers, self.tasks.config.protocol), *failed]
        for row in rows:
            is_final = row["absent"] is not None or row["reason"] == UNPARSED
            row["failed"] = "" if is_final else PICTURE if row["reason"].startswith(UNUSABLE) else MODEL
        return {self.name: rows}

    def is_valid(self, output: str, number: int, rows: list[Row]) -> bool:
        return all(row["failed"] != MODEL for row in rows)

    def state(self, records: range) -> list[tuple[str, str]]:
        return sorted(self.pictures.keys().items())  # every image may change what a caption finds


def name_output(task: RetrievalTask) -> str:
    return f"{VERDICTS}/{task.key}"
