"""Chat models: messages in, completions out, by a local model (`local`) or an OpenAI-compatible endpoint
(`endpoint`). Judges, multiple choice, EditScore and language models build a prompt, ask a `Chat`, parse.

Nothing is cached here; `nein.models.cached` wraps a chat for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nein.loading.digests import Json

if TYPE_CHECKING:
    import numpy as np

#: Kind of failure, besides those of `nein.loading.service`: the token limit ended within thoughts.
THINKING = "still thinking"


@dataclass(frozen=True)
class Message:
    """One user turn: texts and images (H, W, 3) uint8 in order. seed: of a sampled answer."""

    parts: tuple[str | np.ndarray, ...]
    seed: int | None = None

    @property
    def images(self) -> list[np.ndarray]:
        return [part for part in self.parts if not isinstance(part, str)]


@dataclass(frozen=True)
class Words:
    """First words of an answer whose probabilities are requested."""

    words: tuple[str, ...]
    any_case: bool = False  # "Yes" and "YES" count as "yes"
    logs: bool = False  # natural logarithms instead of probabilities


YES_NO = Words(("yes", "no"), any_case=True)


@dataclass(frozen=True)
class Sampling:
    """Decoding; None and 0 stand for the model's defaults."""

    max_tokens: int  # of an answer, without thoughts
    temperature: float = 0.0  # 0: greedy
    top_p: float | None = None
    top_k: int = 0
    top: Words | None = None  # request their probabilities
    form: Mapping[str, Any] | None = None  # JSON schema of the answer, with its name


@dataclass(frozen=True)
class Completion:
    """One answer.

    text      Stripped, without thoughts.
    probabilities  Word of `Sampling.top` -> probability that the answer begins with it; 0, or None for a
              logarithm, if a server does not list it. None: not available, or the first token is a thought.
    tokens    Number generated, without the end of the sequence; a server's own count.
    finished  The model ended it, not the token limit.
    version   Model version that a server reports.
    usage     Tokens by kind that a server counted (`nein.loading.service.tokens`).
    error     Why there is no answer: a NoAnswer, or the model's exception.
    """

    text: str = ""
    probabilities: Mapping[str, float | None] | None = None
    tokens: int | None = None
    finished: bool = True
    version: str = ""
    usage: Mapping[str, int] = field(default_factory=dict)
    error: BaseException | None = None


class Chat:
    """Chat model; thread-safe."""

    concurrent = 0  # requests in flight; 0: a local model, run in the calling thread
    keeps_order = True  # an image between two texts stays between them
    batch_size = 1  # messages per forward pass of a local model
    parameters = 0  # number of weights of a local model

    def describe(self) -> Json:
        """All that decides an answer except message and sampling, JSON-serializable."""
        raise NotImplementedError

    def stream(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield (index of the message, completion) as they arrive. A failed message has an `error`; failures
        of the model as a whole, such as out of memory, are raised."""
        raise NotImplementedError

    def complete(self, messages: Sequence[Message], sampling: Sampling) -> list[Completion]:
        """One completion per message, in order."""
        completions = dict(self.stream(messages, sampling))
        return [completions[index] for index in range(len(messages))]

    def usage(self) -> Json:
        """Tokens, requests and cost of a served model so far."""
        return {}

    def stop(self) -> None:
        """Stop sending requests; waiting calls end."""
