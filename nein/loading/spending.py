"""What requests to paid models cost, and the budget that a command keeps.

OUT/spent/<process>.jsonl has a line with what is `held` before a request is sent, and one with its `cost` and
tokens when it is answered. All processes that work on OUT, and later commands, read them: the budget is that
of OUT. What is held and never answered, because of a kill, counts as spent.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from nein.loading.errors import UnavailableError

FOLDER = "spent"
#: Our names of tokens -> those of the package genai-prices.
TOKENS = {
    "input_tokens": "input_tokens", "cached_tokens": "cache_read_tokens",
    "image_tokens": "input_image_tokens", "output_tokens": "output_tokens",
    "output_image_tokens": "output_image_tokens",
}  # fmt: skip
GRACE = 0.5  # seconds for answers that have just come to be kept, before the budget ends the command


class BudgetError(UnavailableError):
    """The next request might pass the budget."""


def tokens(usage: Any) -> dict[str, int]:
    """The `usage` of a reply of chat completions or images.edit by our names: input_tokens (cached_tokens and
    image_tokens of them), output_tokens (reasoning_tokens and output_image_tokens of them)."""
    counts: dict[str, Any] = {}
    if isinstance(usage, dict):
        for ours, theirs, part, image in (
            ("input_tokens", "prompt_tokens", "cached_tokens", "image_tokens"),
            ("output_tokens", "completion_tokens", "reasoning_tokens", "output_image_tokens"),
        ):
            details = usage.get(f"{ours}_details") or usage.get(f"{theirs}_details")
            details = details if isinstance(details, dict) else {}
            counts |= {ours: usage.get(ours, usage.get(theirs)), part: details.get(part)}
            counts[image] = details.get("image_tokens")
    return {name: count for name, count in counts.items() if isinstance(count, int) and count > 0}


def price(model: str, usage: Mapping[str, int], address: str = "") -> Decimal | None:
    """Dollars by genai-prices, of the provider at the address or the model's own; None without a row."""
    if (rate := _rate(model, address)) is None:
        return None
    known = {theirs: usage[ours] for ours, theirs in TOKENS.items() if usage.get(ours)}
    try:
        return rate(known)
    except ValueError:  # parts whose overlap the server does not tell: as if they cost what the others do
        return rate({name: known[name] for name in ("input_tokens", "output_tokens") if name in known})


@functools.lru_cache(maxsize=64)
def _rate(model: str, address: str) -> Callable[[Mapping[str, int]], Decimal] | None:
    try:
        from genai_prices import Usage, calc_price
    except ImportError:  # it needs Python 3.11
        return None
    places: tuple[dict[str, Any], ...] = ({"provider_api_url": address}, {})
    for where in places:
        with contextlib.suppress(LookupError):
            calc_price(Usage(input_tokens=1), model, **where)
            return lambda known: calc_price(Usage(**known), model, **where).total_price
    return None


class Ledger:
    """The requests of OUT, None for nowhere; threads may share one. budget: dollars, None for no limit."""

    def __init__(self, out: Path | None, budget: float | None = None) -> None:
        self._folder = None if out is None else out.absolute() / FOLDER
        self._budget = None if budget is None else Decimal(str(budget))
        self._name = uuid.uuid4().hex[:12]
        self._change = threading.Condition()
        self._own: Counter[str] = Counter()  # requests of this process that are on their way, by model
        self._unpriced: set[str] = set()
        # What the files hold, as far as they were read.
        self._read_to: dict[Path, int] = {}
        self._held: dict[str, tuple[str, Decimal]] = {}  # id of a request -> (model, dollars)
        self._costs: dict[str, Decimal] = {}
        self._dearest: dict[str, Decimal] = {}
        self._paid: set[str] = set()
        self.seconds: dict[str, float] = {}  # until answers of a model came, in all
        self._counts: dict[str, Counter[str]] = {}

    @contextlib.contextmanager
    def request(self, model: str, address: str) -> Iterator[dict[str, int]]:
        """Around one request; its tokens are put into the dict. Raises BudgetError."""
        identity, usage = uuid.uuid4().hex[:16], dict[str, int]()
        with self._change:
            while not self.hold([identity], model, address, on_their_way=self._own.total()):
                self._change.wait(0.2)
            self._own[model] += 1
        began = time.monotonic()
        try:
            yield usage
        finally:
            with self._change:
                self.paid(identity, model, address, usage, time.monotonic() - began)
                self._own[model] -= 1
                self._change.notify_all()

    def hold(self, identities: Sequence[str], model: str, address: str, on_their_way: int = 0) -> int:
        """How many of the requests there is room for, each as dear as the dearest of this model; the first
        goes alone. Raises BudgetError for none, unless others are on their way."""
        with self._change:
            if self._budget is None or price(model, {"input_tokens": 1}, address) is None:
                return len(identities)
            self.read()
            dearest, total = self._dearest.get(model), self._total()
            room = int(total < self._budget and not self._own[model])
            if dearest is not None:
                room = int((self._budget - total) // dearest) if dearest else len(identities)
            if room < 1 and not on_their_way:
                time.sleep(GRACE)
                raise BudgetError(
                    f"The next request to {model} might pass the budget of ${self._budget} (${total:.2f} "
                    "are spent); give the command again with a larger --budget to go on."
                )
            for identity in identities[: max(0, room)]:
                self._write(identity, model, held=str(dearest or 0))
            return min(max(0, room), len(identities))

    def paid(
        self, identity: str, model: str, address: str, usage: Mapping[str, int], seconds: float = 0.0
    ) -> None:
        """A request is answered, or failed and has no usage."""
        cost = price(model, usage, address) if usage else None
        with self._change:
            if usage or self._budget is not None:
                facts = {"cost": None if cost is None else str(cost), "seconds": round(seconds, 2)}
                self._write(identity, model, **facts, **usage)
            if usage and cost is None and self._budget is not None and model not in self._unpriced:
                self._unpriced.add(model)
                print(f"The price of {model} is not known: --budget does not count it.", file=sys.stderr)

    def _write(self, identity: str, model: str, **entry: Any) -> None:
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{self._name}-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"id": identity, "model": model, **entry}) + "\n")

    def read(self) -> None:
        for path in sorted(self._folder.glob("*.jsonl")) if self._folder is not None else ():
            with path.open("rb") as file:
                file.seek(self._read_to.get(path, 0))
                for line in itertools.takewhile(lambda line: line.endswith(b"\n"), file):
                    self._read_to[path] = self._read_to.get(path, 0) + len(line)
                    self._add(**json.loads(line))

    def _add(
        self, id: str, model: str, held: str = "", cost: str | None = None, seconds: float = 0.0, **usage: int
    ) -> None:  # fmt: skip
        if held:
            self._held[id] = model, Decimal(held)
            return
        self._held.pop(id, None)
        if id in self._paid:  # a kill between this line and the replies of its batch
            return
        if usage:  # it was answered
            self._paid.add(id)
            self.seconds[model] = self.seconds.get(model, 0.0) + seconds
            self._counts.setdefault(model, Counter()).update(requests=1, **usage)
        if cost is not None:
            self._costs[model] = self._costs.get(model, Decimal(0)) + Decimal(cost)
            self._dearest[model] = max(self._dearest.get(model, Decimal(0)), Decimal(cost))

    def _total(self, model: str | None = None) -> Decimal:
        """Dollars of a model or of all, those of requests on their way included."""
        parts = [*self._held.values(), *self._costs.items()]
        return sum((part for name, part in parts if model in (None, name)), Decimal(0))

    def models(self) -> dict[str, dict[str, Any]]:
        """Model -> requests, tokens, and `dollars` (None without a price)."""
        self.read()
        priced = {name: float(self._total(name)) for name in self._costs}
        return {name: {**counts, "dollars": priced.get(name)} for name, counts in self._counts.items()}


_ledger = Ledger(None)


def keep(out: Path, budget: float | None) -> None:
    """From now on the requests of this process are written for OUT, and `budget` dollars are kept."""
    global _ledger
    _ledger = Ledger(out, budget)


def ledger() -> Ledger:
    return _ledger


def spent(folder: Path) -> dict[str, dict[str, Any]]:
    """`Ledger.models` of the OUT that a folder is or lies in; {} where nothing was asked."""
    for parent in (folder, *folder.absolute().parents[:3]):
        if (parent / FOLDER).is_dir():
            return Ledger(parent).models()
    return {}


def sentences(models: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Of every model: "gpt-5-mini: $0.56 for 1,234 requests (2,000,000 tokens in, 9,000 out)"."""
    lines = []
    for name, totals in models.items():
        dollars = "price unknown" if totals["dollars"] is None else f"${totals['dollars']:.2f}"
        count = f"{totals['requests']:,} request{'s' * (totals['requests'] != 1)}"
        detail = f"{totals.get('input_tokens', 0):,} tokens in, {totals.get('output_tokens', 0):,} out"
        lines.append(f"{name}: {dollars} for {count} ({detail})")
    return lines
