"""One door to models that talk: messages in, completions out, whether the model is here (`local`) or behind
an address (`endpoint`). Judges, multiple choice, EditScore and language models are prompt -> `Chat` -> parse.

Answers are kept by what is wrapped around a chat: a leaf touches no files, so that is `nein.models.cached`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nein.loading.digests import Json

if TYPE_CHECKING:
    import numpy as np

#: A kind of failure besides those of `nein.loading.service`: the limit of tokens ended within the thoughts.
THINKING = "still thinking"


@dataclass(frozen=True)
class Message:
    """One user turn: texts and images, (H, W, 3) uint8, in their order. seed: of an answer that is drawn."""

    parts: tuple[str | np.ndarray, ...]
    seed: int | None = None

    @property
    def images(self) -> list[np.ndarray]:
        return [part for part in self.parts if not isinstance(part, str)]


@dataclass(frozen=True)
class Words:
    """The words an answer may begin with whose probabilities are asked for. any_case: "Yes" and "YES" are
    "yes"; logs: natural logarithms in place of probabilities."""

    words: tuple[str, ...]
    any_case: bool = False
    logs: bool = False


YES_NO = Words(("yes", "no"), any_case=True)


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn; temperature 0 is greedy. What is None or 0 is the model's own."""

    max_tokens: int  # of an answer, without a model's thoughts
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int = 0
    top: Words | None = None  # whose probabilities are asked for
    form: Mapping[str, Any] | None = None  # JSON schema of the answer, with its name


@dataclass(frozen=True)
class Completion:
    """One answer.

    text      Without thoughts and white space around it.
    probabilities  Word of `Sampling.top` -> how likely the answer begins with it; a word that a server does
              not list among the likeliest has 0, or no logarithm. None: the model gives none, or its first
              token is one of thoughts.
    tokens    Generated, without the end of the sequence; of a server as it counts.
    finished  The model ended it itself, not the limit of tokens.
    version   Of the model that answered, where a server says so.
    usage     Tokens by kind that a server counted (`nein.loading.service.tokens`).
    error     Why there is no answer: a NoAnswer, or what the model raised.
    """

    text: str = ""
    probabilities: Mapping[str, float | None] | None = None
    tokens: int | None = None
    finished: bool = True
    version: str = ""
    usage: Mapping[str, int] = field(default_factory=dict)
    error: BaseException | None = None


class Chat:
    """A model that talks; threads may share one."""

    concurrent = 0  # messages in flight side by side; 0: a model that is here, in the thread that asks
    keeps_order = True  # an image between two texts stays there
    batch_size = 1  # of a model that is here: messages that it answers together
    parameters = 0  # and how many weights it has

    def describe(self) -> Json:
        """All that decides an answer but message and sampling, JSON-serialisable."""
        raise NotImplementedError

    def stream(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """(place among the messages, completion) as they come. A message that fails has an `error`; what
        concerns the model as a whole, such as memory that ran out, is raised."""
        raise NotImplementedError

    def complete(self, messages: Sequence[Message], sampling: Sampling) -> list[Completion]:
        found = dict(self.stream(messages, sampling))
        return [found[index] for index in range(len(messages))]

    def usage(self) -> Json:
        """What the work of a served model has taken so far."""
        return {}

    def stop(self) -> None:
        """From now on nothing is sent, and no call waits."""
