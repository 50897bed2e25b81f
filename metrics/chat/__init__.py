"""One door to models that talk: messages in, completions out, whether the model is here (`local`) or behind
an address (`endpoint`). Judges, multiple choice, EditScore and language models are prompt -> `Chat` -> parse.

Answers are kept by what is wrapped around a chat: a leaf touches no files, so that is `nein.models.cached`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nein.loading.references import is_served
from nein.metrics.base import Described, Images, Texts, without_thoughts
from nein.metrics.judges.base import Answer, check_batch

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

    def describe(self) -> dict[str, Any]:
        """All that decides an answer but message and sampling, JSON-serialisable."""
        raise NotImplementedError

    def stream(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """(place among the messages, completion) as they come. A message that fails has an `error`; what
        concerns the model as a whole, such as memory that ran out, is raised."""
        raise NotImplementedError

    def complete(self, messages: Sequence[Message], sampling: Sampling) -> list[Completion]:
        found = dict(self.stream(messages, sampling))
        return [found[index] for index in range(len(messages))]

    def usage(self) -> dict[str, Any]:
        """What the work of a served model has taken so far."""
        return {}

    def stop(self) -> None:
        """From now on nothing is sent, and no call waits."""


def open_chat(path_or_id: str, *, batch_size: int = 1, bare: Sequence[str] = (), **how: Any) -> Chat:
    """A model that talks about images. batch_size, bare: of a local one, see `chat.local`; how: device and
    dtype, and of a served one the options of `Endpoint`. Raises MetricError."""
    if is_served(path_or_id):
        from nein.metrics.chat import endpoint

        return endpoint.connect(path_or_id, **how)
    from nein.metrics.chat.local import LocalChat, load_chat

    return LocalChat(*load_chat(path_or_id, bare=bare, **how), batch_size=batch_size)


class ChatModel(Described):
    """Greedy answers of a chat, of at most `max_new_tokens` tokens. kind: what it is asked as."""

    kind = ""
    tokens = 10  # of an answer, where nothing else is said

    def __init__(self, chat: Chat, *, max_new_tokens: int = 0) -> None:
        self.chat, self.max_new_tokens = chat, max_new_tokens or self.tokens
        self.concurrent, self.usage, self.stop = chat.concurrent, chat.usage, chat.stop

    @classmethod
    def load(cls, path_or_id: str, *, max_new_tokens: int = 0, **how: Any) -> Any:
        return cls(open_chat(path_or_id, **how), max_new_tokens=max_new_tokens)

    def describe(self) -> dict[str, Any]:
        decoding = f"greedy, at most {self.max_new_tokens} tokens"
        return {**self.chat.describe(), "kind": self.kind, "decoding": decoding}


def in_turns(rows: Sequence[Sequence[Any]]) -> list[tuple[int, int]]:
    """(row, place in it) of every cell: the first of all rows, then the second, ..."""
    longest = max(map(len, rows), default=0)
    return [(i, k) for k in range(longest) for i, row in enumerate(rows) if k < len(row)]


class ChatJudge(ChatModel):
    """A judge "vqa". P(yes) and P(no) are of the first token, of a served model lower bounds; a question that
    stays without an answer raises for the whole call."""

    kind = "vqa"
    template = "question"

    def ask(self, images: Images, questions: Texts) -> list[list[Answer]]:
        """`questions[i]`: plain questions about `images[i]`, (H, W, 3) uint8. Raises NoAnswer, or what the
        model raised."""
        check_batch(images, questions, "questions")
        cells = in_turns(questions)
        messages = [Message((images[i], questions[i][k])) for i, k in cells]
        completions = self.chat.complete(messages, Sampling(self.max_new_tokens, top=YES_NO))
        answers: dict[tuple[int, int], Answer] = {}
        for cell, one in zip(cells, completions, strict=True):
            if one.error is not None:
                raise one.error
            if (text := without_thoughts(one.text)) is None:
                raise ValueError("the limit of tokens ended within the model's thoughts")
            p = one.probabilities or {}
            answers[cell] = Answer(text.strip(), one.tokens or 0, p.get("yes"), p.get("no"), one.version)
        return [[answers[i, k] for k in range(len(row))] for i, row in enumerate(questions)]
