"""For builds from the nano world: how right each stage was, against what the pictures really show.

What a source scene holds is known; what a generated picture holds is measured by `nein.nano.truth`, from
pixels and without a trained model; the errors of that are stated beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from nein import statistics
from nein.engine import images
from nein.generate.nein.dataset import Way
from nein.generate.nein.sources import NANO_SPLIT
from nein.generate.nein.work import Job
from nein.nano import truth
from nein.nano.data import source_scene
from nein.nano.draw import SIZE

TRIALS = 25


@dataclass(frozen=True)
class Seen:
    """What a generated picture shows: the object asked for, and every object of the source as it was."""

    object: bool
    others: bool

    @property
    def good(self) -> bool:
        return self.object and self.others


def measure(job: Job, candidates: Sequence[Way], threads: int) -> dict[str, Seen]:
    """Candidate id -> what its picture shows; pictures that are missing or of another size are left out."""

    def one(way: Way) -> tuple[str, Seen] | None:
        made = way.generated
        if made["image"] is None or (made["width"], made["height"]) != (SIZE, SIZE):
            return None
        scene = source_scene(NANO_SPLIT, way.index)
        picture = images.decode(job.picture(way.generated["image"]))
        there = truth.is_present(picture, scene, way.candidate["object"])
        return way.candidate["id"], Seen(there, truth.all_intact(picture, scene))

    with ThreadPoolExecutor(max(1, threads)) as pool:
        return dict(pair for pair in pool.map(one, candidates) if pair is not None)


def report(job: Job, rows: Sequence[tuple[int, dict[str, Any], list[Way]]], threads: int) -> dict[str, Any]:
    """Per stage the share of right decisions, each {"value", "low", "high", "n"} with a 95 % interval."""
    candidates = [way for _, _, chosen in rows for way in chosen]
    seen = measure(job, candidates, threads)
    matched = [w for w in candidates if w.candidate["id"] in seen and w.match is not None]
    asked = [w for w in matched if w.ask is not None]
    passed = [w for w in matched if w.match is not None and w.match["verdict"] == "accepted"]
    accepted = [w for w in asked if w.accepted]

    def share(ways: Iterable[Way], test: Callable[[Way], bool]) -> dict[str, Any]:
        chosen = list(ways)
        return _share([test(w) for w in chosen], [str(w.index) for w in chosen])

    tests: dict[str, Callable[[Way], bool]] = {
        "object there": lambda way: seen[way.candidate["id"]].object,
        "all others there": lambda way: seen[way.candidate["id"]].others,
        "both": lambda way: seen[way.candidate["id"]].good,
    }

    def filtered(before: list[Way], after: list[Way]) -> dict[str, Any]:
        ids, good = {way.candidate["id"] for way in after}, tests["both"]
        rates = {
            "precision": share(after, good),
            "recall": share(filter(good, before), lambda w: w.candidate["id"] in ids),
        }
        for name in ("object there", "all others there"):
            for when, ways in (("before", before), ("after", after)):
                rates[f"{name}, {when}"] = share(ways, tests[name])
        return rates

    both = filtered(matched, accepted)
    return {
        "clauses": _clauses(job, rows),
        "generate": {name: share(matched, test) for name, test in tests.items()},
        "filter 1": filtered(matched, passed),
        "filter 2": filtered(asked, accepted),
        "both filters": {name: both[name] for name in ("precision", "recall")},
        "measured": len(seen),
    }


def own_errors(rebuild: Callable[[np.ndarray], np.ndarray] | None) -> dict[str, Any]:
    """How often the measurement errs on pictures of known content: drawn, and rebuilt by `rebuild`."""
    rates = {"drawn": truth.error_rates(list(truth.trials(TRIALS)))}
    if rebuild is not None:
        rates["rebuilt"] = truth.error_rates(list(truth.trials(TRIALS, rebuild, seed=1)))
    return rates


def _clauses(job: Job, rows: Sequence[tuple[int, dict[str, Any], list[Way]]]) -> dict[str, Any]:
    """The share of absent objects among those taken for absent, and of those taken so among the absent."""
    chosen: list[tuple[bool, str]] = []
    absent: list[tuple[bool, str]] = []
    for index, record, candidates in rows:
        there = set(source_scene(NANO_SPLIT, index).categories)
        chosen += [(way.candidate["object"] not in there, str(index)) for way in candidates]
        for row in record["queried"]:
            if row["object"] not in there:
                absent.append((row["cosine"] < job.rules.absent_below, str(index)))
    return {
        "precision": _share([ok for ok, _ in chosen], [c for _, c in chosen]),
        "recall of the threshold": _share([ok for ok, _ in absent], [c for _, c in absent]),
    }


def _share(values: Sequence[bool], clusters: Sequence[str]) -> dict[str, Any]:
    estimate = statistics.bounded_mean([float(v) for v in values], clusters)
    if estimate is None:
        return {"value": None, "low": None, "high": None, "n": 0}
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "n": estimate.n}
