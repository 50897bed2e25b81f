"""A model behind an OpenAI-compatible endpoint: vLLM, SGLang, Ollama, hosted services.

`openai:URL#MODEL` names it, for example `openai:http://localhost:8000/v1#Qwen/Qwen2.5-VL-7B-Instruct`;
`vllm:URL#MODEL` is a server of vLLM (`metrics.backends.vllm`). The key (of the environment, `KEYS`) goes
nowhere but into the request; so do user, password and query of the address (`nein.loading.credentials`).
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import email.utils
import hashlib
import io
import json
import logging
import os
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np

from nein.loading import credentials, spending
from nein.loading.errors import choose
from nein.metrics.base import THOUGHTS, THOUGHTS_END, MetricError, without_thoughts

log = logging.getLogger(__name__)
clock = time.monotonic

#: Kinds of failure, for counting: nobody answered in time; the connection broke or could not be made; the
#: server kept failing; it refused the request; it withheld the answer; the token limit ended within the
#: model's thoughts; the reply was no chat completion.
TIMEOUT, CONNECTION, SERVER = "timeout", "connection", "server error"
REFUSED, WITHHELD, THINKING, PROTOCOL = "refused", "withheld", "still thinking", "no chat completion"
#: Statuses that are sent again (as the package openai does, with 500 and above).
RETRIED = (408, 409, 429)
#: Statuses that are about the endpoint (its key, its address), not about one question.
UNUSABLE = (401, 402, 403, 404, 405)
#: Statuses of a server that does not know a part of the request.
UNKNOWN_PART = (400, 422)
#: What a server says (`code` or `type`) that refuses the content of a question.
CONTENT = (
    "content_policy_violation", "content_filter", "invalid_prompt", "moderation_blocked", "cyber_policy",
)  # fmt: skip
#: The 20 likeliest first tokens, where a server gives log-probabilities.
LOGPROBS: Mapping[str, Any] = {"logprobs": True, "top_logprobs": 20}
#: What every request has and not every model takes.
DRAWING = ("temperature", "top_p")
#: Host of a hosted service -> the environment variable with its key; OPENAI_API_KEY for any other host.
KEYS = {
    "openai.com": "OPENAI_API_KEY", "anthropic.com": "ANTHROPIC_API_KEY", "googleapis.com": "GEMINI_API_KEY",
}  # fmt: skip
#: Seconds that a server may ask to wait (Retry-After); the package openai itself waits up to 120.
LONGEST_WAIT = 900.0

Item = TypeVar("Item")
Result = TypeVar("Result")


class NoAnswer(RuntimeError):
    """A question that stayed without an answer, in spite of retries.

    kind    One of the words above, for counting.
    silent  Whether other questions can be expected to fare alike: nobody answers, or everybody is refused.
    status  Of the HTTP reply; 0 where there was none.
    named   Parts of the request that a refusal names.
    """

    def __init__(
        self, message: str, kind: str = PROTOCOL, *, silent: bool = True, status: int = 0,
        named: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.kind, self.silent, self.status, self.named = kind, silent, status, named

    @property
    def of_a_part(self) -> bool:
        """Whether the server may take the request without one of its parts."""
        return self.kind == REFUSED and self.status in UNKNOWN_PART


@dataclass(frozen=True)
class Said:
    """One reply.

    text      The answer without any thoughts; "" for none.
    finished  The model ended it itself, not the limit of tokens.
    first     (token, log-probability) of the likeliest first tokens of the answer; empty where the server
              gives none, or it cannot be told where the thoughts end.
    tokens    How many were generated, thoughts included, where the server says so.
    server    What the server says of its configuration (`system_fingerprint`).
    model     The model that answered, by the server's name for it.
    thought   Its tokens begin with thoughts; thinking: and end within them.
    """

    text: str
    finished: bool
    first: tuple[tuple[str, float], ...]
    tokens: int | None
    server: str = ""
    model: str = ""
    thought: bool = False
    thinking: bool = False

    @property
    def version(self) -> str:
        return f"{self.model} {self.server}".strip()

    def answered(self) -> Said:
        """This reply. Raises NoAnswer where it ends within the model's thoughts."""
        if self.thinking:
            raise NoAnswer(
                "the limit of tokens ended within the model's thoughts; switch thinking off, or allow more "
                "thinking tokens",
                THINKING,
            )
        return self


@dataclass(frozen=True)
class Turn:
    """A question about one picture: the words behind it, and any before it."""

    after: str
    before: str = ""

    def around(self, picture: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [*([words(self.before)] if self.before else []), picture, words(self.after)]


class Picture:
    """A picture, (H, W, 3) uint8, encoded when it is first sent. `uuid` stands for shape and pixels; detail:
    how closely the server is told to look."""

    def __init__(self, image: np.ndarray, detail: str = "") -> None:
        self._image, self._detail = image, {"detail": detail} if detail else {}

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
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}", **self._detail}}


class Endpoint:
    """Chat completions of one model; threads may share one.

    url          With or without user, password and query (`address` is without), or with those put aside for
                 it.
    key          By default of the environment (`KEYS`).
    concurrency  Requests in flight at a time; who comes then waits.
    timeout      Seconds to wait for one answer.
    retries      How often a request is sent again after a timeout, a broken connection, "too many requests"
                 or a server error: after 0.5, 1, 2, ... 8 seconds, or as long as the server says (up to
                 `LONGEST_WAIT`); no other request of this endpoint is sent meanwhile.
    reasoning_effort, extra_body, detail
                 Sent with every request, and part of `facts`: how much the model thinks ("none", "low", ...),
                 further fields, how closely it looks at pictures ("low", "high", ...).
    thinking_tokens  That many tokens are allowed on top of an answer's limit; part of `facts`, too.

    A parameter that the model refuses is sent under its other name, or left out, from then on (`adapted`).
    Raises MetricError for values out of range.
    """

    def __init__(
        self, url: str, model: str, *, key: str | None = None, concurrency: int = 8, timeout: float = 60.0,
        retries: int = 5, reasoning_effort: str = "", extra_body: Mapping[str, Any] | None = None,
        detail: str = "", thinking_tokens: int = 0,
    ) -> None:  # fmt: skip
        if concurrency < 1 or timeout <= 0 or retries < 0 or thinking_tokens < 0:
            raise MetricError(
                f"concurrency {concurrency}, timeout {timeout}, retries {retries} and thinking_tokens "
                f"{thinking_tokens}: at least 1, above 0, at least 0 and at least 0."
            )
        import openai

        self.address, given = credentials.split(url.rstrip("/"))
        self._host = urlsplit(self.address).hostname or ""
        self._hosted = next((one for one in KEYS if f".{self._host}".endswith(f".{one}")), "")
        self._key = key or os.environ.get(KEYS.get(self._hosted, "OPENAI_API_KEY"), "")
        self._credentials = given if any(given) else credentials.of(self.address, model)
        user, query = self._credentials
        name, _, password = user.partition(":")
        basic = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
        self._secrets = credentials.spellings(self._credentials, self._key, basic if user else "")
        self.model, self.detail = model, detail
        self.concurrency, self.timeout, self.retries = concurrency, timeout, retries
        options = {"reasoning_effort": reasoning_effort, "extra_body": dict(extra_body or {})}
        self._options = {name: value for name, value in options.items() if value}
        self._thinking = thinking_tokens
        #: Parameter -> the name that the model takes, or "" where it is left out.
        self.adapted: dict[str, str] = {}
        self._usage: Counter[str] = Counter()
        self._versions: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._client = openai.OpenAI(
            base_url=self.address, api_key=self._key or "none", timeout=timeout, max_retries=retries,
            default_headers={"Authorization": f"Basic {basic}"} if user else None,
            default_query=dict(parse_qsl(query, keep_blank_values=True)),
            http_client=openai.DefaultHttpxClient(
                event_hooks={"request": [self._on_request], "response": [self._on_response]}
            ),
        )  # fmt: skip
        self._seats = threading.BoundedSemaphore(concurrency)
        self._resumes = 0.0  # by `clock`: nothing is sent before
        self._without_logprobs = False  # it was said that the server gives none
        self._stopped = threading.Event()

    def check(self) -> None:
        """Raises MetricError when nobody answers, the key is lacking or refused, or the model is not in the
        list of models, where there is one."""
        import openai

        variable = KEYS.get(self._hosted, "OPENAI_API_KEY")
        if self._hosted and not self._key:
            raise MetricError(f"'{self.address}' needs a key; set {variable}.")
        if self._hosted == "anthropic.com":  # its list of models takes other headers
            return
        try:
            reply = self._client.with_options(max_retries=0).models.with_raw_response.list()
            models = json.loads(reply.http_response.content)["data"]
            served = [self._cleared(str(item["id"])).removeprefix("models/") for item in models]
        except openai.APIConnectionError as error:
            raise MetricError(f"Nobody answers at '{self.address}' ({_cause(error)}).") from None
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise MetricError(
                f"'{self.address}' refuses the key (HTTP {error.status_code}); set {variable}."
            ) from None
        except (openai.APIStatusError, ValueError, KeyError, TypeError):
            return
        if served:
            choose(f"model of '{self.address}'", self.model.removeprefix("models/"), served)

    def facts(self) -> dict[str, Any]:
        """What is known of it that decides an answer: not where it is, for servers move. `adapted`, which a
        fingerprint leaves out, is known once the first question is answered."""
        more = {"detail": self.detail, "thinking_tokens": self._thinking, "adapted": dict(self.adapted)}
        return {"model": self.model, **self._options, **{key: one for key, one in more.items() if one}}

    def usage(self) -> dict[str, Any]:
        """What its work has taken so far, for the manifest: requests, of which `retries`, and the tokens that
        the server counted (`spending.tokens`); number of answers by version; `adapted`."""
        with self._counting:
            more = {"versions": dict(self._versions), "adapted": dict(self.adapted)}
            return {**self._usage, **{key: value for key, value in more.items() if value}}

    def _on_request(self, request: Any) -> None:
        """Waits as long as the server wants; counts the request."""
        while (left := self._resumes - clock()) > 0:
            self._go_on()
            self._stopped.wait(min(left, 0.2))
        if request.method == "POST":
            with self._counting:
                self._usage["requests"] += 1
                self._usage["retries"] += request.headers.get("x-stainless-retry-count", "0") != "0"

    def _on_response(self, response: Any) -> None:
        """Notes until when the server wants no request of anybody."""
        if response.status_code in RETRIED or response.status_code >= 500:
            wait = _retry_after(response.headers.get("retry-after", ""))
            if 0 < wait <= LONGEST_WAIT:
                self._resumes = max(self._resumes, clock() + wait)

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

        optional  Parts of the request that not every server takes. One that is refused by name is left out
                  from then on. Where a refusal names nothing, the request is sent without the first of them,
                  then without the first two, and so on.
        body      The rest of the request: max_tokens, temperature, ... Raises NoAnswer.
        """
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], **body}
        body |= self._options
        if "max_tokens" in body:
            body["max_tokens"] += self._thinking
        groups = [*({name: body.pop(name)} for name in DRAWING if name in body), *optional]
        dropped = 0
        with self._seats:
            while True:
                names = {key: self.adapted.get(key, key) for key in body}
                taken = [part for part in groups if not any(key in self.adapted for key in part)]
                spare = [part for part in taken if part in optional]
                sent = {names[key]: value for key, value in body.items()}
                for part in taken:
                    sent |= part if part not in spare[:dropped] else {}
                try:
                    said = self._read(self._send(sent), "logprobs" in sent)
                except NoAnswer as error:
                    if error.of_a_part and self._adapts(error, sent, taken):
                        dropped = 0
                    elif error.of_a_part and dropped < len(spare):
                        dropped += 1
                    else:
                        raise
                    continue
                self._adapt({key: "" for part in spare[:dropped] for key in part})
                return said

    def _adapts(self, error: NoAnswer, sent: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the request can be sent otherwise, without what the refusal names or under another name."""
        for name in (one for one in error.named if one in sent):
            part = next((one for one in parts if name in one), None)
            if part is None and name != "max_tokens":
                continue
            self._adapt(dict.fromkeys(part, "") if part else {name: "max_completion_tokens"})
            return True
        return False

    def _adapt(self, new: Mapping[str, str]) -> None:
        if not new.items() <= self.adapted.items():  # else another question has met it meanwhile
            how = " and ".join(f"{key} as {value}" if value else f"no {key}" for key, value in new.items())
            log.warning("%s does not take all parameters: it is sent %s from now on.", self.model, how)
            self.adapted |= new

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
        shown = [Picture(image, self.detail) for image in images]
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
        for attempt in range(self.retries + 1):
            left = self.retries - attempt
            client = self._client.with_options(max_retries=left) if attempt else self._client
            try:
                reply = client.chat.completions.with_raw_response.create(**body)
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
                    wait = _retry_after(error.response.headers.get("retry-after", ""))
                    if wait > LONGEST_WAIT:
                        why = f"HTTP {status}, and to wait {wait:.0f} s, longer than {LONGEST_WAIT:.0f}"
                        raise NoAnswer(f"the endpoint says {why}", SERVER, status=status) from None
                    if wait > 120 and left:  # the package has given up
                        with self._counting:
                            self._usage["retries"] += 1
                        continue
                    raise NoAnswer(f"{attempts}: HTTP {status}", SERVER, status=status) from None
                raise self._refusal(error) from None
        raise AssertionError("the last attempt is answered, or raises")

    def _refusal(self, error: Any) -> NoAnswer:
        """Why the server does not answer, in its own words, without the credentials that it may quote."""
        status = error.status_code
        text = credentials.QUOTED.sub(r"\1 ...", self._cleared(error.response.text, shortest=1))
        text = " ".join("".join(c if c.isprintable() else " " for c in text[:200]).split())
        if {str(error.code), str(error.type)} & {*CONTENT} or any(one in error.message for one in CONTENT):
            return NoAnswer(f"the endpoint withheld an answer: HTTP {status} {text}", WITHHELD,
                            silent=False, status=status)  # fmt: skip
        refused = f"the endpoint refused the question: HTTP {status} {text}"
        named = [*filter(None, [error.param]), *re.findall(r"['\"`](\w+)['\"`]", error.message)]
        return NoAnswer(refused, REFUSED, silent=status in UNUSABLE, status=status, named=named)

    def _read(self, reply: Any, likeliest: bool) -> Said:
        """The first choice of a reply. Raises NoAnswer."""
        cleared = self._cleared
        try:
            choice = reply["choices"][0]
            message = choice["message"]
            text = message.get("content") or ""
            entries = (choice.get("logprobs") or {}).get("content") or []
            thoughts = str(message.get("reasoning") or message.get("reasoning_content") or "")
            place = answer_place([str(entry.get("token", "")) for entry in entries], str(text), thoughts)
            likely = entries[place].get("top_logprobs") or () if entries and place is not None else ()
            first = [(cleared(str(one["token"])), float(one["logprob"])) for one in likely]
            used = spending.tokens(reply.get("usage"))
            tokens = (reply.get("usage") or {}).get("completion_tokens")
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            raise NoAnswer("the reply has no choices; this is not a chat-completions endpoint") from None
        if choice.get("finish_reason") == "content_filter":
            raise NoAnswer("the endpoint's content filter withheld the answer", WITHHELD, silent=False)
        if not text and message.get("refusal"):
            raise NoAnswer("the model refused to answer", WITHHELD, silent=False)
        if not isinstance(text, str):
            raise NoAnswer("the answer is not a text")
        finished, answer = choice.get("finish_reason") != "length", without_thoughts(text)
        thought = thoughts or used.get("reasoning_tokens")
        thinking = answer is None or bool(not finished and not answer.strip() and thought)
        # Half of a character that took two, as a model that is cut off may leave, is in no UTF-8 text.
        answer = cleared((answer or "").encode("utf-8", "replace").decode())
        server, model = (cleared(str(reply.get(key) or "")) for key in ("system_fingerprint", "model"))
        count = tokens if isinstance(tokens, int) else None
        said = Said(answer, finished, tuple(first), count, server, model, place != 0, thinking)
        if likeliest and not entries and not self._without_logprobs:
            self._without_logprobs = True
            log.warning("%s gives no log-probabilities: P(yes) and letters by probability lack.", self.model)
        self._note_version(said.version)
        return said

    def _note_version(self, version: str) -> None:
        with self._counting:
            known = list(self._versions)
            self._versions.update([version] if version else ())
        if version and known and version not in known:
            log.warning("%s answered as %s, and answers as %s now.", self.model, " and ".join(known), version)

    def _cleared(self, text: str, shortest: int = 8) -> str:
        """A text without the key and the credentials of this endpoint of at least `shortest` letters: in an
        answer, a password of a few letters is an ordinary word."""
        for secret in self._secrets:
            if len(secret) >= shortest:
                text = text.replace(secret, "...")
        return text


def _retry_after(header: str) -> float:
    """Seconds of a Retry-After, which may be a date; 0 for none."""
    try:
        return float(header)
    except ValueError:
        date = email.utils.parsedate_tz(header)
        return email.utils.mktime_tz(date) - time.time() if date else 0.0


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


def answer_place(tokens: Sequence[str], text: str, thoughts: str = "") -> int | None:
    """Which of the generated tokens begins the answer: 0 without thoughts, None where that cannot be told.

    text      As the server gives it, with thoughts up to </think> or without.
    thoughts  What the server gives apart from it.
    """
    whole = "".join(tokens)
    ends = [tag.end() for tag in THOUGHTS_END.finditer(whole)]
    if not thoughts and not ends and not THOUGHTS_END.search(text) and not THOUGHTS.match(whole or text):
        return 0
    *heads, answer = THOUGHTS_END.split(text)
    thoughts, answer = THOUGHTS.sub("", thoughts or "".join(heads), count=1).strip(), answer.strip()
    if ends:
        begin = ends[-1]
    else:
        before = whole.rstrip().removesuffix(answer)
        there = answer and whole.rstrip().endswith(answer) and not THOUGHTS.match(answer)
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
