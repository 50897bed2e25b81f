"""Caches the answers of served models on disk, and keeps their costs within a budget.
Parts: `CachedChat`; `Spending`; `Services`, from which commands get both, and the settings of requests."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from nein.engine.answers import AnswerCache
from nein.loading.digests import Json
from nein.loading.service import BudgetError, compute_price
from nein.metrics.base import Store, fingerprint
from nein.metrics.chat import Chat, Completion, Message, Sampling


class CachedChat(Chat):
    """A chat that caches answers, but no failures. The key of an answer is the model (without its address,
    since servers move), the message with the pixels of its images, and the sampling. Threads may share one
    chat: of equal messages in flight, only one is sent."""

    def __init__(self, chat: Chat, cache: Store) -> None:
        self.chat, self._cache = chat, cache
        self.concurrent = chat.concurrent  # see `Chat`
        self._space = fingerprint(chat.describe())  # of keys in the cache
        self._in_flight: set[str] = set()  # keys
        self._changed = threading.Condition()  # guards `_in_flight`, and tells of its changes

    def describe(self) -> Json:
        return self.chat.describe()

    def usage(self) -> Json:
        return self.chat.usage()

    def stop(self) -> None:
        self.chat.stop()

    def stream(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        indices: dict[str, list[int]] = {}  # key -> the equal messages that have no answer yet
        hashes: dict[int, str] = {}
        for index, message in enumerate(messages):
            indices.setdefault(_make_key(message, sampling, hashes), []).append(index)
        while indices:
            with self._changed:
                mine = [key for key in indices if key not in self._in_flight]
                if not mine:  # other threads sent them all, and may fail
                    self._changed.wait(0.2)
                    continue
                self._in_flight.update(mine)
            try:
                distinct = {key: messages[indices[key][0]] for key in mine}
                for key, completion in self._ask(distinct, sampling):
                    self._release([key])
                    for index in indices.pop(key):
                        yield index, completion
            finally:
                self._release(mine)  # those that an exception left

    def _ask(self, messages: Mapping[str, Message], sampling: Sampling) -> Iterator[tuple[str, Completion]]:
        """Key and answer of each message: first those of the cache, then those of the model."""
        missing = []
        for key in messages:
            answer = self._cache.get(self._space, key)
            if answer is None:
                missing.append(key)
            else:
                yield key, Completion(**answer)
        for index, completion in self.chat.stream([messages[key] for key in missing], sampling):
            if completion.error is None:  # written at once: a kill loses only what is in flight
                answer = {k: v for k, v in dataclasses.asdict(completion).items() if k != "error"}
                self._cache.put(self._space, missing[index], answer)
            yield missing[index], completion

    def _release(self, keys: Sequence[str]) -> None:
        with self._changed:
            self._in_flight.difference_update(keys)
            self._changed.notify_all()


def _make_key(message: Message, sampling: Sampling, hashes: dict[int, str]) -> str:
    """Key of a message in the cache. hashes: `id` of an image -> its digest, filled here."""
    from nein.loading.digests import pixel_digest  # imports NumPy, which a command line does not need

    for image in message.images:
        if id(image) not in hashes:
            hashes[id(image)] = pixel_digest(image)
    parts = [{"text": p} if isinstance(p, str) else {"pixels": hashes[id(p)]} for p in message.parts]
    return json.dumps([parts, message.seed, dataclasses.asdict(sampling)])


GRACE = 0.5  # seconds in which other threads write their last answers, before the budget ends the command


class Spending:
    """Records the cost of requests, in a cache that all commands with one OUT share, and enforces a budget in
    dollars (None: no limit). Several processes may exceed it by their requests in flight."""

    def __init__(self, cache: AnswerCache, budget: float | None) -> None:
        self._cache = cache
        self._budget = Decimal("Infinity" if budget is None else str(budget))
        self._changed = threading.Condition()  # guards the following fields, and tells of finished requests
        self._in_flight: Counter[str] = Counter()  # requests by model
        self._unpriced: set[str] = set()  # models without a price, of which the user was told

    @contextlib.contextmanager
    def request(self, model: str, address: str) -> Iterator[dict[str, int]]:
        """Context of one request, which puts its tokens into the dict. Waits until the budget has room for
        the dearest request of this model so far. Raises BudgetError if it will never have room."""
        has_budget = self._budget.is_finite()
        has_price = has_budget and compute_price(model, {"input_tokens": 1}, address) is not None
        with self._changed:
            if has_budget and not has_price and model not in self._unpriced:
                self._unpriced.add(model)
                print(f"The price of {model} is unknown: --budget does not count it.", file=sys.stderr)
            while has_price and not self._has_room(model):
                if not self._in_flight.total():
                    time.sleep(GRACE)
                    spent, _ = self._sum_costs()
                    raise BudgetError(
                        f"The next request to {model} might exceed the budget of ${self._budget} "
                        f"(${spent:.2f} spent); rerun the command with a larger --budget."
                    )
                self._changed.wait(0.2)
            self._in_flight[model] += 1
        usage: dict[str, int] = {}
        start = time.monotonic()
        try:
            yield usage
        finally:
            with self._changed:
                if usage:
                    cost = compute_price(model, usage, address)
                    self._cache.add_cost(model, cost, seconds=time.monotonic() - start, **usage)
                self._in_flight[model] -= 1
                self._changed.notify_all()

    def _sum_costs(self) -> tuple[Decimal, dict[str, Decimal]]:
        """(dollars of all models, model -> dollars of its dearest request), for models with a price."""
        rows = self._cache.read_spending()
        total = sum((Decimal(row["dollars"]) for row in rows.values() if row["dollars"]), Decimal(0))
        return total, {name: Decimal(row["dearest"]) for name, row in rows.items() if row["dearest"]}

    def _has_room(self, model: str) -> bool:
        total, dearest = self._sum_costs()
        total += sum(dearest.get(name, Decimal(0)) * count for name, count in self._in_flight.items())
        if model not in dearest:  # the first request of this model runs alone
            return total < self._budget and not self._in_flight[model]
        return total + dearest[model] <= self._budget


@dataclass(frozen=True)
class Services:
    """Settings of a command's requests, and the cache of their answers and costs."""

    cache: AnswerCache | None  # None: answers are not cached
    options: Mapping[str, Any]  # of `metrics.chat.endpoint.Endpoint`, and of editors behind an address

    @classmethod
    def create(cls, config: Any, cache: AnswerCache | Path | None) -> Services:
        """config: of a command; it may have `endpoint` and `budget`. cache: the cache, or its path."""
        settings = vars(config.endpoint) if hasattr(config, "endpoint") else {}
        options = {name: value for name, value in settings.items() if value is not None}
        cache = AnswerCache(cache) if isinstance(cache, Path) else cache
        if cache is not None:
            options["spending"] = Spending(cache, getattr(config, "budget", None))
        return cls(cache, options)

    def keep(self, model: Any) -> Any:
        """The model itself; if it is served, its `chat` gets a cache. Local models get none: their answers
        depend on the batch in their last bits."""
        if self.cache is not None and getattr(model, "chat", None) and model.chat.concurrent:
            model.chat = CachedChat(model.chat, self.cache)
        return model
