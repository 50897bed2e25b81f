"""Are the first pictures that a caption with a negation finds really without the thing?

Recall does not see what else a caption finds. Beside the negated caption stand the original one of the same
picture and pictures drawn at random. Captions of a test that a judge's answers define (SimpleNeg) bring two
questions and are asked in the evaluation itself, after all pictures have features. The others are asked by
`nein negbench judge`, which has a calibrated judge; every later report shows their figures (judged.csv).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nein.benchmarks.negbench import retrieval
from nein.benchmarks.negbench.data import MODEL, PICTURE, VERDICTS
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.negbench.stages import UNUSABLE, Encoded, ModelTasks, Picture, picture
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
    """One caption with one thing that the negated caption of its picture denies."""

    id: str  # of the caption and the thing: the same in all of `KINDS`
    source: str
    kind: str
    thing: str  # its name, or a question about it
    shown: tuple[str, ...]  # references of what was found, the best first
    also: str = ""  # a question about what the caption affirms, which has to be shown as well


def queries(
    task: RetrievalTask, pictures: Encoded, texts: Encoded, most: int | None = None, seed: int = 0
) -> list[Query]:
    """What `most` negated captions (evenly spread; None: all), their original captions, and chance find among
    the pictures that have features; without captions that name no denied thing or have no feature."""
    found_as = texts.rows.keys()
    todo = [(query, phrases) for query, phrases in _denials(task) if found_as >= {*phrases.values()} - {None}]
    if most is not None and len(todo) > most:
        todo = [todo[k * len(todo) // most] for k in range(most)]
    found: list[Query] = []
    for kind in (NEGATED, ORIGINAL):
        worded = [(query, text) for query, phrases in todo if (text := phrases[kind]) is not None]
        seeds = [sample_seed(seed, f"{query.id}/{kind}") for query, _ in worded]
        shown = found_by(task, pictures, texts, [text for _, text in worded], seeds)
        found += [replace(query, kind=kind, shown=own) for (query, _), own in zip(worded, shown, strict=True)]
    gallery = [name for name in task.references if name in pictures.rows]
    for query, _ in todo:
        drawn = np.random.default_rng(sample_seed(seed, f"{query.id}/{RANDOM}")).permutation(len(gallery))
        found.append(replace(query, kind=RANDOM, shown=tuple(gallery[k] for k in drawn[: max(KS)])))
    return found


def found_by(
    task: RetrievalTask, pictures: Encoded, texts: Encoded, captions: Sequence[str], seeds: Sequence[int]
) -> list[tuple[str, ...]]:
    """References of the first images that each caption finds, of those that have features, the best first;
    equal ones in an order drawn by the caption's seed."""
    gallery = [name for name in task.references if name in pictures.rows]
    gallery_rows, rows = (
        np.array([place[name] for name in names], dtype=np.int64)
        for place, names in ((pictures.rows, gallery), (texts.rows, captions))
    )
    places = retrieval.top(texts.features, pictures.features, rows, gallery_rows, max(KS), seeds)
    return [tuple(gallery[k] for k in row) for row in places]  # of (captions, max(KS))


def unfound(task: RetrievalTask) -> Iterator[tuple[Query, str]]:
    """Every negated caption, as what it and chance would ask, which find nothing."""
    for query, phrases in _denials(task):
        for kind in (NEGATED, RANDOM):
            yield replace(query, kind=kind), phrases[NEGATED] or ""


def _denials(task: RetrievalTask) -> Iterator[tuple[Query, dict[str, str | None]]]:
    """Queries of no kind, each with its captions by kind; None: no original one."""
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


def words(asked: Sequence[Query]) -> dict[str, list[Word]]:
    """Every picture that was found -> what is asked about it, each once."""
    by_image: dict[str, dict[Word, None]] = {}
    for query in asked:
        for image in query.shown:
            for text in filter(None, (query.thing, query.also)):
                word = Word(text, None, judges.QUESTION if query.also else judges.OBJECT)
                by_image.setdefault(image, {})[word] = None
    return {image: list(these) for image, these in by_image.items()}


def rows_of(
    asked: Sequence[Query], verdicts: Mapping[tuple[str, str], Mapping[str, Any]], protocol: str
) -> Iterator[Row]:
    """A row per caption, thing and image: id, source, kind, thing, asked (whether it is a question), rank,
    image, absent (1.0, 0.0 or None), reason. verdicts: (image, thing or question) -> the judge's row."""
    for query in asked:
        for rank, image in enumerate(query.shown):
            answers = [verdicts[image, text] for text in (query.thing, query.also) if text]
            found = [row[f"verdict_{protocol}"] for row in answers]
            lost = next((row for row, verdict in zip(answers, found, strict=True) if verdict is None), None)
            row = _row(query, rank, lost["reply"].get("error", UNPARSED) if lost else "")
            yield {**row, "image": image, "absent": None if lost else float(not found[0] and all(found[1:]))}


def _row(query: Query, rank: int, reason: str) -> Row:
    facts = {name: getattr(query, name) for name in ("id", "source", "kind", "thing")}
    asked = {"asked": bool(query.also), "rank": rank, "image": "", "absent": None, "reason": reason}
    return {**facts, **asked}


class Judging(Stage):
    """Asks the judge about what the captions of a task find, once there are features. Rows: `rows_of`, failed
    (`stages.Questions`)."""

    def __init__(self, *, asked: ModelTasks, task: RetrievalTask, model: Model) -> None:
        whole = asked.whole(task)
        assert isinstance(whole, RetrievalTask)
        self.name = verdicts(task)
        self.outputs, self.blocks, self.model = (self.name,), asked.blocks(task), model
        self.asked, self.task, self.whole, self.pictures = asked, task, whole, asked.pictures()
        self.depends_on_all = (self.pictures.name, asked.sentences(task).name)

    def read(self, number: int) -> tuple[list[Query], dict[str, Picture], list[Row]]:
        """(queries, what they find, rows of those that find nothing)."""
        encoded, texts = self.asked.features(self.asked.in_blocks(self.task))
        part = replace(self.whole, negated=tuple(self.whole.negated[k] for k in self.blocks.members(number)))
        found = queries(part, encoded, texts, seed=self.asked.config.seed)
        ranks = range(min(max(KS), len(encoded.rows)))
        nothing = ((query, texts.reasons[text]) for query, text in unfound(part) if text in texts.reasons)
        lost = [_row(query, rank, reason) for query, reason in nothing for rank in ranks]
        shown = dict.fromkeys(image for query in found for image in query.shown)
        return found, {image: picture(self.whole.media, image) for image in shown}, lost

    def work(self, model: Any, found: tuple[Any, ...], missing: tuple[str, ...]) -> dict[str, list[Row]]:
        asked, images, lost = found
        about, answered = words(asked), dict[tuple[str, str], Row]()
        for name in (name for name, image in images.items() if isinstance(image, str)):
            lack = judges.make_unanswered(f"{UNUSABLE}{images[name]}")
            answered |= {(name, word.word): lack for word in about[name]}
        seen: list[Any] = [name for name, image in images.items() if not isinstance(image, str)]
        for block in (seen[k : k + self.blocks.size] for k in range(0, len(seen), self.blocks.size)):
            these = [about[name] for name in block]
            pixels: Any = [images[name] for name in block]
            replies = judges.ask("vqa", model, pixels, these, judges.JudgeOptions())
            for name, own, row in zip(block, these, replies, strict=True):
                answered |= {(name, word.word): answer for word, answer in zip(own, row, strict=True)}
        rows = [*rows_of(asked, answered, self.asked.config.protocol), *lost]
        for row in rows:
            settled = row["absent"] is not None or row["reason"] == UNPARSED
            row["failed"] = "" if settled else PICTURE if row["reason"].startswith(UNUSABLE) else MODEL
        return {self.name: rows}

    def is_valid(self, output: str, number: int, rows: list[Row]) -> bool:
        return all(row["failed"] != MODEL for row in rows)

    def state(self, records: range) -> list[tuple[str, str]]:
        return sorted(self.pictures.keys().items())  # what is found depends on every image


def verdicts(task: RetrievalTask) -> str:
    return f"{VERDICTS}/{task.key}"
