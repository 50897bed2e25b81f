"""Asks chat models behind an OpenAI-compatible endpoint: vLLM, SGLang, Ollama, hosted services.

A reference is `openai:URL#MODEL`, such as `openai:http://localhost:8000/v1#Qwen/Qwen2.5-VL-7B-Instruct`.
`connect` opens one. The API key comes from the environment (`service.KEYS`) and appears in requests only.
"""

from __future__ import annotations

import base64
import inspect
import logging
import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nein.loading.digests import Json
from nein.loading.errors import UnavailableError, choose
from nein.loading.references import expand_user, hide_credentials, is_served, parse_reference
from nein.loading.service import SERVER, WITHHELD, NoAnswer, Service, count_tokens, encode_png
from nein.metrics.base import MetricError
from nein.metrics.chat import THINKING, Chat, Completion, Message, Sampling, Words, strip_thoughts

log = logging.getLogger(__name__)

#: Parameters that request log-probabilities of the 20 likeliest tokens.
LOGPROBS: Mapping[str, Any] = {"logprobs": True, "top_logprobs": 20}


class SilentError(UnavailableError):
    """The server no longer answers. Unlike the failure of one question, this ends the call."""


class Endpoint(Chat):
    """Chat completions of one model, one request per message.

    A parameter that the model refuses is renamed or omitted in later requests (`adapted`). Probabilities are
    those of the 20 likeliest first tokens. Raises MetricError for values out of range."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        reasoning_effort: str | None = None,  # "none", "low", ...: how much the model thinks
        extra_body: Mapping[str, Any] | None = None,  # further fields of every request
        detail: str = "",  # "low", "high", ...: resolution at which images are read
        thinking_tokens: int = 0,  # allowed on top of an answer's limit
        **service: Any,  # options of `Service`
    ) -> None:
        if thinking_tokens < 0:
            raise MetricError(f"thinking_tokens is {thinking_tokens}; it must be at least 0.")
        options = {"reasoning_effort": reasoning_effort, "extra_body": extra_body}
        self._options: dict[str, Any] = {name: value for name, value in options.items() if value}
        self.service = Service(url, model, **service)
        self.model, self.concurrent = model, self.service.concurrency
        self.detail, self._thinking = detail, thinking_tokens
        self.adapted: dict[str, str] = {}  # refused parameter -> its other name; "": it is omitted
        self._lock = threading.Lock()  # for the counts below: threads answer at once
        self._versions: Counter[str] = Counter()  # model version -> number of answers
        self._silent = 0  # unanswered requests in a row
        self._silence: SilentError | None = None  # set after too many; then every call raises it
        self._has_warned = False  # about missing log-probabilities

    def describe(self) -> Json:
        """Describe model and settings; fingerprints ignore `reference` (the address) and `adapted`."""
        settings = {"detail": self.detail, "thinking_tokens": self._thinking, "adapted": dict(self.adapted)}
        model = {"class": type(self).__name__, "reference": self.service.address, "model": self.model}
        return {**model, **self._options, **{key: value for key, value in settings.items() if value}}

    def usage(self) -> Json:
        """Return the usage of the `Service`, the number of answers by model version, and `adapted`."""
        facts = {"versions": dict(self._versions), "adapted": dict(self.adapted)}
        return {**self.service.usage(), **{key: value for key, value in facts.items() if value}}

    def stop(self) -> None:
        self.service.stop()

    def stream(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        images = {id(image): image for message in messages for image in message.images}
        encoded = {key: self._encode_image(image) for key, image in images.items()}  # each once

        def answer(index: int) -> Completion:
            self._raise_silence()
            try:
                completion = self._complete(messages[index], encoded, sampling)
            except NoAnswer as error:
                completion = Completion(error=error)
            with self._lock:
                self._silent = self._silent + 1 if getattr(completion.error, "silent", False) else 0
                # Two rounds of all requests in flight and a few more: this is no passing failure.
                if self._silent >= 2 * self.concurrent + 4:
                    self._silence = self._silence or SilentError(
                        f"The model left {self._silent} questions in a row unanswered ({completion.error}); "
                        "check that it runs, then rerun the command: answers so far are kept."
                    )
            self._raise_silence()
            return completion

        return self.service.pace.map(answer, range(len(messages)))

    def _raise_silence(self) -> None:
        if self._silence is not None:
            raise self._silence

    def _encode_image(self, image: np.ndarray) -> dict[str, Any]:
        """Message part for an image (H, W, 3) uint8: a lossless PNG."""
        url = f"data:image/png;base64,{base64.b64encode(encode_png(image)).decode()}"
        detail = {"detail": self.detail} if self.detail else {}
        return {"type": "image_url", "image_url": {"url": url, **detail}}

    def _complete(self, message: Message, images: Mapping[int, Any], sampling: Sampling) -> Completion:
        """Send a message; when the server refuses a parameter, adapt and send again.

        A parameter that the refusal names is omitted in later requests too. If it names none, the request is
        sent without the first of the optional parts, then without the first two, and so on."""
        # The request: fields that it always has, and parts: parameters that are sent or omitted together.
        body = self._write_body(message, images, sampling)
        needed: list[Mapping[str, Any]] = [{"temperature": sampling.temperature}]
        if sampling.top_p is not None:
            needed.append({"top_p": sampling.top_p})
        optional: list[Mapping[str, Any]] = []  # in the order of omission
        if sampling.form is not None:
            optional.append({"response_format": {"type": "json_schema", "json_schema": sampling.form}})
        if sampling.top is not None:
            optional.append(LOGPROBS)
        if message.seed is not None:
            optional.append({"seed": message.seed % 2**31})  # the smallest range among servers

        omitted = 0  # number of optional parts that are omitted on trial
        while True:  # ends: every refusal omits one more part, or is raised
            parts = [part for part in (*needed, *optional) if not self.adapted.keys() & part.keys()]
            droppable = [part for part in parts if part in optional]
            on_trial = droppable[:omitted]
            request = {self.adapted.get(key, key): value for key, value in body.items()}
            for part in parts:
                if part not in on_trial:
                    request |= part
            request |= self._options.get("extra_body", {})
            try:
                reply = self.service.send("/chat/completions", request)
                completion = self._read(reply, sampling.top if "logprobs" in request else None)
            except NoAnswer as error:
                if not error.of_a_part:
                    raise
                changes = {"max_tokens": {"max_tokens": "max_completion_tokens"}}  # refused -> for `adapted`
                for part in parts:
                    for key in part:
                        changes[key] = dict.fromkeys(part, "")
                named = [key for key in error.named_parts if key in request and key in changes]
                if named:
                    self._adapt(changes[named[0]])
                    omitted = 0
                elif omitted < len(droppable):
                    omitted += 1
                else:
                    raise
                continue
            self._adapt({key: "" for part in on_trial for key in part})
            return completion

    def _write_body(self, message: Message, images: Mapping[int, Any], sampling: Sampling) -> Json:
        """Write the fields that every request has. images: id of an image -> its encoded form."""
        content: Any = []
        for item in message.parts:
            content.append({"type": "text", "text": item} if isinstance(item, str) else images[id(item)])
        if len(content) == 1 and not message.images:  # text alone: a plain string
            content = message.parts[0]
        body: Json = {"model": self.model, "messages": [{"role": "user", "content": content}]}
        body["max_tokens"] = sampling.max_tokens + self._thinking
        return body | {key: value for key, value in self._options.items() if key != "extra_body"}

    def _adapt(self, new: Mapping[str, str]) -> None:
        """Omit or rename parameters in later requests (new: as `adapted`); warn once."""
        if not new.items() <= self.adapted.items():  # another thread may have been first
            changes = ", ".join(f"{key} as {value}" if value else f"no {key}" for key, value in new.items())
            log.warning("%s refuses some parameters; from now on it gets %s.", self.model, changes)
            self.adapted |= new

    def _read(self, reply: Any, top: Words | None) -> Completion:
        """Read a reply in OpenAI's format; top: words whose probabilities were requested. Raises NoAnswer."""
        # Fields of the reply.
        try:
            choice = reply["choices"][0]
            message = choice["message"]
            text = message.get("content") or ""
            finish = choice.get("finish_reason")
            thoughts = str(message.get("reasoning") or message.get("reasoning_content") or "")
            answer = strip_thoughts(text)
            # Likeliest first tokens; after thoughts these are not the answer's.
            first: list[tuple[str, Any]] = []  # (token, log-probability)
            entries = (choice.get("logprobs") or {}).get("content") or []
            if entries and not thoughts and answer == text:
                candidates = entries[0].get("top_logprobs") or []
                first = [(str(candidate["token"]), candidate["logprob"]) for candidate in candidates]
            used = count_tokens(reply.get("usage"))
            count = (reply.get("usage") or {}).get("completion_tokens")
            version = " ".join(str(reply.get(key) or "") for key in ("model", "system_fingerprint")).strip()
            failure = reply.get("error") or choice.get("error")
            if not failure and finish == "error":
                failure = "finish_reason: error"
        except (KeyError, IndexError, TypeError, AttributeError):
            why = "the reply has no choices; the URL is not a chat-completions endpoint"
            raise NoAnswer(f"{why}: {self.service.quote(str(reply))}") from None

        # Refusals and failures, with HTTP status 200.
        if failure:
            raise NoAnswer(f"the reply is an error: {self.service.quote(str(failure))}", SERVER)
        if finish == "content_filter":
            raise NoAnswer("the endpoint's content filter withheld the answer", WITHHELD)
        if not text and message.get("refusal"):
            raise NoAnswer("the model refused to answer", WITHHELD)
        if not text and message.get("tool_calls"):
            raise NoAnswer("the model called a tool instead of answering")
        if version:
            with self._lock:
                self._versions[version] += 1

        # Answer without thoughts.
        error = None
        finished = finish != "length"
        has_thought = thoughts or used.get("reasoning_tokens")
        if answer is None or (has_thought and not finished and not answer.strip()):
            advice = "disable thinking, or allow more thinking tokens"
            error = NoAnswer(f"the token limit ended within the model's thoughts; {advice}", THINKING)
        # A truncated answer can end with half a surrogate pair, which UTF-8 cannot store.
        answer = self.service.hide_key((answer or "").encode("utf-8", "replace").decode()).strip()

        # Probabilities. A logarithm is at most 0, apart from rounding; NaN fails the comparison.
        is_valid = all(isinstance(value, (int, float)) and value < 0.01 for _, value in first)
        if top is not None and not (is_valid and entries) and not self._has_warned:
            self._has_warned = True
            problem = "no log-probabilities" if is_valid else "invalid log-probabilities"
            log.warning("%s gives %s: P(yes) and letters by probability are missing.", self.model, problem)
        probabilities = _sum_by_word(first, top) if top is not None and first and is_valid else None
        count = count if isinstance(count, int) else len(answer.split())
        return Completion(answer, probabilities, count, finished, version, used, error)


def _sum_by_word(first: Sequence[tuple[str, float]], top: Words) -> dict[str, float | None]:
    """Word -> probability (or logarithm; None: not listed), from (token, log-probability) of first tokens."""
    total = dict.fromkeys(top.words, 0.0)
    for token, logprob in first:
        word = token.strip().lower() if top.any_case else token.strip()
        if word in total:
            total[word] += math.exp(logprob)
    if top.logs:
        return {word: math.log(p) if p > 0 else None for word, p in total.items()}
    return {word: min(1.0, p) for word, p in total.items()}


# --- references ---------------------------------------------------------------------------------------------
def split_endpoint(reference: str) -> tuple[str, str]:
    """Split `openai:URL#MODEL` into (URL, model). Raises MetricError."""
    parsed = parse_reference(reference)
    if parsed.kind != "served" or not parsed.url or not parsed.name:
        raise MetricError(
            f"'{hide_credentials(reference)}' is not an endpoint; expected openai:URL#MODEL, such as "
            "openai:http://localhost:8000/v1#Qwen/Qwen2.5-VL-7B-Instruct."
        )
    return parsed.url, parsed.name


def check_chat(reference: str) -> None:
    """Check the reference of a served or local image-text model, offline. Raises MetricError."""
    if is_served(reference):
        split_endpoint(reference)
    else:
        from nein.metrics.loading import check_folder

        check_folder(reference and str(expand_user(reference)))


def check_options(reference: str, names: Iterable[str]) -> None:
    """Raise MetricError for options that the model does not have; a local model has only `device_map`."""
    parameters = [*inspect.signature(Endpoint).parameters, *inspect.signature(Service).parameters]
    hidden = ("url", "model", "key", "spending", "service")  # parameters that are no options of a user
    allowed = [name for name in parameters if name not in hidden]
    for name in names:
        if name == "device_map" and ":" not in reference:
            continue
        if not is_served(reference):
            raise MetricError(f"'{reference}' is not an endpoint; omit the option '{name}'.")
        choose(f"option of '{reference}'", name, allowed)


def connect(reference: str, *, device: str = "", dtype: str = "", **options: Any) -> Endpoint:
    """Open `openai:URL#MODEL`, checked with a request; device and dtype are ignored. Raises MetricError."""
    url, model = split_endpoint(reference)
    check_options(reference, [name for name in options if name != "spending"])
    endpoint = Endpoint(url, model, **options)
    endpoint.service.check()
    return endpoint
