"""A model behind an OpenAI-compatible endpoint: vLLM, SGLang, Ollama, hosted services.

`openai:URL#MODEL` names it, for example `openai:http://localhost:8000/v1#Qwen/Qwen2.5-VL-7B-Instruct`;
`vllm:URL#MODEL` is a server of vLLM (`metrics.backends.vllm`). The key (OPENAI_API_KEY) goes nowhere but into
the request; so do user, password and query of the address (`nein.loading.credentials`).
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import hashlib
import io
import json
import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np

from nein.loading import credentials, spending
from nein.loading.errors import choose
from nein.metrics.base import MetricError

#: Kinds of failure, for counting: nobody answered in time; the connection broke or could not be made; the
#: server kept failing; it refused the request; it withheld the answer; the reply was no chat completion.
TIMEOUT, CONNECTION, SERVER = "timeout", "connection", "server error"
REFUSED, WITHHELD, PROTOCOL = "refused", "withheld", "no chat completion"
#: Statuses that are sent again (as the package openai does, with 500 and above).
RETRIED = (408, 409, 429)
#: Statuses that are about the endpoint (its key, its address), not about one question.
UNUSABLE = (401, 402, 403, 404, 405)
#: Statuses of a server that does not know a part of the request.
UNKNOWN_PART = (400, 422)
#: The 20 likeliest first tokens, where a server gives log-probabilities.
LOGPROBS: Mapping[str, Any] = {"logprobs": True, "top_logprobs": 20}

Item = TypeVar("Item")
Result = TypeVar("Result")


class NoAnswer(RuntimeError):
    """A question that stayed without an answer, in spite of retries.

    kind    One of the words above, for counting.
    silent  Whether other questions can be expected to fare alike: nobody answers, or everybody is refused.
    status  Of the HTTP reply; 0 where there was none.
    """

    def __init__(self, message: str, kind: str = PROTOCOL, *, silent: bool = True, status: int = 0) -> None:
        super().__init__(message)
        self.kind, self.silent, self.status = kind, silent, status


@dataclass(frozen=True)
class Said:
    """One reply.

    text      As it came; "" for none.
    finished  The model ended it itself, not the limit of tokens.
    first     (token, log-probability) of the likeliest first tokens of the answer, behind any thoughts; empty
              where the server gives none, or it cannot be told where the thoughts end.
    tokens    How many were generated, where the server says so.
    server    What the server says of its configuration (`system_fingerprint`); "" for nothing.
    """

    text: str
    finished: bool
    first: tuple[tuple[str, float], ...]
    tokens: int | None
    server: str = ""
    thought: bool = False  # its tokens begin with thoughts


@dataclass(frozen=True)
class Turn:
    """A question about one picture: the words behind it, and any before it."""

    after: str
    before: str = ""

    def around(self, picture: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [*([words(self.before)] if self.before else []), picture, words(self.after)]


class Picture:
    """A picture, (H, W, 3) uint8, encoded when it is first sent. `uuid` stands for shape and pixels."""

    def __init__(self, image: np.ndarray) -> None:
        self._image = image

    @cached_property
    def uuid(self) -> str:
        shape = f"{self._image.shape}".encode()
        return hashlib.sha256(shape + np.ascontiguousarray(self._image).tobytes()).hexdigest()

    @cached_property
    def part(self) -> dict[str, Any]:
        """Of a message: a lossless PNG."""
        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(self._image).save(buffer, format="PNG", compress_level=1)
        data = base64.b64encode(buffer.getvalue()).decode()
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


class Endpoint:
    """Chat completions of one model; threads may share one.

    url          With or without user, password and query (`address` is without), or with those put aside for
                 it.
    concurrency  Requests in flight at a time; who comes then waits.
    timeout      Seconds to wait for one answer.
    retries      How often the package openai sends a request again after a timeout, a broken connection, "too
                 many requests" or a server error: after 0.5, 1, 2, ... 8 seconds or the server's Retry-After.

    Raises MetricError for values out of range.
    """

    def __init__(
        self, url: str, model: str, *, key: str | None = None, concurrency: int = 8, timeout: float = 60.0,
        retries: int = 5,
    ) -> None:  # fmt: skip
        if concurrency < 1 or timeout <= 0 or retries < 0:
            raise MetricError(
                f"concurrency {concurrency}, timeout {timeout} and retries {retries}: at least 1, above 0 "
                f"and at least 0."
            )
        import openai

        self.address, given = credentials.split(url.rstrip("/"))
        self._credentials = given if any(given) else credentials.of(self.address, model)
        user, query = self._credentials
        name, _, password = user.partition(":")
        basic = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
        self._secrets = credentials.spellings(self._credentials, key or "", basic if user else "")
        self.model = model
        self.concurrency, self.timeout, self.retries = concurrency, timeout, retries
        self._usage: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._client = openai.OpenAI(
            base_url=self.address, api_key=key or "none", timeout=timeout, max_retries=retries,
            default_headers={"Authorization": f"Basic {basic}"} if user else None,
            default_query=dict(parse_qsl(query, keep_blank_values=True)),
            http_client=openai.DefaultHttpxClient(event_hooks={"request": [self._count]}),
        )  # fmt: skip
        self._seats = threading.BoundedSemaphore(concurrency)
        self._unknown: set[str] = set()  # parts of a request that the server does not take
        self._stopped = threading.Event()

    def check(self) -> None:
        """Raises MetricError when nobody answers, the key is refused, or the model is not in the list of
        models, where there is one."""
        import openai

        try:
            reply = self._client.with_options(max_retries=0).models.with_raw_response.list()
            models = json.loads(reply.http_response.content)["data"]
            served = [self._cleared(str(item["id"])) for item in models]
        except openai.APIConnectionError as error:
            raise MetricError(f"Nobody answers at '{self.address}' ({_cause(error)}).") from None
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise MetricError(
                f"'{self.address}' refuses the key (HTTP {error.status_code}); set OPENAI_API_KEY."
            ) from None
        except (openai.APIStatusError, ValueError, KeyError, TypeError):
            return
        if served:
            choose(f"model of '{self.address}'", self.model, served)

    def facts(self) -> dict[str, Any]:
        """What is known of it that decides an answer: not where it is, for servers move."""
        return {"model": self.model}

    def usage(self) -> dict[str, Any]:
        """What its work has taken so far, for the manifest: `requests`, of which `retries`, and the tokens
        that the server counted (`spending.tokens`)."""
        with self._counting:
            return dict(self._usage)

    def _count(self, request: Any) -> None:
        if request.method == "POST":
            with self._counting:
                self._usage["requests"] += 1
                self._usage["retries"] += request.headers.get("x-stainless-retry-count", "0") != "0"

    def stop(self) -> None:
        """From now on no request is sent, not even again, and no call of `each` waits."""
        self._stopped.set()
        self._client.close()

    def chat(
        self,
        content: str | Sequence[Mapping[str, Any]],
        optional: Sequence[Mapping[str, Any]] = (),
        **body: Any,
    ) -> Said:
        """What the model says to `content`, words or a list of `words` and `picture`.

        optional  Parts of the request that not every server takes. A refused request is sent without the
                  first of them, then without the first two, and so on; what is not needed is not sent again.
        body      The rest of the request: max_tokens, temperature, ... Raises NoAnswer.
        """
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], **body}
        parts = [part for part in optional if not self._unknown.intersection(part)]
        with self._seats:
            for dropped in range(len(parts) + 1):
                more = {key: value for part in parts[dropped:] for key, value in part.items()}
                try:
                    said = _read(self._send({**body, **more}), self._cleared)
                except NoAnswer as error:
                    if error.status in UNKNOWN_PART and dropped < len(parts):
                        continue
                    raise
                self._unknown.update(key for part in parts[:dropped] for key in part)
                return said
        raise AssertionError("the last request is answered, or raises")

    def ask(
        self, images: Sequence[np.ndarray], asked: Sequence[Sequence[Turn]], *, max_tokens: int,
        likeliest: bool = True, failed: Callable[[NoAnswer], Any] | None = None,
    ) -> list[list[Any]]:  # fmt: skip
        """What is said to `asked[i]` about `images[i]`, (H, W, 3) uint8: a `Said` each, in the same shape.

        Every question is a request of its own, at temperature 0; the first questions of all pictures go
        first.

        likeliest  The log-probabilities of the first token are asked for, too.
        failed     Gives what stands for a question without an answer; None: that raises NoAnswer.
        """
        shown = [Picture(image) for image in images]
        longest = max(map(len, asked), default=0)
        places = [(i, k) for k in range(longest) for i, row in enumerate(asked) if k < len(row)]

        def said(place: tuple[int, int]) -> Any:
            i, k = place
            try:
                return self.about(shown[i], asked[i][k], max_tokens, likeliest)
            except NoAnswer as error:
                if failed is None:
                    raise
                return failed(error)

        answers = dict(self.each(said, places))
        return [[answers[i, k] for k in range(len(row))] for i, row in enumerate(asked)]

    def about(self, picture: Picture, turn: Turn, max_tokens: int, likeliest: bool) -> Said:
        """What the model says to one question; without log-probabilities where a server knows none. Raises
        NoAnswer."""
        optional = [LOGPROBS] if likeliest else []
        return self.chat(turn.around(picture.part), optional, max_tokens=max_tokens, temperature=0)

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """As `side_by_side`, until `stop`: then it raises CancelledError."""
        return side_by_side(work, items, self.concurrency, self._go_on)

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise concurrent.futures.CancelledError("the endpoint was stopped")

    def _send(self, body: dict[str, Any]) -> Any:
        with spending.request(self.model, self.address) as paid:
            content = self._reply(body)
            paid |= spending.tokens(content.get("usage") if isinstance(content, dict) else None)
        with self._counting:
            self._usage.update(paid)
        return content

    def _reply(self, body: dict[str, Any]) -> Any:
        import openai

        attempts = f"the endpoint gave no answer after {self.retries + 1} attempts"
        try:
            reply = self._client.chat.completions.with_raw_response.create(**body)
            return json.loads(reply.http_response.content)
        except ValueError:
            raise NoAnswer("the reply is not JSON; this is not a chat-completions endpoint") from None
        except openai.APITimeoutError:
            raise NoAnswer(f"{attempts}: no answer within {self.timeout:g} s", TIMEOUT) from None
        except openai.APIConnectionError as error:
            raise NoAnswer(f"{attempts}: the connection failed ({_cause(error)})", CONNECTION) from None
        except openai.APIStatusError as error:
            status = error.status_code
            if status in RETRIED or status >= 500:
                raise NoAnswer(f"{attempts}: HTTP {status}", SERVER, status=status) from None
            # The beginning of what the server says, without the credentials that it may quote.
            text = credentials.QUOTED.sub(r"\1 ...", self._cleared(error.response.text, shortest=1))
            text = " ".join("".join(c if c.isprintable() else " " for c in text[:200]).split())
            refused = f"the endpoint refused the question: HTTP {status} {text}"
            raise NoAnswer(refused, REFUSED, silent=status in UNUSABLE, status=status) from None

    def _cleared(self, text: str, shortest: int = 8) -> str:
        """A text without the key and the credentials of this endpoint of at least `shortest` letters: in an
        answer, a password of a few letters is an ordinary word."""
        for secret in self._secrets:
            if len(secret) >= shortest:
                text = text.replace(secret, "...")
        return text


def side_by_side(
    work: Callable[[Item], Result], items: Sequence[Item], at_once: int, go_on: Callable[[], None]
) -> Iterator[tuple[Item, Result]]:
    """(item, work(item)) as they come, `at_once` at a time.

    The first exception is raised here, and nothing more is begun; `go_on` is called several times a second
    and may raise, too. The threads are daemons: whoever interrupts the program waits for none of them.
    """
    waiting: queue.SimpleQueue[Item] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Item, Any, BaseException | None]] = queue.SimpleQueue()
    left = threading.Event()
    for item in items:
        waiting.put(item)

    def run() -> None:
        with contextlib.suppress(queue.Empty):
            while not left.is_set():
                item = waiting.get_nowait()
                try:
                    done.put((item, work(item), None))
                except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                    done.put((item, None, error))
                    return

    for _ in range(min(at_once, len(items))):
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
    finally:
        left.set()


def words(text: str) -> dict[str, Any]:
    """A text among several parts of a question."""
    return {"type": "text", "text": text}


def is_endpoint(reference: str) -> bool:
    """Whether a model is behind an address, and not in this process."""
    kind, _, rest = reference.partition(":")
    return kind == "openai" or (kind == "vllm" and "://" in rest)


def split_endpoint(reference: str) -> tuple[str, str]:
    """(URL, model) of `openai:URL#MODEL` or `vllm:URL#MODEL`. Raises MetricError for anything else."""
    kind, _, rest = reference.partition(":")
    url, _, model = rest.rpartition("#")
    try:
        parts = urlsplit(url)
        address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        address = False
    if not is_endpoint(reference) or not address or not model:
        kind = kind if kind == "vllm" else "openai"
        raise MetricError(
            f"'{credentials.without(reference)}' is not an endpoint; expected {kind}:URL#MODEL, for example "
            f"{kind}:http://localhost:8000/v1#Qwen/Qwen2.5-VL-7B-Instruct."
        )
    return url, model


def key() -> str | None:
    """The key of the environment variable OPENAI_API_KEY."""
    return os.environ.get("OPENAI_API_KEY")


def _read(reply: Any, cleared: Callable[[str], str]) -> Said:
    """The first choice of a reply, its texts `cleared`. Raises NoAnswer."""
    try:
        choice = reply["choices"][0]
        message = choice["message"]
        text = message.get("content") or ""
        entries = (choice.get("logprobs") or {}).get("content") or []
        thoughts = str(message.get("reasoning") or message.get("reasoning_content") or "")
        place = answer_place([str(entry.get("token", "")) for entry in entries], str(text), thoughts)
        likely = entries[place].get("top_logprobs") or () if entries and place is not None else ()
        first = [(cleared(str(one["token"])), float(one["logprob"])) for one in likely]
        tokens = (reply.get("usage") or {}).get("completion_tokens")
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        raise NoAnswer("the reply has no choices; this is not a chat-completions endpoint") from None
    if choice.get("finish_reason") == "content_filter":
        raise NoAnswer("the endpoint's content filter withheld the answer", WITHHELD, silent=False)
    if not text and message.get("refusal"):
        raise NoAnswer("the model refused to answer", WITHHELD, silent=False)
    if not isinstance(text, str):
        raise NoAnswer("the answer is not a text")
    # Half of a character that took two, as a model that is cut off may leave, is in no UTF-8 text.
    text = cleared(text.encode("utf-8", "replace").decode())
    server = cleared(str(reply.get("system_fingerprint") or ""))
    count = tokens if isinstance(tokens, int) else None
    return Said(text, choice.get("finish_reason") != "length", tuple(first), count, server, place != 0)


def answer_place(tokens: Sequence[str], text: str, thoughts: str = "") -> int | None:
    """Which of the generated tokens begins the answer: 0 without thoughts, None where that cannot be told.

    text      As the server gives it, with thoughts up to </think> or without.
    thoughts  What the server gives apart from it.
    """
    whole, end = "".join(tokens), "</think>"
    if not thoughts and end not in text + whole and not (whole or text).lstrip().startswith("<think>"):
        return 0
    head, _, answer = text.rpartition(end)
    thoughts, answer = (thoughts or head).strip().removeprefix("<think>").strip(), answer.strip()
    if end in whole:
        begin = whole.rindex(end) + len(end)
    else:
        before = whole.rstrip().removesuffix(answer)
        there = answer and whole.rstrip().endswith(answer) and not answer.startswith("<think>")
        if not there or (before.strip() and thoughts not in before):
            return None
        begin = len(before.rstrip())
    start = 0
    for place, token in enumerate(tokens):
        start += len(token)
        if whole[begin:start].strip():
            return place if start - len(token) >= begin else None  # else it ends the thoughts, too
    return None


def _cause(error: BaseException) -> str:
    return type(error.__cause__ or error).__name__
