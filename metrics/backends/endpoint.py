"""A model behind an OpenAI-compatible endpoint: vLLM, SGLang, Ollama, hosted services.

`openai:URL#MODEL` names it, for example `openai:http://localhost:8000/v1#Qwen/Qwen2.5-VL-7B-Instruct`;
The key (of the environment, `KEYS`) goes nowhere but into the request.
"""

from __future__ import annotations

import base64
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nein.loading import credentials, spending
from nein.loading.references import parse_reference
from nein.loading.service import WITHHELD, NoAnswer, Service, png
from nein.metrics.base import THOUGHTS, THOUGHTS_END, MetricError, without_thoughts

log = logging.getLogger(__name__)

#: A further kind of failure: the limit of tokens ended within the model's thoughts.
THINKING = "still thinking"
#: The 20 likeliest first tokens, where a server gives log-probabilities.
LOGPROBS: Mapping[str, Any] = {"logprobs": True, "top_logprobs": 20}
#: What every request has and not every model takes.
DRAWING = ("temperature", "top_p")


@dataclass(frozen=True)
class Completion:
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

    def answered(self) -> Completion:
        """This reply. Raises NoAnswer where it ends within the model's thoughts."""
        if self.thinking:
            raise NoAnswer(
                "the limit of tokens ended within the model's thoughts; switch thinking off, or allow more "
                "thinking tokens",
                THINKING,
            )
        return self


@dataclass(frozen=True)
class Message:
    """A question about one picture: the words behind it, and any before it."""

    after: str
    before: str = ""

    def around(self, picture: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [*([words(self.before)] if self.before else []), picture, words(self.after)]


class Endpoint(Service):
    """Chat completions of one model; threads may share one. sending: see `Service`.

    reasoning_effort, extra_body, detail
                 Sent with every request, and part of `facts`: how much the model thinks ("none", "low", ...),
                 further fields, how closely it looks at pictures ("low", "high", ...).
    thinking_tokens  That many tokens are allowed on top of an answer's limit; part of `facts`, too.

    A parameter that the model refuses is sent under its other name, or left out, from then on (`adapted`).
    Raises MetricError for values out of range.
    """

    def __init__(
        self, url: str, model: str, *, reasoning_effort: str = "",
        extra_body: Mapping[str, Any] | None = None, detail: str = "", thinking_tokens: int = 0,
        **sending: Any,
    ) -> None:  # fmt: skip
        super().__init__(url, model, **sending)
        if thinking_tokens < 0:
            raise MetricError(f"thinking_tokens is {thinking_tokens}; it must be at least 0.")
        self.detail, self._thinking = detail, thinking_tokens
        options = {"reasoning_effort": reasoning_effort, "extra_body": dict(extra_body or {})}
        self._options: dict[str, Any] = {name: value for name, value in options.items() if value}
        #: Parameter -> the name that the model takes, or "" where it is left out.
        self.adapted: dict[str, str] = {}
        self._versions: Counter[str] = Counter()
        self._without_logprobs = False  # it was said that the server gives none

    def facts(self) -> dict[str, Any]:
        """What is known of it that decides an answer: not where it is, for servers move. `adapted`, which a
        fingerprint leaves out, is known once the first question is answered."""
        more = {"detail": self.detail, "thinking_tokens": self._thinking, "adapted": dict(self.adapted)}
        return {"model": self.model, **self._options, **{key: value for key, value in more.items() if value}}

    def usage(self) -> dict[str, Any]:
        """See `Service`; also the number of answers by version, and `adapted`."""
        more = {"versions": dict(self._versions), "adapted": dict(self.adapted)}
        return {**super().usage(), **{key: value for key, value in more.items() if value}}

    def chat(
        self,
        content: str | Sequence[Mapping[str, Any]],
        optional: Sequence[Mapping[str, Any]] = (),
        **body: Any,
    ) -> Completion:
        """What the model says to `content`, words or a list of `words` and `picture`.

        optional  Parts of the request that not every server takes. One that is refused by name is left out
                  from then on. Where a refusal names nothing, the request is sent without the first of them,
                  then without the first two, and so on.
        body      The rest of the request: max_tokens, temperature, ... Raises NoAnswer.
        """
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], **body}
        body |= {key: value for key, value in self._options.items() if key != "extra_body"}
        if "max_tokens" in body:
            body["max_tokens"] += self._thinking
        groups = [*({name: body.pop(name)} for name in DRAWING if name in body), *optional]
        dropped = 0
        while True:
            names = {key: self.adapted.get(key, key) for key in body}
            taken = [part for part in groups if not any(key in self.adapted for key in part)]
            spare = [part for part in taken if part in optional]
            sent = {names[key]: value for key, value in body.items()}
            for part in taken:
                sent |= part if part not in spare[:dropped] else {}
            sent |= self._options.get("extra_body", {})
            try:
                completion = self._read(self.send("/chat/completions", sent), "logprobs" in sent)
            except NoAnswer as error:
                if error.of_a_part and self._adapts(error, sent, taken):
                    dropped = 0
                elif error.of_a_part and dropped < len(spare):
                    dropped += 1
                else:
                    raise
                continue
            self._adapt({key: "" for part in spare[:dropped] for key in part})
            return completion

    def _adapts(self, error: NoAnswer, sent: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the request can be sent otherwise, without what the refusal names or under another name."""
        for name in (key for key in error.named if key in sent):
            part = next((group for group in parts if name in group), None)
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
        self, images: Sequence[np.ndarray], asked: Sequence[Sequence[Message]], *, max_tokens: int,
        likeliest: bool = True, failed: Callable[[NoAnswer], Any] | None = None,
    ) -> list[list[Any]]:  # fmt: skip
        """Answers to `asked[i]` about `images[i]`, (H, W, 3) uint8: a `Completion` each, in the same shape.

        Every question is a request of its own, at temperature 0; first questions of all pictures go first.

        likeliest  The log-probabilities of the first token are asked for, too.
        failed     Gives what stands for a question without an answer; None: that raises NoAnswer.
        """
        pictures = [picture(image, self.detail) for image in images]
        longest = max(map(len, asked), default=0)
        places = [(i, k) for k in range(longest) for i, row in enumerate(asked) if k < len(row)]

        def said(place: tuple[int, int]) -> Any:
            i, k = place
            try:
                return self.about(pictures[i], asked[i][k], max_tokens, likeliest)
            except NoAnswer as error:
                if failed is None:
                    raise
                return failed(error)

        answers = dict(self.each(said, places))
        return [[answers[i, k] for k in range(len(row))] for i, row in enumerate(asked)]

    def about(
        self, picture: Mapping[str, Any], turn: Message, max_tokens: int, likeliest: bool
    ) -> Completion:
        optional = [LOGPROBS] if likeliest else []
        return self.chat(turn.around(picture), optional, max_tokens=max_tokens, temperature=0)

    def _read(self, reply: Any, likeliest: bool) -> Completion:
        cleared = self.cleared
        try:
            choice = reply["choices"][0]
            message = choice["message"]
            text = message.get("content") or ""
            entries = (choice.get("logprobs") or {}).get("content") or []
            thoughts = str(message.get("reasoning") or message.get("reasoning_content") or "")
            index = answer_place([str(entry.get("token", "")) for entry in entries], str(text), thoughts)
            likely = entries[index].get("top_logprobs") or () if entries and index is not None else ()
            first = [(cleared(str(candidate.get("token"))), candidate.get("logprob")) for candidate in likely]
            used = spending.tokens(reply.get("usage"))
            tokens = (reply.get("usage") or {}).get("completion_tokens")
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            why = "the reply has no choices; this is not a chat-completions endpoint"
            raise NoAnswer(why) from None
        if choice.get("finish_reason") == "content_filter":
            raise NoAnswer("the endpoint's content filter withheld the answer", WITHHELD)
        if not text and message.get("refusal"):
            raise NoAnswer("the model refused to answer", WITHHELD)
        if not text and message.get("tool_calls"):
            raise NoAnswer("the model calls a tool and gives no answer")
        if not isinstance(text, str):
            raise NoAnswer("the answer is not a text")
        finished, answer = choice.get("finish_reason") != "length", without_thoughts(text)
        thought = thoughts or used.get("reasoning_tokens")
        thinking = answer is None or bool(not finished and not answer.strip() and thought)
        # Half of a character that took two, as a model that is cut off may leave, is in no UTF-8 text.
        answer = cleared((answer or "").encode("utf-8", "replace").decode())
        server, model = (cleared(str(reply.get(key) or "")) for key in ("system_fingerprint", "model"))
        count = tokens if isinstance(tokens, int) else None
        odd = bool(first) and not _are_logprobs([value for _, value in first])
        first = [] if odd else first
        completion = Completion(answer, finished, tuple(first), count, server, model, index != 0, thinking)
        if likeliest and (odd or not entries) and not self._without_logprobs:
            self._without_logprobs = True
            what = "log-probabilities that are no numbers" if odd else "no log-probabilities"
            log.warning("%s gives %s: P(yes) and letters by probability lack.", self.model, what)
        version = completion.version
        with self._counting:
            known = list(self._versions)
            self._versions.update([version] if version else ())
        if version and known and version not in known:
            log.warning("%s answered as %s, and answers as %s now.", self.model, " and ".join(known), version)
        return completion


def _are_logprobs(values: Sequence[Any]) -> bool:
    """Whether all are numbers up to 0 (rounding apart), and the likeliest token is not impossible."""
    numbers = all(
        isinstance(value, (int, float)) and value < 0.01 for value in values
    )  # NaN is below nothing
    return numbers and max(values) > -math.inf


def picture(image: np.ndarray, detail: str = "") -> dict[str, Any]:
    """A picture, (H, W, 3) uint8, among several parts of a question: a lossless PNG."""
    data = base64.b64encode(png(image)).decode()
    more = {"detail": detail} if detail else {}
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}", **more}}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def split_endpoint(reference: str) -> tuple[str, str]:
    """(URL, model) of `openai:URL#MODEL`. Raises MetricError for anything else."""
    given = parse_reference(reference)
    if given.kind != "served" or not given.url or not given.name:
        raise MetricError(
            f"'{credentials.without(reference)}' is not an endpoint; expected openai:URL#MODEL, for "
            "example openai:http://localhost:8000/v1#Qwen/Qwen2.5-VL-7B-Instruct."
        )
    return given.url, given.name


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
        found = answer and whole.rstrip().endswith(answer) and not THOUGHTS.match(answer)
        if not found or (before.strip() and thoughts not in before):
            return None
        begin = len(before.rstrip())
    start = 0
    for index, token in enumerate(tokens):
        start += len(token)
        if whole[begin:start].strip():
            return index if start - len(token) >= begin else None  # else it ends the thoughts, too
    return None
