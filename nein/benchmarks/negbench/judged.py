"""Judged retrieval: do the first images that a negated caption finds really lack the object?

Recall counts one right image and ignores what else a caption finds. Here a judge looks at the first images of
each negated caption, of the original caption of the same image, and at images drawn at random: queries ->
images found -> questions to the judge -> rows of verdicts.

SimpleNeg brings its own questions, which `nein negbench eval` asks (`Judging`) once all images have features.
Other data are judged by `nein negbench judge`, with a calibrated judge (judged.csv)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nein.benchmarks.negbench import retrieval
from nein.benchmarks.negbench.encoding import Encoded
from nein.benchmarks.negbench.folder import IMAGE_FAILED, MODEL_FAILED, UNUSABLE, VERDICTS
from nein.benchmarks.negbench.questions import Pixels, read_image
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.negbench.stages import ModelTasks
from nein.datasets.negbench.records import NEGATED, ORIGINAL, RetrievalTask
from nein.engine.folder import Row, sample_seed
from nein.engine.stages import Model, Stage
from nein.models import judges
from nein.models.judges import Word
from nein.wording.families import find_named

RANDOM = "at random"
KINDS = (NEGATED, ORIGINAL, RANDOM)  # how images were found: by which caption, or drawn
JUDGED_CSV = "judged.csv"
UNPARSED = "neither yes nor no"  # the reason of a verdict that an answer does not give
DEPTH = max(KS)  # images judged per query


# --- queries, and the images that they find --------------------------------------------------------
@dataclass(frozen=True)
class Query:
    """One caption, with one object that the negated caption of its image denies."""

    id: str  # of caption and object: the same in all of `KINDS`
    source: str  # the image: intervals cluster by it
    kind: str  # of `KINDS`
    thing: str  # the denied object's name, or a question about it
    images: tuple[str, ...]  # references of those found, the best first
    also: str = ""  # a question about what the caption affirms, which must be in the image


def make_queries(
    task: RetrievalTask, pictures: Encoded, texts: Encoded, most: int | None = None, seed: int = 0
) -> list[Query]:
    """A query per denial and kind, with the images that it finds among those with features.

    most  Number of denials, evenly spread; None: all. A caption without a feature makes none."""
    denials = []
    for query, captions in _list_denials(task):
        if all(text is None or text in texts.rows for text in captions.values()):
            denials.append((query, captions))
    if most is not None and len(denials) > most:
        denials = [denials[k * len(denials) // most] for k in range(most)]

    # By the captions, then at random.
    queries: list[Query] = []
    for kind in (NEGATED, ORIGINAL):
        searches = [(query, text) for query, captions in denials if (text := captions[kind]) is not None]
        seeds = [sample_seed(seed, f"{query.id}/{kind}") for query, _ in searches]
        results = find_images(task, pictures, texts, [text for _, text in searches], seeds)
        for (query, _), images in zip(searches, results, strict=True):
            queries.append(replace(query, kind=kind, images=images))
    gallery = [name for name in task.references if name in pictures.rows]
    for query, _ in denials:
        drawn = np.random.default_rng(sample_seed(seed, f"{query.id}/{RANDOM}")).permutation(len(gallery))
        queries.append(replace(query, kind=RANDOM, images=tuple(gallery[k] for k in drawn[:DEPTH])))
    return queries


def find_images(
    task: RetrievalTask, pictures: Encoded, texts: Encoded, captions: Sequence[str], seeds: Sequence[int]
) -> list[tuple[str, ...]]:
    """References of the first `DEPTH` images that each caption finds among those with features, the best
    first; equal ones in an order drawn by the caption's seed."""
    gallery = [name for name in task.references if name in pictures.rows]
    gallery_rows = np.array([pictures.rows[name] for name in gallery], dtype=np.int64)  # (G,)
    caption_rows = np.array([texts.rows[text] for text in captions], dtype=np.int64)  # (N,)
    entries = retrieval.find_top(texts.features, pictures.features, caption_rows, gallery_rows, DEPTH, seeds)
    return [tuple(gallery[k] for k in row) for row in entries]  # entries: (N, DEPTH)


def list_unsearched(task: RetrievalTask) -> Iterator[tuple[Query, str]]:
    """Yields (query without images, its negated caption) for every denial: one searched for, one at random.
    Tests that bring questions have no original captions."""
    for query, captions in _list_denials(task):
        for kind in (NEGATED, RANDOM):
            yield replace(query, kind=kind), captions[NEGATED] or ""


def _list_denials(task: RetrievalTask) -> Iterator[tuple[Query, dict[str, str | None]]]:
    """Yields (query without kind and images, kind -> caption) for every object that a caption denies; the
    original caption is None if it is missing."""
    captions_of = {item.id: item.captions for item in task.original}
    for item in task.negated:
        also = item.asked[1] if item.asked else ""
        originals = captions_of.get(item.id, ())
        for k, caption in enumerate(item.captions):
            original = originals[k] if len(originals) == len(item.captions) else None
            things = item.asked[:1] if item.asked else find_named((caption,), item.negatives or ())
            for thing in things:
                name = f"{item.id}#{k}/{thing}"
                query = Query(name, source=item.cluster, kind="", thing=thing, images=(), also=also)
                yield query, {NEGATED: caption, ORIGINAL: original}


# --- questions to the judge, and its verdicts ------------------------------------------------------
def collect_words(queries: Sequence[Query]) -> dict[str, list[Word]]:
    """Image found -> the objects and questions that the judge is asked about it, each once."""
    words_of: dict[str, dict[Word, None]] = {}  # a dict as an ordered set
    for query in queries:
        for image in query.images:
            for text in _list_questions(query):
                word = Word(text, None, judges.QUESTION if query.also else judges.OBJECT)
                words_of.setdefault(image, {})[word] = None
    return {image: list(words) for image, words in words_of.items()}


def _list_questions(query: Query) -> list[str]:
    """What must be absent from the image, then what must be in it, if the query asks that."""
    return [query.thing, query.also] if query.also else [query.thing]


def make_verdict_rows(
    queries: Sequence[Query], verdicts: Mapping[tuple[str, str], Mapping[str, Any]], protocol: str
) -> Iterator[Row]:
    """A row per query and image: id, source, kind, thing, asked (whether `thing` is a question), rank, image,
    absent (1.0, 0.0 or None), reason. verdicts: (image, object or question) -> the judge's row."""
    for query in queries:
        for rank, image in enumerate(query.images):
            answers = [verdicts[image, text] for text in _list_questions(query)]
            present = [row[f"verdict_{protocol}"] for row in answers]  # True, False, or None: unscored
            unscored = [row for row, verdict in zip(answers, present, strict=True) if verdict is None]
            reason = unscored[0]["reply"].get("error", UNPARSED) if unscored else ""
            absent = None if unscored else float(not present[0] and all(present[1:]))
            yield {**_make_row(query, rank, reason), "image": image, "absent": absent}


def _make_row(query: Query, rank: int, reason: str) -> Row:
    """The row of an image without a verdict."""
    facts = {name: getattr(query, name) for name in ("id", "source", "kind", "thing")}
    entries = {"asked": bool(query.also), "rank": rank, "image": "", "absent": None, "reason": reason}
    return {**facts, **entries}


class Judging(Stage):
    """Asks the judge about the images that the captions of a task find, once all features exist. Rows: those
    of `make_verdict_rows`, with `failed` as in `questions.Questions`."""

    def __init__(self, *, model_tasks: ModelTasks, task: RetrievalTask, model: Model) -> None:
        complete = model_tasks.find_complete(task)
        assert isinstance(complete, RetrievalTask)
        self.model_tasks, self.task, self.complete, self.model = model_tasks, task, complete, model
        self.name = name_output(task)
        self.outputs, self.blocks = (self.name,), model_tasks.blocks(task)
        self.encoding = model_tasks.encode_images()
        self.depends_on_all = (self.encoding.name, model_tasks.encode_sentences(task).name)

    def read(self, number: int) -> tuple[list[Query], dict[str, Pixels], list[Row]]:
        """(queries with their images, image by reference, rows of the captions without a feature)."""
        pictures, texts = self.model_tasks.read_features(self.model_tasks.complete_blocks(self.task))
        items = tuple(self.complete.negated[k] for k in self.blocks.members(number))
        block = replace(self.complete, negated=items)
        queries = make_queries(block, pictures, texts, seed=self.model_tasks.config.seed)
        failed = []
        for query, text in list_unsearched(block):
            if text in texts.reasons:
                ranks = range(min(DEPTH, len(pictures.rows)))
                failed += [_make_row(query, rank, texts.reasons[text]) for rank in ranks]
        names = dict.fromkeys(image for query in queries for image in query.images)
        return queries, {name: read_image(self.complete.media, name) for name in names}, failed

    def work(self, model: Any, block: tuple[Any, ...], missing: tuple[str, ...]) -> dict[str, list[Row]]:
        queries, images, failed = block
        words = collect_words(queries)
        answers: dict[tuple[str, str], Row] = {}  # (image, word) -> the judge's row
        readable = []
        for name, image in images.items():
            if not isinstance(image, str):
                readable.append(name)
                continue
            for word in words[name]:
                answers[name, word.word] = judges.make_unanswered(f"{UNUSABLE}{image}")
        for start in range(0, len(readable), self.blocks.size):
            batch = readable[start : start + self.blocks.size]
            questions = [words[name] for name in batch]
            pixels: Any = [images[name] for name in batch]  # (H, W, 3) uint8 each
            replies = judges.ask("vqa", model, pixels, questions, judges.JudgeOptions())
            for name, asked, row in zip(batch, questions, replies, strict=True):
                for word, answer in zip(asked, row, strict=True):
                    answers[name, word.word] = answer
        rows = [*make_verdict_rows(queries, answers, self.model_tasks.config.protocol), *failed]
        for row in rows:
            if row["absent"] is not None or row["reason"] == UNPARSED:
                row["failed"] = ""  # final
            else:
                row["failed"] = IMAGE_FAILED if row["reason"].startswith(UNUSABLE) else MODEL_FAILED
        return {self.name: rows}

    def is_valid(self, output: str, number: int, rows: list[Row]) -> bool:
        return all(row["failed"] != MODEL_FAILED for row in rows)

    def state(self, records: range) -> list[tuple[str, str]]:
        return sorted(self.encoding.list_keys().items())  # every image may change what a caption finds


def name_output(task: RetrievalTask) -> str:
    return f"{VERDICTS}/{task.key}"
