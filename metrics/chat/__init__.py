"""Interface of chat models: a `Chat` completes `Message`s under a `Sampling` and returns `Completion`s.

`local` runs a model of transformers, `endpoint` asks an OpenAI-compatible server, `asking` asks both about
images. Judges, multiple choice, EditScore and language models all use a `Chat`; `nein.models.cached` caches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nein.loading.digests import Json

if TYPE_CHECKING:
    import numpy as np

#: `NoAnswer.kind` of an answer whose token limit ended within the model's thoughts.
THINKING = "still thinking"


@dataclass(frozen=True)
class Message:
    """One user turn."""

    parts: tuple[str | np.ndarray, ...]  # texts and images (H, W, 3) uint8, in order
    seed: int | None = None  # of a sampled answer; None: no seed is sent (a local model takes 0)

    @property
    def images(self) -> list[np.ndarray]:
        return [part for part in self.parts if not isinstance(part, str)]


@dataclass(frozen=True)
class Words:
    """Words for which a chat returns the probability that the answer begins with them."""

    words: tuple[str, ...]
    any_case: bool = False  # whether "Yes" and "YES" count as "yes"
    logs: bool = False  # whether natural logarithms are returned instead


YES_NO = Words(("yes", "no"), any_case=True)


@dataclass(frozen=True)
class Sampling:
    """Options of decoding."""

    max_tokens: int  # of an answer, without thoughts
    temperature: float = 0.0  # 0: greedy
    top_p: float | None = None  # None: the server's default; 1 for a local model
    top_k: int = 0  # of a local model; 0: all tokens
    top: Words | None = None  # words whose probabilities are requested; None: none are
    form: Mapping[str, Any] | None = None  # JSON schema of the answer, with its name; None: free text


@dataclass(frozen=True)
class Completion:
    """Answer to one message."""

    text: str = ""  # stripped, without thoughts
    # Word of `Sampling.top` -> probability that the answer begins with it: 0, or None for a logarithm, if a
    # server does not list it. None in place of the mapping: unknown, or the first token is a thought.
    probabilities: Mapping[str, float | None] | None = None
    tokens: int | None = None  # number generated, without the end of the sequence; a server's own count
    finished: bool = True  # whether the model ended it, not the token limit
    version: str = ""  # model version that a server reports; "": none
    usage: Mapping[str, int] = field(default_factory=dict)  # tokens by kind, as a server counts them
    error: BaseException | None = (
        None  # why there is no answer (None: there is one): a NoAnswer, or any other
    )


class Chat:
    """Base of chat models; thread-safe."""

    concurrent = 0  # requests in flight; 0: a local model, run in the calling thread
    keeps_order = True  # an image between two texts stays between them
    batch_size = 1  # messages per forward pass of a local model
    parameters = 0  # number of weights of a local model

    def describe(self) -> Json:
        """Describe, as JSON, all that decides an answer except message and sampling."""
        raise NotImplementedError

    def stream(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield (index of the message, completion) as they arrive. A failed message has an `error`; a failure
        of the whole model, such as out of memory, is raised."""
        raise NotImplementedError

    def complete(self, messages: Sequence[Message], sampling: Sampling) -> list[Completion]:
        """Return one completion per message, in order."""
        completions = dict(self.stream(messages, sampling))
        return [completions[index] for index in range(len(messages))]

    def usage(self) -> Json:
        """Return tokens, requests and cost of a served model so far; {} for a local one."""
        return {}

    def stop(self) -> None:
        """Stop sending requests; waiting calls end."""


_TAG = r"(?:think|thinking|thought|analysis)>"  # "<think>...</think>" before an answer


def strip_thoughts(text: str) -> str | None:
    """Return the text after the last closing tag of thoughts; None if they are opened and never closed."""
    answer = re.split(f"</{_TAG}", text, flags=re.IGNORECASE)[-1]
    return None if re.match(rf"\s*<{_TAG}", answer, re.IGNORECASE) else answer
