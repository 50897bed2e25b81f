"""Served models for commands: how they are asked, what may be spent, and answers that are never asked twice.

It stands here and not in `metrics/chat`: a leaf touches no files.
"""

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
from nein.loading.service import BudgetError, price
from nein.metrics.base import Store, fingerprint
from nein.metrics.chat import Chat, Completion, Message, Sampling

GRACE = 0.5  # seconds for answers that have just come to be kept, before the budget ends the command


class CachedChat(Chat):
    """A chat whose answers are kept in `cache`, and no failure is. The key of an answer is the model (not
    where it is, for servers move), its message with the pixels of its images, and the sampling.

    Threads may share one: of equal messages in flight, one is sent.
    """

    def __init__(self, chat: Chat, cache: Store) -> None:
        self.chat, self.concurrent, self._cache = chat, chat.concurrent, cache
        self._space = fingerprint(chat.describe())
        self._change = threading.Condition()
        self._asking: set[str] = set()  # keys in flight

    def describe(self) -> Json:
        return self.chat.describe()

    def usage(self) -> Json:
        return self.chat.usage()

    def stop(self) -> None:
        self.chat.stop()

    def stream(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        places: dict[str, list[int]] = {}  # key -> the messages that are alike
        hashes: dict[int, str] = {}
        for index, message in enumerate(messages):
            places.setdefault(_key(message, sampling, hashes), []).append(index)
        mine: list[str] = []
        while places:
            with self._change:
                mine = [key for key in places if key not in self._asking]
                if not mine:  # in flight for another thread, which may fail
                    self._change.wait(0.2)
                    continue
                self._asking.update(mine)
            try:
                first = {key: messages[places[key][0]] for key in mine}
                for key, completion in self._answers(first, sampling):
                    self._let_go([key])
                    for index in places.pop(key):
                        yield index, completion
            finally:
                self._let_go(mine)

    def _answers(self, asked: Mapping[str, Message], sampling: Sampling) -> Iterator[tuple[str, Completion]]:
        kept = {key: self._cache.get(self._space, key) for key in asked}
        yield from ((key, Completion(**answer)) for key, answer in kept.items() if answer is not None)
        open_ = [key for key, answer in kept.items() if answer is None]
        for index, completion in self.chat.stream([asked[key] for key in open_], sampling):
            if completion.error is None:  # at a kill, no more is lost than was on its way
                answer = {k: v for k, v in dataclasses.asdict(completion).items() if k != "error"}
                self._cache.put(self._space, open_[index], answer)
            yield open_[index], completion

    def _let_go(self, keys: Sequence[str]) -> None:
        with self._change:
            self._asking.difference_update(keys)
            self._change.notify_all()


def _key(message: Message, sampling: Sampling, hashes: dict[int, str]) -> str:
    """hashes: of images by `id`, filled here."""
    from nein.loading.digests import pixel_digest  # not for a command line, which needs no NumPy

    for image in message.images:
        if id(image) not in hashes:
            hashes[id(image)] = pixel_digest(image)
    parts = [{"text": p} if isinstance(p, str) else {"pixels": hashes[id(p)]} for p in message.parts]
    return json.dumps([parts, message.seed, dataclasses.asdict(sampling)])


class Spending:
    """What requests have cost, in rows of a cache that all commands on an OUT share, and a budget: dollars
    for all of them; None: no limit. Several processes may pass it by what each has in flight."""

    def __init__(self, cache: AnswerCache, budget: float | None) -> None:
        self._cache, self._budget = cache, None if budget is None else Decimal(str(budget))
        self._change = threading.Condition()
        self._in_flight: Counter[str] = Counter()  # requests by model
        self._unpriced: set[str] = set()

    @contextlib.contextmanager
    def request(self, model: str, address: str) -> Iterator[dict[str, int]]:
        """Around one request; its tokens are put into the dict. Waits until there is room for a request as
        dear as the dearest of this model; the first of a model goes alone. Raises BudgetError where there
        will be none."""
        priced = self._budget is not None and price(model, {"input_tokens": 1}, address) is not None
        with self._change:
            if self._budget is not None and not priced and model not in self._unpriced:
                self._unpriced.add(model)
                print(f"The price of {model} is not known: --budget does not count it.", file=sys.stderr)
            while priced and not self._has_room(model):
                if not self._in_flight.total():
                    time.sleep(GRACE)
                    raise BudgetError(
                        f"The next request to {model} might pass the budget of ${self._budget} "
                        f"(${self._spent()[0]:.2f} are spent); give the command again with a larger --budget "
                        "to go on."
                    )
                self._change.wait(0.2)
            self._in_flight[model] += 1
        usage: dict[str, int] = {}
        began = time.monotonic()
        try:
            yield usage
        finally:
            with self._change:
                if usage:
                    seconds = time.monotonic() - began
                    self._cache.pay(model, price(model, usage, address), seconds=seconds, **usage)
                self._in_flight[model] -= 1
                self._change.notify_all()

    def _spent(self) -> tuple[Decimal, dict[str, Decimal]]:
        """Dollars of all models that have a price, and of the dearest request of each."""
        rows = self._cache.read_spending()
        dearest = {name: Decimal(row["dearest"]) for name, row in rows.items() if row["dearest"]}
        return sum((Decimal(row["dollars"]) for row in rows.values() if row["dollars"]), Decimal(0)), dearest

    def _has_room(self, model: str) -> bool:
        total, dearest = self._spent()
        total += sum(dearest.get(name, Decimal(0)) * count for name, count in self._in_flight.items())
        budget = self._budget or Decimal(0)
        if model not in dearest:
            return total < budget and not self._in_flight[model]
        return total + dearest[model] <= budget


@dataclass(frozen=True)
class Services:
    """How a command asks models behind an address, and where it keeps their answers and what they cost."""

    cache: AnswerCache | None
    options: Mapping[str, Any]  # of `metrics.chat.endpoint.Endpoint`, and of editors behind an address

    @classmethod
    def of(cls, options: Any, cache: AnswerCache | Path | None) -> Services:
        """options: of a command, which may have `endpoint` and `budget`; cache: or where it lies."""
        given = vars(options.endpoint) if hasattr(options, "endpoint") else {}
        sending = {name: value for name, value in given.items() if value is not None}
        cache = AnswerCache(cache) if isinstance(cache, Path) else cache
        if cache is not None:
            sending["spending"] = Spending(cache, getattr(options, "budget", None))
        return cls(cache, sending)

    def keep(self, model: Any) -> Any:
        """The model, the answers of whose `chat` are kept if it is served: a single answer of a model that is
        here depends in its last bits on the batch."""
        if self.cache is not None and getattr(model, "chat", None) and model.chat.concurrent:
            model.chat = CachedChat(model.chat, self.cache)
        return model
