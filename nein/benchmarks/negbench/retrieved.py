"""Are the first pictures that a caption with a negation finds really without the thing?

A caption denies things that its own picture lacks. What else it finds may have them, and recall does not see
that: a model that ignores the denial can find the caption's own picture all the same. Beside the negated
caption stand the original one of the same picture, which denies nothing, and pictures drawn at random.

Captions of a test that is defined by a judge's answers (SimpleNeg) are asked about in the evaluation itself,
the others by `nein negbench judge`, which has a calibrated judge:

OUT/<model>/<data set>/judged/<task>.jsonl   a line per caption, denied thing and picture found
OUT/<model>/<data set>/judged.csv            the figures, which every later report shows
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nein import statistics
from nein.benchmarks.negbench import retrieval
from nein.benchmarks.negbench.encode import Encoded
from nein.benchmarks.negbench.results import TEXT_TO_IMAGE
from nein.benchmarks.negbench.retrieval import KS
from nein.datasets.negbench.records import NEGATED, ORIGINAL, RetrievalItem, RetrievalTask
from nein.engine.folder import Folder
from nein.engine.seeds import sample_seed
from nein.models import judges
from nein.models.judges import Word
from nein.reporting.figures import figure, number
from nein.statistics import calibration
from nein.statistics.calibration import Rates
from nein.wording.nouns import named_in

RANDOM = "at random"
KINDS = (NEGATED, ORIGINAL, RANDOM)
UNPARSED = "neither yes nor no"


@dataclass(frozen=True)
class Query:
    """One caption with one thing that the negated caption of its picture denies.

    id      Of the caption and the thing: the same in all of `KINDS`.
    source  What resampling treats as one unit.
    thing   Its name, or a question about it.
    also    A question about what the caption affirms: what is found has to show that as well. "": none.
    shown   References of what was found, the best first.
    """

    id: str
    source: str
    kind: str
    thing: str
    shown: tuple[str, ...]
    also: str = ""


def figures_file(folder: Folder) -> Path:
    return folder.path / "judged.csv"


def rows_file(folder: Folder, task: str) -> Path:
    return folder.path / "judged" / f"{task}.jsonl"


def queries(
    task: RetrievalTask, pictures: Encoded, texts: Encoded, most: int | None = None, seed: int = 0
) -> list[Query]:
    """What `most` negated captions, evenly spread, or all of them find, and their original captions, and
    chance.

    Captions that name none of the things that their item denies are left out, as are those that could not be
    encoded. The gallery is every picture of the task that could be encoded, once.
    """
    asked = [one for one in _denials(task) if _encoded(one, texts)]
    if most is not None and len(asked) > most:
        asked = [asked[k * len(asked) // most] for k in range(most)]
    gallery = [name for name in task.references if name in pictures.rows]
    shown = np.array([pictures.rows[name] for name in gallery], dtype=np.int64)
    found: list[Query] = []
    for kind in (NEGATED, ORIGINAL):
        told = [one for one in asked if one.texts[kind] is not None]
        seeds = [sample_seed(seed, f"{one.id}/{kind}") for one in told]
        said = np.array([texts.rows[one.texts[kind] or ""] for one in told], dtype=np.int64)
        places = retrieval.top(texts.features, pictures.features, said, shown, max(KS), seeds)
        found += [one.query(kind, [gallery[k] for k in row]) for one, row in zip(told, places, strict=True)]
    for one in asked:
        drawn = np.random.default_rng(sample_seed(seed, f"{one.id}/{RANDOM}")).permutation(len(gallery))
        found.append(one.query(RANDOM, [gallery[k] for k in drawn[: max(KS)]]))
    return found


def unfound(task: RetrievalTask) -> Iterator[tuple[Query, str]]:
    """Every negated caption, as the queries that it and chance would be, which find nothing."""
    for one in _denials(task):
        for kind in (NEGATED, RANDOM):
            yield one.query(kind, ()), one.texts[NEGATED] or ""


@dataclass(frozen=True)
class _Denial:
    """texts: kind -> caption; None where the item has no original caption for its negated one."""

    item: RetrievalItem
    number: int
    thing: str
    texts: Mapping[str, str | None]

    @property
    def id(self) -> str:
        return f"{self.item.id}#{self.number}/{self.thing}"

    def query(self, kind: str, shown: Sequence[str]) -> Query:
        also = self.item.asked[1] if self.item.asked else ""
        return Query(self.id, self.item.cluster, kind, self.thing, tuple(shown), also)


def _denials(task: RetrievalTask) -> Iterator[_Denial]:
    plain = {item.id: item.captions for item in task.original}
    for item in task.negated:
        for k, caption in enumerate(item.captions):
            said = plain.get(item.id, ())
            twin = said[k] if len(said) == len(item.captions) else None
            things = item.asked[:1] if item.asked else named_in((caption,), item.negatives or ())
            for thing in things:
                yield _Denial(item, k, thing, {NEGATED: caption, ORIGINAL: twin})


def _encoded(one: _Denial, texts: Encoded) -> bool:
    return all(text is None or text in texts.rows for text in one.texts.values())


# --- rows --------------------------------------------------------------------------------------


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
) -> Iterator[dict[str, Any]]:
    """A row per caption, thing and picture: id, source, kind, thing, asked (whether that is a question of a
    test), rank, image, absent (1.0, 0.0, or None with a `reason`).

    verdicts  (picture, what was asked) -> what `nein.models.judges.ask` gives.
    """
    for query in asked:
        for rank, image in enumerate(query.shown):
            said = [verdicts[image, text] for text in (query.thing, query.also) if text]
            there = [row[f"verdict_{protocol}"] for row in said]
            lost = next((row for row, verdict in zip(said, there, strict=True) if verdict is None), None)
            absent = None if lost else float(not there[0] and all(there[1:]))
            reason = lost["reply"].get("error", UNPARSED) if lost else ""
            yield row_of(query, rank, image, absent, reason)


def row_of(query: Query, rank: int, image: str, absent: float | None, reason: str) -> dict[str, Any]:
    return {
        "id": query.id, "source": query.source, "kind": query.kind, "thing": query.thing,
        "asked": bool(query.also), "rank": rank, "image": image, "absent": absent, "reason": reason,
    }  # fmt: skip


# --- figures -----------------------------------------------------------------------------------


def of_judged(rows: Sequence[Mapping[str, Any]], judge: Rates | None) -> list[dict[str, Any]]:
    """The share of the first k found that are without the thing, as judged and corrected for the judge's
    error, by `kind`; and how much more of them a negated caption finds than its original one, paired. Where
    the questions are those of a test, the share that shows what it affirms and is without what it denies; the
    judge's error about such questions is not known.

    rows   Of `rows_of`.
    judge  Its calibrated error rates; None where nothing but questions of a test was asked.

    Metrics: "without@k" with the columns statistic ("judged", "corrected") and refused; "avoided@k";
    "satisfied@k".
    """
    figures: list[dict[str, Any]] = []
    for k in KS:
        first = [row for row in rows if row["rank"] < k]
        for kind in KINDS:
            members = [row for row in first if row["kind"] == kind]
            scored = [row for row in members if row["absent"] is not None]
            share = statistics.bounded_mean([r["absent"] for r in scored], [r["source"] for r in scored])
            if not members:
                continue
            asked = members[0]["asked"]
            what: dict[str, Any] = {"metric": f"{'satisfied' if asked else 'without'}@{k}", "kind": kind}
            if not asked:
                what["direction"] = TEXT_TO_IMAGE  # beside recall
            lost = len(members) - len(scored)
            reasons = Counter(row["reason"] for row in members if row["absent"] is None)
            figures.append(
                figure(share, unit="%", unscored=lost, reasons=reasons, statistic="judged", **what)
            )
            if share is None or judge is None or asked:
                continue
            right = calibration.correct_removal(share, judge)
            row = number(right.value, unit="%", n=share.n, statistic="corrected", **what)
            figures.append({**row, "low": right.low, "high": right.high, "refused": right.refused})
        shares = {kind: _by_query(first, kind) for kind in (NEGATED, ORIGINAL)}
        source = {row["id"]: row["source"] for row in first}
        avoided = statistics.paired_difference(shares[NEGATED], shares[ORIGINAL], source)
        if avoided is not None:
            figures.append(figure(avoided, unit="points", metric=f"avoided@{k}", direction=TEXT_TO_IMAGE))
    return figures


def _by_query(rows: Sequence[Mapping[str, Any]], kind: str) -> dict[str, float | None]:
    """Id -> the share of what it found that is without the thing; None where a verdict is lacking."""
    by_id: dict[str, list[float | None]] = {}
    for row in rows:
        if row["kind"] == kind:
            by_id.setdefault(row["id"], []).append(row["absent"])
    return {
        name: None if None in said else float(np.mean([one for one in said if one is not None]))
        for name, said in by_id.items()
    }
