"""The four stages as functions of a shard, and the workers that do what is left of them.

A record of a stage depends on the shard's sources, the configuration and the models, and on nothing else:
shards are cut over the whole list, whatever `--limit`, and a batch never crosses from one into the next.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

import editors
from nein import images
from nein.blocks import one_thread
from nein.build import clauses, filters
from nein.build.config import STAGES, BuildConfig
from nein.build.folder import BuildDir
from nein.build.ledger import Ledger
from nein.build.sources import Source, SourceSet

log = logging.getLogger(__name__)

UNREADABLE = "unreadable image"
EDITOR_FAILED = "the editor failed"
POLL_SECONDS = 0.5
#: Stage -> the model it needs, by the name under which `Tools` loads it.
MODEL_OF = {"clauses": "itm", "generate": "editor", "match": "itm", "ask": "vqa"}


@dataclass(frozen=True)
class Job:
    """What all workers of a build share."""

    config: BuildConfig
    sources: SourceSet
    rules: clauses.Rules
    folder: BuildDir
    ledger: Ledger

    def shards(self) -> list[int]:
        """Numbers of the shards that hold the wanted sources."""
        wanted = min(len(self.sources.sources), self.config.limit or len(self.sources.sources))
        return list(range(-(-wanted // self.config.shard_size)))

    def members(self, shard: int) -> Sequence[Source]:
        size = self.config.shard_size
        return self.sources.sources[shard * size : (shard + 1) * size]

    def candidates(self, shard: int) -> list[dict[str, Any]]:
        return [c for row in self.ledger.record("clauses", shard)["rows"] for c in row["candidates"]]


def run_stage(job: Job, stage: str, shard: int, model: Any) -> dict[str, Any]:
    """The record of one stage of a shard: {"shard", "rows", "seconds", "at"}."""
    start = time.perf_counter()
    rows = _STAGES[stage](job, shard, model)
    return {"shard": shard, "rows": rows, "seconds": round(time.perf_counter() - start, 3), "at": time.time()}


def _clauses(job: Job, shard: int, matcher: Any) -> list[dict[str, Any]]:
    rules, members = job.rules, job.members(shard)
    pictures: dict[str, np.ndarray] = {}
    problems = {source.path: source.problem for source in members}
    for source in members:
        if not source.problem:
            try:
                pictures[source.id] = images.decode(source.path)
            except images.ImageError as error:
                problems[source.path] = f"{UNREADABLE}: {error}".replace(f"{source.path}: ", "")
    usable = [source for source in members if not problems[source.path]]
    found = filters.each(
        lambda rows: matcher.match(
            [pictures[usable[i].id] for i in rows],
            [clauses.queried(rules, usable[i].id) for i in rows],
            head="itc",
        ),
        len(usable),
    )
    cosines = dict(zip((source.id for source in usable), found, strict=True))
    made = []
    for source in members:
        if problems[source.path]:
            made.append(clauses.unusable(source, problems[source.path], rules))
            continue
        values = cosines[source.id]
        if isinstance(values, str):
            made.append(clauses.unusable(source, f"{filters.FAILED}: {values}", rules))
            continue
        digest = images.pixel_hash(pictures[source.id])
        made.append({**clauses.clauses(source, values, rules), "sha256": digest})
    return made


def _generate(job: Job, shard: int, editor: editors.Editor) -> list[dict[str, Any]]:
    by_id = {source.id: source for source in job.members(shard) if not source.problem}
    candidates = job.candidates(shard)
    pictures = {name: images.decode(by_id[name].path) for name in {c["source"] for c in candidates}}
    requests = [
        editors.EditRequest(c["id"], pictures[c["source"]], c["generated"], c["seed"]) for c in candidates
    ]
    results = editor.edit(requests) if requests else []
    if [result.id for result in results] != [request.id for request in requests]:
        raise AssertionError(f"editor {editor.name!r} did not answer every request, in order")
    rows = []
    for result in results:
        if result.image is None:
            error = result.error or "the editor gave no picture and no reason"
            rows.append({"id": result.id, "image": None, "verdict": EDITOR_FAILED, "error": error})
            continue
        name = f"{result.id}.{job.config.image_format}"
        write = images.write_jpeg if job.config.image_format == "jpg" else images.write_png
        write(job.folder.image(name), result.image)
        height, width = result.image.shape[:2]
        rows.append(
            {
                "id": result.id,
                "image": name,
                "width": width,
                "height": height,
                "sha256": images.pixel_hash(images.decode(job.folder.image(name))),
                "verdict": filters.ACCEPTED,
                "note": result.note,
            }
        )
    return rows


def _match(job: Job, shard: int, matcher: Any) -> list[dict[str, Any]]:
    chosen, pictures = _passed(job, shard, "generate")
    return filters.match(
        chosen, pictures, matcher, above=job.config.match_above, protocol=job.config.protocol
    )


def _ask(job: Job, shard: int, judge: Any) -> list[dict[str, Any]]:
    chosen, pictures = _passed(job, shard, "match")
    return filters.ask(chosen, pictures, judge, protocol=job.config.protocol)


def _passed(job: Job, shard: int, stage: str) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """The candidates that `stage` accepted, and their generated pictures."""
    accepted = {r["id"] for r in job.ledger.record(stage, shard)["rows"] if r["verdict"] == filters.ACCEPTED}
    files = {r["id"]: r["image"] for r in job.ledger.record("generate", shard)["rows"]}
    chosen = [c for c in job.candidates(shard) if c["id"] in accepted]
    return chosen, [images.decode(job.folder.image(files[c["id"]])) for c in chosen]


_STAGES: dict[str, Callable[[Job, int, Any], list[dict[str, Any]]]] = {
    "clauses": _clauses,
    "generate": _generate,
    "match": _match,
    "ask": _ask,
}


class Tools:
    """Models, loaded when first needed. With `one_at_a_time` (a GPU) the last is dropped before the next
    comes."""

    def __init__(self, load: Callable[[str], Any], *, one_at_a_time: bool) -> None:
        self._load, self._alone = load, one_at_a_time
        self._loaded: dict[str, Any] = {}
        self._mutex = threading.Lock()

    def get(self, name: str) -> Any:
        with self._mutex:
            if name not in self._loaded:
                if self._alone:
                    self._loaded.clear()
                self._loaded[name] = self._load(name)
            return self._loaded[name]


def run(job: Job, stages: Sequence[str], tools: Tools, *, threads: int, quiet: bool = False) -> None:
    """Works until every wanted shard has gone through `stages`, waiting for shards that others hold.

    threads  Shards in work at once in this process (on a CPU), each on one thread.
    """
    crew = _Crew(job, [s for s in STAGES if s in stages], tools, quiet)
    if threads <= 1:
        crew.work()
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="shard", initializer=one_thread) as pool:
        futures = [pool.submit(crew.work) for _ in range(threads)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            crew.stop.set()
        for future in futures:
            future.result()


class _Crew:
    """The threads of this process: they share the progress bars and the word to stop."""

    def __init__(self, job: Job, stages: Sequence[str], tools: Tools, quiet: bool) -> None:
        self.job, self.stages, self.tools = job, stages, tools
        self.stop = threading.Event()
        self._bars: dict[str, Any] = {}
        self._quiet, self._mutex = quiet, threading.Lock()
        self._busy = 0

    def work(self) -> None:
        stage = self.stages[0] if self.stages else ""
        while not self.stop.is_set() and self.stages:
            # The stage at hand first: changing it may mean loading another model.
            order = [stage, *(s for s in self.stages if s != stage)]
            with self._mutex:
                taken = next((found for s in order if (found := self._take(s)) is not None), None)
                self._busy += taken is not None
            if taken is None:
                if self._finished() or self._hopeless():
                    return
                self.stop.wait(POLL_SECONDS)  # others hold what is left; if one dies, its shard comes free
                continue
            stage, shard, lock = taken
            try:
                record = run_stage(self.job, stage, shard, self.tools.get(MODEL_OF[stage]))
                self.job.ledger.append(stage, record)
            finally:
                with self._mutex:
                    self._busy -= 1
                lock.release()
            self._progress(stage)

    def _take(self, stage: str) -> tuple[str, int, Any] | None:
        """A shard that is ready for `stage`, with its lock, or None."""
        place = STAGES.index(stage)
        ledger, wanted = self.job.ledger, self.job.shards()
        ready = set(wanted) if place == 0 else ledger.done(STAGES[place - 1])
        finished = ledger.done(stage)
        for shard in wanted:
            if shard not in ready or shard in finished:
                continue
            lock = ledger.claim(shard)
            if lock is None:
                continue
            if shard in ledger.done(stage):  # finished by another between the look and the lock
                lock.release()
                continue
            return stage, shard, lock
        return None

    def _finished(self) -> bool:
        wanted = set(self.job.shards())
        return all(wanted <= self.job.ledger.done(stage) for stage in self.stages)

    def _hopeless(self) -> bool:
        """Nobody, here or elsewhere, is making what the stages asked for still lack."""
        with self._mutex:
            return not self._busy and not self.job.ledger.others_alive() and not self._finished()

    def _progress(self, stage: str) -> None:
        with self._mutex:
            if stage not in self._bars:
                total = len(self.job.shards())
                self._bars[stage] = tqdm(total=total, desc=stage, unit="shard", disable=self._quiet)
            bar = self._bars[stage]
            bar.n = len(self.job.ledger.done(stage) & set(self.job.shards()))
            bar.refresh()
