"""Workers that do what is left of staged work: any number of processes and threads share one ledger.

A stage of a shard is done once the stage before it is. Which worker does which shard decides nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from nein.engine.executors import one_thread
from nein.generate.nein.ledger import Ledger

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Work:
    """Shards that go through stages.

    stages    All of them, in order; a command may ask for some only.
    shards    Numbers of the shards wanted.
    models    Stage -> name of the model it needs, as `Tools` knows it; None for one that needs none.
    function  (stage, shard, model) -> the rows of the record.
    """

    stages: tuple[str, ...]
    shards: Sequence[int]
    models: Mapping[str, str | None]
    function: Callable[[str, int, Any], list[dict[str, Any]]]
    ledger: Ledger


class Tools:
    """Models, loaded when first needed. With `one_at_a_time` (a GPU) the last is dropped before the next
    comes."""

    def __init__(self, load: Callable[[str], Any], *, one_at_a_time: bool) -> None:
        self._load, self._alone = load, one_at_a_time
        self._loaded: dict[str, Any] = {}
        self._mutex = threading.Lock()

    def get(self, name: str | None) -> Any:
        if name is None:
            return None
        with self._mutex:
            if name not in self._loaded:
                if self._alone:
                    self._loaded.clear()
                self._loaded[name] = self._load(name)
            return self._loaded[name]


def run(work: Work, stages: Sequence[str], tools: Tools, *, threads: int, quiet: bool = False) -> None:
    """Works until every wanted shard has gone through `stages`, waiting for shards that others hold.

    threads  Shards in work at once in this process (on a CPU), each on one thread.
    """
    crew = _Crew(work, [s for s in work.stages if s in stages], tools, quiet)
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

    def __init__(self, job: Work, stages: Sequence[str], tools: Tools, quiet: bool) -> None:
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
                self.job.ledger.append(stage, self._record(stage, shard))
            finally:
                with self._mutex:
                    self._busy -= 1
                lock.release()
            self._progress(stage)

    def _record(self, stage: str, shard: int) -> dict[str, Any]:
        """The record of one stage of a shard: {"shard", "rows", "seconds", "at"}."""
        model = self.tools.get(self.job.models[stage])
        start = time.perf_counter()
        rows = self.job.function(stage, shard, model)
        seconds = round(time.perf_counter() - start, 3)
        return {"shard": shard, "rows": rows, "seconds": seconds, "at": time.time()}

    def _take(self, stage: str) -> tuple[str, int, Any] | None:
        """A shard that is ready for `stage`, with its lock, or None."""
        place = self.job.stages.index(stage)
        ledger, wanted = self.job.ledger, self.job.shards
        ready = set(wanted) if place == 0 else ledger.done(self.job.stages[place - 1])
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
        wanted = set(self.job.shards)
        return all(wanted <= self.job.ledger.done(stage) for stage in self.stages)

    def _hopeless(self) -> bool:
        """Nobody, here or elsewhere, is making what the stages asked for still lack."""
        with self._mutex:
            return not self._busy and not self.job.ledger.others_alive() and not self._finished()

    def _progress(self, stage: str) -> None:
        with self._mutex:
            if stage not in self._bars:
                total = len(self.job.shards)
                self._bars[stage] = tqdm(total=total, desc=stage, unit="shard", disable=self._quiet)
            bar = self._bars[stage]
            bar.n = len(self.job.ledger.done(stage) & set(self.job.shards))
            bar.refresh()
