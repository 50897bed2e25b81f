"""A model behind an address of OpenAI's shape: its client and key, its pace, and what it has taken."""

from __future__ import annotations

import concurrent.futures
import contextlib
import email.utils
import functools
import io
import itertools
import json
import math
import os
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from nein.loading.errors import UserError, choose
from nein.loading.references import check_credentials, without_credentials
from nein.loading.spending import tokens

clock = time.monotonic
#: Kinds of failure, for counting: nobody answered in time; the connection broke or could not be made; the
#: server kept failing; it refused the request; it withheld the answer; the reply was of another kind.
TIMEOUT, CONNECTION, SERVER = "timeout", "connection", "server error"
REFUSED, WITHHELD, PROTOCOL = "refused", "withheld", "another protocol"
#: Statuses that are sent again (as the package openai does, with 500 and above).
RETRIED = (408, 409, 429)
#: Statuses that are about the service (its key, its address), not about one request.
UNUSABLE = (401, 402, 403, 404, 405)
#: Statuses of a server that does not know a part of the request.
UNKNOWN_PART = (400, 422)
#: What a server says (`code` or `type`) that refuses the content of a request.
CONTENT = (
    "content_policy_violation", "content_filter", "invalid_prompt", "moderation_blocked", "cyber_policy",
)  # fmt: skip
#: Host of a hosted service -> the environment variable with its key; OPENAI_API_KEY for any other host.
KEYS = {
    "openai.com": "OPENAI_API_KEY", "azure.com": "AZURE_OPENAI_API_KEY", "x.ai": "XAI_API_KEY",
    "anthropic.com": "ANTHROPIC_API_KEY", "googleapis.com": "GEMINI_API_KEY",
}  # fmt: skip
#: A header with a key or a password, as a server may quote it.
QUOTED = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]+", re.IGNORECASE)
#: Seconds that a server may ask to wait (Retry-After), as the package openai has it.
LONGEST_WAIT = 120.0

AT_ONCE = 8  # requests in flight, where nobody says how many

Item = TypeVar("Item")
Result = TypeVar("Result")


class NoAnswer(RuntimeError):
    """A request that stayed without an answer, in spite of retries.

    kind    One of the words above, or another of the caller's, for counting.
    silent  Whether other requests can be expected to fare alike: nobody answers, or everybody is refused.
    status  Of the HTTP reply; 0 where there was none.
    named   Parts of the request that a refusal names.
    """

    def __init__(
        self, message: str, kind: str = PROTOCOL, *, silent: bool | None = None, status: int = 0,
        named: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.kind, self.status, self.named = kind, status, named
        usual = kind not in (REFUSED, WITHHELD) or (kind == REFUSED and status in UNUSABLE)
        self.silent = usual if silent is None else silent

    @property
    def of_a_part(self) -> bool:
        """Whether the server may take the request without one of its parts."""
        return self.kind == REFUSED and self.status in UNKNOWN_PART

    @property
    def transient(self) -> bool:
        """Whether the same request may be answered another time."""
        return self.kind in (TIMEOUT, CONNECTION, SERVER) or (self.kind == REFUSED and self.silent)


class Pace:
    """When the next request may be sent, and how many at a time, for all threads that share it."""

    def __init__(self, most: int = 1) -> None:
        self._seats = threading.BoundedSemaphore(most)
        self._resumes = 0.0  # by `clock`
        self._stopped = threading.Event()

    @contextlib.contextmanager
    def seat(self) -> Iterator[None]:
        """Waits until one request more may be in flight."""
        while not self._seats.acquire(timeout=0.2):
            self.go_on()
        try:
            self.wait()
            yield
        finally:
            self._seats.release()

    def hold(self, seconds: float) -> None:
        """Nothing is sent for so long; longer than `LONGEST_WAIT` is nobody's wish."""
        if 0 < seconds <= LONGEST_WAIT:
            self._resumes = max(self._resumes, clock() + seconds)

    def wait(self, seconds: float = 0.0) -> None:
        """Until something may be sent, and at least so long. Raises CancelledError after `stop`."""
        until = clock() + seconds
        while (left := max(self._resumes, until) - clock()) > 0:
            self.go_on()
            self._stopped.wait(min(left, 0.2))

    def stop(self) -> None:
        self._stopped.set()

    def go_on(self) -> None:
        if self._stopped.is_set():
            raise concurrent.futures.CancelledError("no more requests are sent")


def hosted(address: str) -> str:
    """The row of `KEYS` of an address; "" of a server of one's own."""
    host = urlsplit(address).hostname or ""
    return max((domain for domain in KEYS if f".{host}".endswith(f".{domain}")), key=len, default="")


class Service:
    """One model at an address; threads may share one. Raises UserError for values out of range.

    key          By default of the environment (`KEYS`).
    concurrency  Requests in flight at a time.
    timeout      Seconds to wait for one answer.
    retries      How often a request is sent again after a timeout, a broken connection, "too many requests"
                 or a server error: after 0.5, 1, 2, ... 8 seconds, or as long as the server says (up to
                 `LONGEST_WAIT`); no other request of this service is sent meanwhile.
    spending     What counts what requests cost: `request(model, address)`, around each, is given its tokens
                 (`nein.models.cached.Spending`); None: nothing does.
    """

    def __init__(
        self, url: str, model: str, *, key: str | None = None, concurrency: int = AT_ONCE,
        timeout: float = 120.0, retries: int = 5, spending: Any = None,
    ) -> None:  # fmt: skip
        if concurrency < 1 or timeout <= 0 or retries < 0:
            raise UserError(
                f"concurrency {concurrency}, timeout {timeout} and retries {retries}: at least 1, above 0 "
                f"and at least 0."
            )
        import openai

        check_credentials(url)
        self.address = url.rstrip("/")
        self.hosted = hosted(self.address)
        self._key = key or os.environ.get(KEYS.get(self.hosted, "OPENAI_API_KEY"), "")
        self.model = model
        self.concurrency, self.timeout, self.retries = concurrency, timeout, retries
        self._spending = spending
        self._usage: Counter[str] = Counter()
        self._counting = threading.Lock()
        paced = self._paced

        class Client(openai.DefaultHttpxClient):
            def send(self, request: Any, **options: Any) -> Any:
                return paced(request, functools.partial(super().send, request, **options))

        # What is sent, pictures above all, goes to no other host: a redirect is a reply like others.
        self.client = openai.OpenAI(
            base_url=self.address, api_key=self._key or "none", timeout=timeout, max_retries=retries,
            http_client=Client(follow_redirects=False),
        )  # fmt: skip
        self.pace = Pace(concurrency)

    def check(self) -> None:
        """Raises UserError when nobody answers, the key is lacking or refused, or the model is not listed."""
        import openai

        variable = KEYS.get(self.hosted, "OPENAI_API_KEY")
        if self.hosted and not self._key:
            raise UserError(f"'{self.address}' needs a key; set {variable}.")
        if self.hosted in ("anthropic.com", "azure.com"):  # other headers; and no list of one's deployments
            return
        try:
            reply = self.client.with_options(max_retries=0).models.with_raw_response.list()
            models = json.loads(reply.http_response.content)["data"]
            served = [self.cleared(str(item["id"])).removeprefix("models/") for item in models]
        except openai.APIConnectionError as error:
            raise UserError(f"Nobody answers at '{self.address}' ({_cause(error)}).") from None
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise UserError(
                f"'{self.address}' refuses the key (HTTP {error.status_code}); set {variable}."
            ) from None
        except openai.APIStatusError as error:
            target = _redirected(error.response)
            if target and urlsplit(target)[:2] != urlsplit(self.address)[:2]:
                raise UserError(self._sent_on(target)) from None
            return
        except (ValueError, KeyError, TypeError):
            return
        if served:
            choose(f"model of '{self.address}'", self.model.removeprefix("models/"), served)

    def usage(self) -> dict[str, Any]:
        """What its work has taken so far: requests, of which `retries`, and what was counted."""
        with self._counting:
            return dict(self._usage)

    def count(self, **numbers: Any) -> None:
        """Adds to `usage` what is a whole number."""
        with self._counting:
            self._usage.update({name: n for name, n in numbers.items() if isinstance(n, int) and n})

    def stop(self) -> None:
        """From now on no request is sent, not even again, and no call of `each` waits."""
        self.pace.stop()
        self.client.close()

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """As `parallel_map`, until `stop`: then it raises CancelledError."""
        return parallel_map(work, items, self.concurrency, self.pace.go_on)

    def send(self, path: str, body: Mapping[str, Any], *, image: bytes | None = None) -> Any:
        """The JSON content of the reply to a request, with a PNG of field `image` where there is one. Raises
        NoAnswer and BudgetError."""
        form: dict[str, Any] = {} if image is None else {
            "files": [("image", ("image.png", image, "image/png"))],
            "options": {"headers": {"Content-Type": "multipart/form-data"}},
        }  # fmt: skip
        counted = self._spending.request(self.model, self.address) if self._spending is not None else None
        with counted or contextlib.nullcontext({}) as paid:
            content = self._reply(functools.partial(self.client.post, path, cast_to=str, body=body, **form))
            paid |= tokens(content.get("usage") if isinstance(content, dict) else None)
        self.count(**paid)
        return content

    def _reply(self, create: Callable[[], str]) -> Any:
        import openai

        attempts = f"the endpoint gave no answer after {self.retries + 1} attempts"
        try:
            return json.loads(create())
        except ValueError:
            raise NoAnswer("the reply is not JSON; the address is of another kind of server") from None
        except openai.APITimeoutError:
            raise NoAnswer(f"{attempts}: no answer within {self.timeout:g} s", TIMEOUT) from None
        except openai.APIConnectionError as error:
            raise NoAnswer(f"{attempts}: the connection failed ({_cause(error)})", CONNECTION) from None
        except openai.APIStatusError as error:
            status = error.status_code
            if target := _redirected(error.response):
                raise NoAnswer(self._sent_on(target), REFUSED, silent=True, status=status) from None
            if status not in RETRIED and status < 500:
                raise self._refusal(status, error.response.text) from None
            said = _error_within(error.response.content)
            words = "" if said is None else f": {self._quoted(said[1])}"
            if (wait := retry_after(error.response.headers)) > LONGEST_WAIT:
                attempts = f"the endpoint says to wait {wait:.0f} s, longer than {LONGEST_WAIT:.0f}"
            raise NoAnswer(f"{attempts}{words}: HTTP {status}", SERVER, status=status) from None

    def _refusal(self, status: int, reply: str) -> NoAnswer:
        """Why the server does not answer, in its own words, without the credentials that it may quote."""
        message = f"HTTP {status} {self._quoted(reply)}"
        try:
            content = json.loads(reply)
        except ValueError:
            content = reply
        error = content.get("error", content) if isinstance(content, dict) else {}
        error, words = error if isinstance(error, dict) else {}, str(content)
        if {str(error.get("code")), str(error.get("type"))} & {*CONTENT} or any(
            code in words for code in CONTENT
        ):
            return NoAnswer(f"the endpoint withheld an answer: {message}", WITHHELD, status=status)
        named = [*filter(None, [error.get("param")]), *re.findall(r"['\"`](\w+)['\"`]", words)]
        return NoAnswer(f"the endpoint refused the request: {message}", REFUSED, status=status, named=named)

    def _quoted(self, reply: str) -> str:
        """The beginning of what a server says, on one line, without credentials."""
        text = QUOTED.sub(r"\1 ...", self.cleared(reply, shortest=1))
        return " ".join("".join(c if c.isprintable() else " " for c in text[:200]).split())

    def _sent_on(self, target: str) -> str:
        return f"'{self.address}' sends requests on to '{target}', where nothing is sent; give that address"

    def cleared(self, text: str, shortest: int = 8) -> str:
        """A text without the key, if that has at least `shortest` letters: a short one may be a word."""
        return text.replace(self._key, "...") if len(self._key) >= shortest else text

    def _paced(self, request: Any, send: Callable[[], Any]) -> Any:
        """Sends an HTTP request in its turn; notes until when the server wants no other of anybody."""
        with self.pace.seat():
            if request.method == "POST":
                again = request.headers.get("x-stainless-retry-count", "0") != "0"
                self.count(requests=1, retries=int(again))
            response = send()
            if response.status_code == 200 and request.method == "POST":
                if (said := _error_within(response.read())) is not None:
                    response.status_code = said[0]  # the package then does with it as with any error
        if response.status_code in RETRIED or response.status_code >= 500:
            self.pace.hold(retry_after(response.headers))
        return response


def parallel_map(
    work: Callable[[Item], Result], items: Sequence[Item], at_once: int, go_on: Callable[[], None]
) -> Iterator[tuple[Item, Result]]:
    """(item, work(item)) as they come, `at_once` at a time with those that the caller has not taken in yet: a
    program that dies loses no more.

    The first exception is raised here, and nothing more is begun; `go_on` is called several times a second
    and may raise, too. The threads are daemons: whoever interrupts the program waits for none of them.
    """
    waiting: queue.SimpleQueue[tuple[Item] | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Item, Any, BaseException | None]] = queue.SimpleQueue()
    rest, seats = iter(items), min(at_once, len(items))

    def run() -> None:
        while (task := waiting.get()) is not None:
            try:
                done.put((*task, work(*task), None))
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                done.put((*task, None, error))

    for item in itertools.islice(rest, seats):
        waiting.put((item,))
        threading.Thread(target=run, daemon=True, name="question").start()
    try:
        open_ = len(items)
        while open_:
            try:
                item, result, error = done.get(timeout=0.2)
            except queue.Empty:
                go_on()
                continue
            if error is not None:
                raise error
            yield item, result
            open_ -= 1
            for item in itertools.islice(rest, 1):
                waiting.put((item,))
    finally:
        for _ in range(seats):
            waiting.put(None)


def png(image: Any) -> bytes:
    """A picture, (H, W, 3) uint8, without loss."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG", compress_level=1)  # 6 costs more than the decode
    return buffer.getvalue()


def backoff(attempt: int) -> float:
    """Seconds before a request is sent again, as the package openai waits."""
    return min(8.0, 0.5 * 2**attempt)


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds of a Retry-After, which may be a date; 0 for none."""
    given = headers.get("retry-after", "")
    try:
        seconds = float(given)
        return seconds if math.isfinite(seconds) else 0.0
    except ValueError:
        date = email.utils.parsedate_tz(given)
        return email.utils.mktime_tz(date) - time.time() if date else 0.0


def _redirected(response: Any) -> str:
    """Where a reply sends on to; "" where it does not."""
    if response.status_code not in range(300, 400):
        return ""
    return without_credentials(urljoin(str(response.url), response.headers.get("location", "")))


def _error_within(content: bytes) -> tuple[int, str] | None:
    """Status and words of an error that a server, or one behind it, wraps in a reply of status 200: its own
    code, 400 where it names a content policy, else 500. None for a reply without one."""
    if b'"error"' not in content:
        return None
    try:
        reply = json.loads(content)
        choice = (reply.get("choices") or [{}])[0]
        failed = choice.get("finish_reason") == "error"
        error = reply.get("error") or choice.get("error") or ("finish_reason: error" if failed else None)
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return None
    if not error:
        return None
    words = error if isinstance(error, str) else json.dumps(error)
    if any(code in words for code in CONTENT):
        return 400, words
    code = str(error.get("code") if isinstance(error, dict) else "")
    return int(code) if re.fullmatch("[45][0-9][0-9]", code) else 500, words


def _cause(error: BaseException) -> str:
    return type(error.__cause__ or error).__name__
