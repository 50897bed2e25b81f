"""Client of a model behind an address with OpenAI's API: sends requests, counts and prices their tokens."""

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

AT_ONCE = 8  # requests in flight, by default

# --- failures ----------------------------------------------------------------------------------------------
#: Kinds of failure: no answer in time; a broken connection; a server that kept failing; a refused request; an
#: answer withheld for its content; a reply that is not of this API.
TIMEOUT, CONNECTION, SERVER = "timeout", "connection", "server error"
REFUSED, WITHHELD, PROTOCOL = "refused", "withheld", "another protocol"
# HTTP statuses.
RETRIED = (408, 409, 429)  # as the package openai does, with 500 and above
UNUSABLE = (*range(300, 400), 401, 402, 403, 404, 405)  # the fault is the key or the address, not the request
UNKNOWN_PART = (400, 422)  # the server may not know a part of the request


class NoAnswer(RuntimeError):
    """A request without an answer, in spite of retries. status: of HTTP, for a refused request."""

    def __init__(
        self, message: str, kind: str = PROTOCOL, *, status: int = 0, named_parts: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.kind = kind  # one of the kinds above, or of the caller's; failures are counted by kind
        self.named_parts = named_parts  # the parts of the request that the refusal names
        refusal = status if kind == REFUSED else 0
        # Other requests will probably fail, too: there are no answers at all, or every request is refused.
        self.silent = refusal in UNUSABLE or kind not in (REFUSED, WITHHELD)
        # The same request may be answered later.
        self.transient = refusal in UNUSABLE or kind in (TIMEOUT, CONNECTION, SERVER)
        self.of_a_part = refusal in UNKNOWN_PART  # the server may accept the request without one of its parts


# --- pace --------------------------------------------------------------------------------------------------
Item = TypeVar("Item")
Result = TypeVar("Result")


class Pace:
    """Limits how many requests all threads have in flight; `stop` ends their waiting with CancelledError."""

    def __init__(self, limit: int = 1) -> None:
        self._limit = limit
        self._seats = threading.BoundedSemaphore(limit)
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
        """Yields (item, work(item)) as they come. Items in work and results that the caller has not taken are
        together at most the limit, so that a killed program loses no more. The first exception is raised
        here, and no further item starts."""
        results: queue.SimpleQueue[tuple[Item, Any, BaseException | None]] = queue.SimpleQueue()

        def run(item: Item) -> None:
            try:
                results.put((item, work(item), None))
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                results.put((item, None, error))

        begun = returned = 0  # numbers of items
        while returned < len(items):  # starts as many as the limit allows, then returns one
            for item in items[begun : returned + self._limit]:
                # Daemons: an interrupted program waits for none of them.
                threading.Thread(target=run, args=(item,), daemon=True, name="question").start()
            begun = min(len(items), returned + self._limit)
            try:
                item, result, error = results.get(timeout=0.2)
            except queue.Empty:
                self.wait(0)  # raises after `stop`
                continue
            if error is not None:
                raise error
            yield item, result
            returned += 1


# --- service -----------------------------------------------------------------------------------------------
#: Domain of a hosted service -> the environment variable with its key; OPENAI_API_KEY for any other server.
KEYS = {"openai.com": "OPENAI_API_KEY", "azure.com": "AZURE_OPENAI_API_KEY", "x.ai": "XAI_API_KEY"}
KEYS |= {"anthropic.com": "ANTHROPIC_API_KEY", "googleapis.com": "GEMINI_API_KEY"}
# Codes in the replies of servers that refuse the content of a request, as a pattern.
CONTENT_CODES = r"content_policy_violation|content_filter|invalid_prompt|moderation_blocked|cyber_policy"


def find_host(address: str) -> str:
    """The domain in `KEYS` of an address; "" for a user's own server."""
    host = f".{urlsplit(address).hostname or ''}"  # the dot: "ax.ai" is not in "x.ai"
    return next((domain for domain in KEYS if host.endswith(f".{domain}")), "")


class Service:
    """One model at an address, which threads may share. Raises UserError for values out of range.

    key          Default: from the environment (`KEYS`).
    concurrency  Requests in flight.
    timeout      Time limit of one request, in seconds.
    retries      Retries after a timeout, a broken connection, "too many requests" or a server error. The
                 package openai waits 0.5, 1, 2, ... 8 seconds, or as the server says (up to a minute).
    spending     `nein.models.cached.Spending`: keeps a budget, and adds up the tokens of each request.
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
        self.host = find_host(self.address)
        self._variable = KEYS.get(self.host, "OPENAI_API_KEY")
        self._key = key or os.environ.get(self._variable, "")
        self.model = model
        self.concurrency, self.timeout, self.retries = concurrency, timeout, retries
        self.pace = Pace(concurrency)
        self._spending = spending
        self._usage: Counter[str] = Counter()
        self._usage_lock = threading.Lock()
        # Images go to no other host: a redirect counts as a refusal.
        http = openai.DefaultHttpxClient(follow_redirects=False, event_hooks={"request": [self._count_sent]})
        connection: dict[str, Any] = {"timeout": timeout, "max_retries": retries, "http_client": http}
        self.client = openai.OpenAI(base_url=self.address, api_key=self._key or "none", **connection)

    def check(self) -> None:
        """Raises UserError if nobody answers, the key is missing or refused, or the model is not listed."""
        import openai

        if self.host and not self._key:
            raise UserError(f"'{self.address}' needs a key; set {self._variable}.")
        if self.host in ("anthropic.com", "azure.com"):  # other headers; no list of deployments
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
            if error.status_code < 400:  # a redirect
                raise UserError(str(self._explain_refusal(error))) from None
            return  # another error: this server may lack the list
        except (ValueError, AttributeError, TypeError):  # the server has no list
            return
        if served:
            choose(f"model of '{self.address}'", self.model.removeprefix("models/"), served)

    def usage(self) -> dict[str, Any]:
        """The counts so far: requests, `retries` among them, tokens by kind, and counts of callers."""
        with self._usage_lock:
            return dict(self._usage)

    def count(self, **numbers: int) -> None:
        """Adds to the counts of `usage`; a count of 0 gets no entry."""
        with self._usage_lock:
            self._usage.update({name: number for name, number in numbers.items() if number})

    def stop(self) -> None:
        """Sends no further request or retry, and ends all waiting of `pace`."""
        self.pace.stop()
        self.client.close()

    def send(self, path: str, body: Mapping[str, Any], *, image: bytes | None = None) -> Any:
        """Sends a request, with a PNG if given; returns the parsed reply. Raises NoAnswer and BudgetError."""
        form: dict[str, Any] = {}  # of a multipart request
        if image is not None:
            form["files"] = [("image", ("image.png", image, "image/png"))]
            form["options"] = {"headers": {"Content-Type": "multipart/form-data"}}
        spending = self._spending
        account = spending.request(self.model, self.address) if spending else contextlib.nullcontext({})
        with self.pace.seat(), account as used:  # used: tokens by kind, filled here
            reply = self._post(path, body=body, **form)
            used |= count_tokens(reply.get("usage") if isinstance(reply, dict) else None)
        self.count(**used)
        return reply

    def _post(self, path: str, **options: Any) -> Any:
        """The parsed reply to a request. Raises NoAnswer."""
        import openai

        failed = f"the endpoint gave no answer after {self.retries + 1} attempts"
        try:
            return json.loads(self.client.post(path, cast_to=str, **options))
        except ValueError:
            raise NoAnswer("the reply is not JSON; the address is of another kind of server") from None
        except openai.APITimeoutError:
            raise NoAnswer(f"{failed}: no answer within {self.timeout:g} s", TIMEOUT) from None
        except openai.APIConnectionError as error:
            raise NoAnswer(f"{failed}: the connection failed ({_cause(error)})", CONNECTION) from None
        except openai.APIStatusError as error:
            if error.status_code in RETRIED or error.status_code >= 500:
                raise NoAnswer(f"{failed}: HTTP {error.status_code}", SERVER) from None
            raise self._explain_refusal(error) from None

    def _explain_refusal(self, error: Any) -> NoAnswer:
        """The failure for an `openai.APIStatusError` of a redirect or a refusal."""
        status, reply = error.status_code, error.response.text
        if status < 400:  # a redirect
            target = hide_credentials(error.response.headers.get("location", ""))
            redirect = f"'{self.address}' sends requests on to '{target}', where nothing is sent"
            return NoAnswer(f"{redirect}; give that address", REFUSED, status=status)
        quoted = f"HTTP {status} {self.quote(reply)}"
        if re.search(CONTENT_CODES, reply):
            return NoAnswer(f"the endpoint withheld an answer: {quoted}", WITHHELD)
        parts = [error.param] if error.param else []
        parts += re.findall(r"['\"`](\w+)['\"`]", str(error.body))  # words in quotes
        refusal = f"the endpoint refused the request: {quoted}"
        return NoAnswer(refusal, REFUSED, status=status, named_parts=parts)

    def quote(self, reply: str) -> str:
        """The beginning of a server's reply on one line, without credentials that it may repeat."""
        without_headers = re.sub(r"(?i)\b(Bearer|Basic)\s+[\w.~+/=-]+", r"\1 ...", self.hide_key(reply))
        return " ".join(without_headers[:200].split())

    def hide_key(self, text: str) -> str:
        return text.replace(self._key, "...") if self._key else text

    def _count_sent(self, request: Any) -> None:
        """Hook of the HTTP client, called for each request, retries too."""
        if request.method == "POST":
            is_retry = request.headers.get("x-stainless-retry-count", "0") != "0"
            self.count(requests=1, retries=int(is_retry))


def encode_png(image: Any) -> bytes:
    """The PNG of an image, (H, W, 3) uint8."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG", compress_level=1)  # 6, the default, is slow
    return buffer.getvalue()


def _cause(error: BaseException) -> str:
    return type(error.__cause__ or error).__name__


# --- what requests cost ------------------------------------------------------------------------------------
class BudgetError(UnavailableError):
    """The next request might exceed the budget."""


def count_tokens(usage: Any) -> dict[str, int]:
    """The tokens of a request by kind, from the `usage` of its reply (chat completions or images.edit).

    Kinds: input_tokens (including cached_tokens, image_tokens), output_tokens (including reasoning_tokens,
    output_image_tokens); a kind without tokens is left out.
    """
    if not isinstance(usage, dict):
        return {}
    counts: dict[str, Any] = {}
    for kind, chat_name, part, image_kind in (
        ("input_tokens", "prompt_tokens", "cached_tokens", "image_tokens"),
        ("output_tokens", "completion_tokens", "reasoning_tokens", "output_image_tokens"),
    ):
        details = usage.get(f"{kind}_details") or usage.get(f"{chat_name}_details") or {}
        counts[kind] = usage.get(kind, usage.get(chat_name))
        counts[part] = details.get(part)
        counts[image_kind] = details.get("image_tokens")
    return {kind: count for kind, count in counts.items() if isinstance(count, int) and count > 0}


#: Our kinds of tokens -> those of the package genai-prices.
TOKENS = {kind: kind for kind in ("input_tokens", "output_tokens", "output_image_tokens")}
TOKENS |= {"cached_tokens": "cache_read_tokens", "image_tokens": "input_image_tokens"}


def compute_price(model: str, usage: Mapping[str, int], address: str = "") -> Decimal | None:
    """Dollars for tokens by kind, at the address's provider or else the model's own; None if unknown."""
    if (to_dollars := _find_price(model, address)) is None:
        return None
    counts = {theirs: usage[ours] for ours, theirs in TOKENS.items() if usage.get(ours)}
    try:
        return to_dollars(counts)
    except ValueError:  # a token is of two kinds (cached, image): all are priced as plain tokens
        plain = {kind: count for kind, count in counts.items() if kind in ("input_tokens", "output_tokens")}
        return to_dollars(plain)


@functools.lru_cache(maxsize=64)
def _find_price(model: str, address: str) -> Callable[[Mapping[str, int]], Decimal] | None:
    """The function from tokens (genai-prices' kinds) to dollars; None for an unknown model."""
    try:
        from genai_prices import Usage, calc_price
    except ImportError:  # it needs Python 3.11
        return None
    queries: tuple[dict[str, Any], ...] = ({"provider_api_url": address}, {})  # {}: by the model's name alone
    for query in queries:
        with contextlib.suppress(LookupError):  # raised for an unknown provider or model
            calc_price(Usage(input_tokens=1), model, **query)
            return lambda counts: calc_price(Usage(**counts), model, **query).total_price
    return None
