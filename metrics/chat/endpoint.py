"""A model behind an OpenAI-compatible endpoint: vLLM, SGLang, Ollama, hosted services.

`openai:URL#MODEL` names it, for example `openai:http://localhost:8000/v1#Qwen/Qwen2.5-VL-7B-Instruct`. The
key (of the environment, `KEYS`) goes nowhere but into the request.
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
from nein.loading.references import expand_user, is_served, parse_reference, without_credentials
from nein.loading.service import SERVER, WITHHELD, NoAnswer, Service, png, tokens
from nein.metrics.base import THOUGHTS, THOUGHTS_END, MetricError, without_thoughts
from nein.metrics.chat import THINKING, Chat, Completion, Message, Sampling, Words

log = logging.getLogger(__name__)

#: The 20 likeliest first tokens, where a server gives log-probabilities.
LOGPROBS: Mapping[str, Any] = {"logprobs": True, "top_logprobs": 20}
#: What decides an answer, and not only how it is sent.
OPTIONS = ("reasoning_effort", "extra_body", "detail", "thinking_tokens")


class SilentError(UnavailableError):
    """Nobody answers: what isolates a failing question lets this through."""


class Endpoint(Chat):
    """Chat completions of one model; every message is a request. more: see `Service`.

    reasoning_effort, extra_body, detail
                 Sent with every request, and described: how much the model thinks ("none", "low", ...),
                 further fields, how closely it looks at images ("low", "high", ...).
    thinking_tokens  That many tokens are allowed on top of an answer's limit; described, too.

    A parameter that the model refuses is sent under its other name, or left out, from then on (`adapted`).
    After `2 * concurrency + 4` requests in a row without an answer every call raises SilentError.
    Probabilities are those among the 20 likeliest first tokens. Raises MetricError for values out of range.
    """

    def __init__(
        self, url: str, model: str, *, detail: str = "", thinking_tokens: int = 0, **more: Any
    ) -> None:
        if thinking_tokens < 0:
            raise MetricError(f"thinking_tokens is {thinking_tokens}; it must be at least 0.")
        options = {name: more.pop(name, None) for name in OPTIONS[:2]}
        self._options: dict[str, Any] = {name: value for name, value in options.items() if value}
        self.service = Service(url, model, **more)
        self.model, self.concurrent = model, self.service.concurrency
        self.detail, self._thinking = detail, thinking_tokens
        #: Parameter -> the name that the model takes, or "" where it is left out.
        self.adapted: dict[str, str] = {}
        self._counting = threading.Lock()
        self._versions: Counter[str] = Counter()
        self._without_logprobs = False  # it was said that the server gives none
        self._silent = 0  # requests in a row without an answer
        self._end: SilentError | None = None

    def describe(self) -> Json:
        """`reference`, where it is, and `adapted`, known once the first question is answered, are left out of
        fingerprints."""
        more = {"detail": self.detail, "thinking_tokens": self._thinking, "adapted": dict(self.adapted)}
        about = {"class": type(self).__name__, "reference": self.service.address, "model": self.model}
        return {**about, **self._options, **{key: value for key, value in more.items() if value}}

    def usage(self) -> Json:
        """See `Service`; also the number of answers by version, and `adapted`."""
        more = {"versions": dict(self._versions), "adapted": dict(self.adapted)}
        return {**self.service.usage(), **{key: value for key, value in more.items() if value}}

    def stop(self) -> None:
        self.service.stop()

    def stream(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        images = {id(image): image for message in messages for image in message.images}
        parts = {key: self._image_part(image) for key, image in images.items()}  # each is encoded once

        def answer(index: int) -> Completion:
            self._raise_silence()
            try:
                completion = self._chat(messages[index], parts, sampling)
            except NoAnswer as error:
                completion = Completion(error=error)
            with self._counting:
                self._silent = self._silent + 1 if getattr(completion.error, "silent", False) else 0
                if self._silent >= 2 * self.concurrent + 4:
                    self._end = self._end or SilentError(
                        f"The model left {self._silent} questions in a row without an answer "
                        f"({completion.error}); see that it runs, then give the same command again to go on: "
                        "answers so far are kept."
                    )
            self._raise_silence()
            return completion

        return self.service.pace.map(answer, range(len(messages)))

    def _raise_silence(self) -> None:
        if self._end is not None:
            raise self._end

    def _image_part(self, image: np.ndarray) -> dict[str, Any]:
        """An image, (H, W, 3) uint8, among several parts of a question: a lossless PNG."""
        url = f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"
        more = {"detail": self.detail} if self.detail else {}
        return {"type": "image_url", "image_url": {"url": url, **more}}

    def _chat(self, message: Message, images: Mapping[int, Any], sampling: Sampling) -> Completion:
        """Sends a message without what the model is known to refuse. A part of the request that not every
        server takes and that is refused by name is left out from then on. Where a refusal names nothing, the
        request is sent without the first of `optional`, then without the first two, and so on."""
        content: Any = [
            {"type": "text", "text": p} if isinstance(p, str) else images[id(p)] for p in message.parts
        ]
        if len(content) == 1 and not message.images:
            content = message.parts[0]
        body: dict[str, Any] = {"model": self.model, "messages": [{"role": "user", "content": content}]}
        body["max_tokens"] = sampling.max_tokens + self._thinking
        body |= {key: value for key, value in self._options.items() if key != "extra_body"}
        optional: list[Mapping[str, Any]] = []
        if sampling.form is not None:
            optional.append({"response_format": {"type": "json_schema", "json_schema": sampling.form}})
        if sampling.top is not None:
            optional.append(LOGPROBS)
        if message.seed is not None:
            optional.append({"seed": message.seed % 2**31})  # servers differ in how wide a seed may be
        drawing = [{"temperature": sampling.temperature}]
        drawing += [{"top_p": sampling.top_p}] if sampling.top_p is not None else []
        dropped = 0
        while True:
            taken = [part for part in (*drawing, *optional) if not self.adapted.keys() & part.keys()]
            spare = [part for part in taken if part in optional]
            sent = {self.adapted.get(key, key): value for key, value in body.items()}
            for part in taken:
                sent |= part if part not in spare[:dropped] else {}
            sent |= self._options.get("extra_body", {})
            try:
                reply = self.service.send("/chat/completions", sent)
                completion = self._read(reply, sampling.top if "logprobs" in sent else None)
            except NoAnswer as error:
                if not error.of_a_part:
                    raise
                parts = {key: part for part in reversed(taken) for key in part}
                named = [key for key in error.named if key in sent and key in {"max_tokens", *parts}]
                if named:
                    other = {"max_tokens": "max_completion_tokens"}
                    self._adapt(dict.fromkeys(parts[named[0]], "") if named[0] in parts else other)
                    dropped = 0
                elif (dropped := dropped + 1) > len(spare):
                    raise
                continue
            self._adapt({key: "" for part in spare[:dropped] for key in part})
            return completion

    def _adapt(self, new: Mapping[str, str]) -> None:
        if not new.items() <= self.adapted.items():  # else another question has met it meanwhile
            how = " and ".join(f"{key} as {value}" if value else f"no {key}" for key, value in new.items())
            log.warning("%s does not take all parameters: it is sent %s from now on.", self.model, how)
            self.adapted |= new

    def _read(self, reply: Any, top: Words | None) -> Completion:
        try:
            choice = reply["choices"][0]
            message = choice["message"]
            text, why = message.get("content") or "", choice.get("finish_reason")
            entries = (choice.get("logprobs") or {}).get("content") or []
            thoughts = str(message.get("reasoning") or message.get("reasoning_content") or "")
            # Behind thoughts nobody says which token begins the answer.
            thinks = thoughts or THOUGHTS.match(text) or THOUGHTS_END.search(text)
            likely = entries[0].get("top_logprobs") or [] if entries and not thinks else []
            first = [(str(candidate["token"]), candidate["logprob"]) for candidate in likely]
            used = tokens(reply.get("usage"))
            count = (reply.get("usage") or {}).get("completion_tokens")
            version = " ".join(str(reply.get(key) or "") for key in ("model", "system_fingerprint")).strip()
            failed = reply.get("error") or choice.get("error") or (why == "error" and "finish_reason: error")
        except (KeyError, IndexError, TypeError, AttributeError):
            why = "the reply has no choices; this is not a chat-completions endpoint"
            raise NoAnswer(f"{why}: {self.service.quote(str(reply))}") from None
        if failed:  # wrapped in a reply of status 200
            raise NoAnswer(f"the reply holds an error: {self.service.quote(str(failed))}", SERVER)
        if why == "content_filter":
            raise NoAnswer("the endpoint's content filter withheld the answer", WITHHELD)
        if not text and message.get("refusal"):
            raise NoAnswer("the model refused to answer", WITHHELD)
        if not text and message.get("tool_calls"):
            raise NoAnswer("the model calls a tool and gives no answer")
        with self._counting:
            self._versions.update([version] if version else ())
        finished, answer, error = why != "length", without_thoughts(text), None
        thought = thoughts or used.get("reasoning_tokens")
        if answer is None or (thought and not finished and not answer.strip()):
            cut = "the limit of tokens ended within the model's thoughts; switch thinking off, or allow more "
            error = NoAnswer(f"{cut}thinking tokens", THINKING)
        # Half of a character that took two, as a model that is cut off may leave, is in no UTF-8 text.
        answer = self.service.hide_key((answer or "").encode("utf-8", "replace").decode()).strip()
        odd = not all(isinstance(value, (int, float)) and value < 0.01 for _, value in first)  # NaN is not
        if top is not None and (odd or not entries) and not self._without_logprobs:
            self._without_logprobs = True
            what = "log-probabilities that are no numbers" if odd else "no log-probabilities"
            log.warning("%s gives %s: P(yes) and letters by probability lack.", self.model, what)
        probabilities = None if odd or not first or top is None else _likely(first, top)
        count = count if isinstance(count, int) else len(answer.split())
        return Completion(answer, probabilities, count, finished, version, used, error)


def _likely(first: Sequence[tuple[str, float]], top: Words) -> dict[str, float | None]:
    """Probability per word, from the log-probabilities of the likeliest first tokens."""
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
    """(URL, model) of `openai:URL#MODEL`. Raises MetricError for anything else."""
    given = parse_reference(reference)
    if given.kind != "served" or not given.url or not given.name:
        raise MetricError(
            f"'{without_credentials(reference)}' is not an endpoint; expected openai:URL#MODEL, for "
            "example openai:http://localhost:8000/v1#Qwen/Qwen2.5-VL-7B-Instruct."
        )
    return given.url, given.name


def check(reference: str) -> None:
    """Checks the reference of an image-text model; loads nothing, asks nobody. Raises MetricError."""
    if is_served(reference):
        split_endpoint(reference)
    else:
        from nein.metrics.loading import check_folder

        check_folder(reference and str(expand_user(reference)))


def check_options(reference: str, names: Iterable[str]) -> None:
    """Raises MetricError unless a model is behind an endpoint, which has options of these names; a local one
    has `device_map`."""
    hidden = ("url", "model", "key", "spending")
    known = [*OPTIONS, *(name for name in inspect.signature(Service).parameters if name not in hidden)]
    for name in names:
        if name == "device_map" and ":" not in reference:
            continue
        if not is_served(reference):
            raise MetricError(f"'{reference}' is behind no endpoint; leave its option '{name}' out.")
        choose(f"option of '{reference}'", name, known)


def connect(reference: str, *, device: str = "", dtype: str = "", **sending: Any) -> Endpoint:
    """What answers behind `openai:URL#MODEL`; device, dtype: of local models; sending: options of `Endpoint`.
    Raises MetricError where the model does not answer."""
    url, model = split_endpoint(reference)
    check_options(reference, [name for name in sending if name != "spending"])
    connected = Endpoint(url, model, **sending)
    connected.service.check()
    return connected
