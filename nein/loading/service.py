"""A model behind an address with OpenAI's API: client, key, usage and prices."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import io
import json
import os
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar
from urllib.parse import urlsplit

from nein.loading.errors import UnavailableError, UserError, choose
from nein.loading.references import check_credentials, hide_credentials

#: Kinds of failure, for counting: no answer in time; a broken connection; a server that kept failing; a
#: refused request; a withheld answer; a reply that is not of this API.
TIMEOUT, CONNECTION, SERVER = "timeout", "connection", "server error"
REFUSED, WITHHELD, PROTOCOL = "refused", "withheld", "another protocol"
#: HTTP statuses: of a retry (as the package openai does, with 500 and above); of the service (its key, its
#: address) instead of one request; of a server that does not know a part of the request.
RETRIED = (408, 409, 429)
UNUSABLE = (*range(300, 400), 401, 402, 403, 404, 405)
UNKNOWN_PART = (400, 422)
#: Codes of servers that refuse the content of a request.
CONTENT: tuple[str, ...] = ("content_policy_violation", "content_filter", "invalid_prompt")
CONTENT += ("moderation_blocked", "cyber_policy")
#: Host of a hosted service -> the environment variable with its key; OPENAI_API_KEY for any other host.
KEYS = {"openai.com": "OPENAI_API_KEY", "azure.com": "AZURE_OPENAI_API_KEY", "x.ai": "XAI_API_KEY"}
KEYS |= {"anthropic.com": "ANTHROPIC_API_KEY", "googleapis.com": "GEMINI_API_KEY"}
#: A header with a key or a password, which a server may quote.
QUOTED = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]+", re.IGNORECASE)

AT_ONCE = 8  # requests in flight, by default

Item = TypeVar("Item")
Result = TypeVar("Result")


class NoAnswer(RuntimeError):
    """A request without an answer, in spite of retries.

    kind       A word of the above, or of the caller, for counting.
    silent     Whether other requests will probably fail, too: no answers at all, or every request refused.
    transient  Whether the same request may be answered later.
    of_a_part  Whether the server may accept the request without one of its parts; named: those that the
               refusal names.
    """

    def __init__(
        self, message: str, kind: str = PROTOCOL, *, status: int = 0, named: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.kind, self.named = kind, named
        refused = status if kind == REFUSED else 0
        self.silent = refused in UNUSABLE or kind not in (REFUSED, WITHHELD)
        self.transient = refused in UNUSABLE or kind in (TIMEOUT, CONNECTION, SERVER)
        self.of_a_part = refused in UNKNOWN_PART


class Pace:
    """Limits the requests in flight of all threads that share it; `stop` ends all waiting with
    CancelledError."""

    def __init__(self, most: int = 1) -> None:
        self._most, self._seats = most, threading.BoundedSemaphore(most)
        self._stopped = threading.Event()

    @contextlib.contextmanager
    def seat(self) -> Iterator[None]:
        """Waits until one more request may be in flight."""
        with self._seats:
            self.wait(0)
            yield

    def wait(self, seconds: float) -> None:
        """Waits; raises CancelledError after `stop`."""
        if self._stopped.wait(seconds):
            raise concurrent.futures.CancelledError("no more requests are sent")

    def stop(self) -> None:
        self._stopped.set()

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """(item, work(item)) as they come. The items in work and the results that the caller has not taken
        are at most the limit, so that a killed program loses no more. The first exception is raised here, and
        no further item starts. The threads are daemons: an interrupted program waits for none of them."""
        results: queue.SimpleQueue[tuple[Item, Any, BaseException | None]] = queue.SimpleQueue()

        def run(item: Item) -> None:
            try:
                results.put((item, work(item), None))
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                results.put((item, None, error))

        begun = returned = 0
        while returned < len(items):
            for item in items[begun : returned + self._most]:
                threading.Thread(target=run, args=(item,), daemon=True, name="question").start()
            begun = min(len(items), returned + self._most)
            try:
                item, result, error = results.get(timeout=0.2)
            except queue.Empty:
                self.wait(0)
                continue
            if error is not None:
                raise error
            yield item, result
            returned += 1


def find_host(address: str) -> str:
    """The row of `KEYS` for an address; "" for a server of the user's."""
    host = f".{urlsplit(address).hostname or ''}"
    return next((domain for domain in KEYS if host.endswith(f".{domain}")), "")


class Service:
    """One model at an address, which threads may share. Raises UserError for values out of range.

    key          Default: from the environment (`KEYS`).
    concurrency  Requests in flight.
    timeout      Seconds of one request.
    retries      Retries after a timeout, a broken connection, "too many requests" or a server error, as the
                 package openai does: after 0.5, 1, 2, ... 8 seconds, or as the server says (up to a minute).
    spending     Counts costs: its `request(model, address)` is around each request and gets its tokens
                 (`nein.models.cached.Spending`).
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str | None = None,
        concurrency: int = AT_ONCE,
        timeout: float = 120.0,
        retries: int = 5,
        spending: Any = None,
    ) -> None:
        if concurrency < 1 or timeout <= 0 or retries < 0:
            raise UserError(
                f"concurrency is {concurrency}, timeout {timeout} and retries {retries}; they must be at "
                "least 1, above 0 and at least 0."
            )
        import openai

        check_credentials(url)
        self.address = url.rstrip("/")
        self.hosted = find_host(self.address)
        self._variable = KEYS.get(self.hosted, "OPENAI_API_KEY")
        self._key = key or os.environ.get(self._variable, "")
        self.model = model
        self.concurrency, self.timeout, self.retries = concurrency, timeout, retries
        self.pace, self._spending = Pace(concurrency), spending
        self._usage: Counter[str] = Counter()
        self._counting = threading.Lock()
        # Images go to no other host: a redirect counts as a refusal.
        http = openai.DefaultHttpxClient(follow_redirects=False, event_hooks={"request": [self._sent]})
        connection: dict[str, Any] = {"timeout": timeout, "max_retries": retries, "http_client": http}
        self.client = openai.OpenAI(base_url=self.address, api_key=self._key or "none", **connection)

    def check(self) -> None:
        """Raises UserError if nobody answers, the key is missing or refused, or the model is not listed."""
        import openai

        if self.hosted and not self._key:
            raise UserError(f"'{self.address}' needs a key; set {self._variable}.")
        if self.hosted in ("anthropic.com", "azure.com"):  # other headers; no list of deployments
            return
        try:
            models = self.client.with_options(max_retries=0).models.list()
            served = [str(item.id).removeprefix("models/") for item in models.data]
        except openai.APIConnectionError as error:
            raise UserError(
                f"Nobody answers at '{self.address}' ({_cause(error)}); check the address, start the server."
            ) from None
        except openai.APIStatusError as error:
            if error.status_code in (401, 403):
                why = f"refuses the key (HTTP {error.status_code}); set {self._variable}."
                raise UserError(f"'{self.address}' {why}") from None
            if error.status_code < 400:
                raise UserError(str(self._refusal(error))) from None
            return
        except (ValueError, AttributeError, TypeError):  # the server has no list
            return
        if served:
            choose(f"model of '{self.address}'", self.model.removeprefix("models/"), served)

    def usage(self) -> dict[str, Any]:
        """Its usage so far: requests, `retries` among them, and other counts."""
        with self._counting:
            return dict(self._usage)

    def count(self, **numbers: int) -> None:
        with self._counting:
            self._usage.update({name: n for name, n in numbers.items() if n})

    def stop(self) -> None:
        """Sends no further request or retry, and ends all waiting of `pace`."""
        self.pace.stop()
        self.client.close()

    def send(self, path: str, body: Mapping[str, Any], *, image: bytes | None = None) -> Any:
        """Sends a request, with a PNG as field `image` if given; returns the JSON of its reply. Raises
        NoAnswer and BudgetError."""
        form: dict[str, Any] = {}
        if image is not None:
            form["files"] = [("image", ("image.png", image, "image/png"))]
            form["options"] = {"headers": {"Content-Type": "multipart/form-data"}}
        counted = self._spending.request(self.model, self.address) if self._spending is not None else None
        with self.pace.seat(), counted or contextlib.nullcontext({}) as paid:
            content = self._reply(functools.partial(self.client.post, path, cast_to=str, body=body, **form))
            paid |= tokens(content.get("usage") if isinstance(content, dict) else None)
        self.count(**paid)
        return content

    def _reply(self, post: Callable[[], str]) -> Any:
        import openai

        attempts = f"the endpoint gave no answer after {self.retries + 1} attempts"
        try:
            return json.loads(post())
        except ValueError:
            raise NoAnswer("the reply is not JSON; the address is of another kind of server") from None
        except openai.APITimeoutError:
            raise NoAnswer(f"{attempts}: no answer within {self.timeout:g} s", TIMEOUT) from None
        except openai.APIConnectionError as error:
            raise NoAnswer(f"{attempts}: the connection failed ({_cause(error)})", CONNECTION) from None
        except openai.APIStatusError as error:
            if error.status_code in RETRIED or error.status_code >= 500:
                raise NoAnswer(f"{attempts}: HTTP {error.status_code}", SERVER) from None
            raise self._refusal(error) from None

    def _refusal(self, error: Any) -> NoAnswer:
        status, reply = error.status_code, error.response.text
        if status < 400:
            target = hide_credentials(error.response.headers.get("location", ""))
            sent_on = f"'{self.address}' sends requests on to '{target}', where nothing is sent"
            return NoAnswer(f"{sent_on}; give that address", REFUSED, status=status)
        message = f"HTTP {status} {self.quote(reply)}"
        if any(code in reply for code in CONTENT):
            return NoAnswer(f"the endpoint withheld an answer: {message}", WITHHELD)
        named = [*filter(None, [error.param]), *re.findall(r"['\"`](\w+)['\"`]", str(error.body))]
        return NoAnswer(f"the endpoint refused the request: {message}", REFUSED, status=status, named=named)

    def quote(self, reply: str) -> str:
        """The beginning of a server's reply on one line, without credentials that it may repeat."""
        return " ".join(QUOTED.sub(r"\1 ...", self.hide_key(reply))[:200].split())

    def hide_key(self, text: str) -> str:
        return text.replace(self._key, "...") if self._key else text

    def _sent(self, request: Any) -> None:
        if request.method == "POST":
            again = request.headers.get("x-stainless-retry-count", "0") != "0"
            self.count(requests=1, retries=int(again))


def png(image: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG", compress_level=1)  # 6 takes longer than to decode
    return buffer.getvalue()


def _cause(error: BaseException) -> str:
    return type(error.__cause__ or error).__name__


# --- what requests cost ------------------------------------------------------------------------------------

#: Our names of tokens -> those of the package genai-prices.
TOKENS = {name: name for name in ("input_tokens", "output_tokens", "output_image_tokens")}
TOKENS |= {"cached_tokens": "cache_read_tokens", "image_tokens": "input_image_tokens"}


class BudgetError(UnavailableError):
    """The next request might exceed the budget."""


def tokens(usage: Any) -> dict[str, int]:
    """The `usage` of a reply (chat completions, images.edit) by our names: input_tokens (including
    cached_tokens, image_tokens), output_tokens (including reasoning_tokens, output_image_tokens)."""
    if not isinstance(usage, dict):
        return {}
    counts: dict[str, Any] = {}
    for ours, theirs, part, image in (
        ("input_tokens", "prompt_tokens", "cached_tokens", "image_tokens"),
        ("output_tokens", "completion_tokens", "reasoning_tokens", "output_image_tokens"),
    ):
        details = usage.get(f"{ours}_details") or usage.get(f"{theirs}_details") or {}
        counts |= {ours: usage.get(ours, usage.get(theirs)), part: details.get(part)}
        counts[image] = details.get("image_tokens")
    return {name: count for name, count in counts.items() if isinstance(count, int) and count > 0}


def price(model: str, usage: Mapping[str, int], address: str = "") -> Decimal | None:
    """Dollars by genai-prices, for the provider at the address or the model's own; None if unknown."""
    if (rate := _rate(model, address)) is None:
        return None
    counts = {theirs: usage[ours] for ours, theirs in TOKENS.items() if usage.get(ours)}
    try:
        return rate(counts)
    except ValueError:  # parts that may overlap: priced as the others
        return rate({name: counts[name] for name in ("input_tokens", "output_tokens") if name in counts})


@functools.lru_cache(maxsize=64)
def _rate(model: str, address: str) -> Callable[[Mapping[str, int]], Decimal] | None:
    try:
        from genai_prices import Usage, calc_price
    except ImportError:  # it needs Python 3.11
        return None
    queries: tuple[dict[str, Any], ...] = ({"provider_api_url": address}, {})
    for query in queries:
        with contextlib.suppress(LookupError):
            calc_price(Usage(input_tokens=1), model, **query)
            return lambda known: calc_price(Usage(**known), model, **query).total_price
    return None
