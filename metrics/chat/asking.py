"""What asks a chat, and where the chat comes from: a served model, or one of transformers; a VQA judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from nein.loading.digests import Json
from nein.loading.references import is_served
from nein.metrics.base import Described, Images, Texts, without_thoughts
from nein.metrics.chat import YES_NO, Chat, Message, Sampling, endpoint
from nein.metrics.judges.base import Answer, check_batch


def open_chat(path_or_id: str, *, batch_size: int = 1, bare: Sequence[str] = (), **how: Any) -> Chat:
    """A model that talks about images. batch_size, bare: of a local one, see `chat.local`; how: device and
    dtype, and of a served one the options of `Endpoint`. Raises MetricError."""
    if is_served(path_or_id):
        return endpoint.connect(path_or_id, **how)
    from nein.metrics.chat.local import LocalChat, load_chat

    return LocalChat(*load_chat(path_or_id, bare=bare, **how), batch_size=batch_size)


class ChatModel(Described):
    """Greedy answers of a chat, of at most `max_new_tokens` tokens. kind: what it is asked as."""

    kind = ""
    tokens = 10  # of an answer, where nothing else is said
    local: ClassVar[Mapping[str, Any]] = {}  # options of `open_chat`, where nothing else is said

    def __init__(self, chat: Chat, *, max_new_tokens: int = 0) -> None:
        self.chat, self.max_new_tokens = chat, max_new_tokens or self.tokens
        self.concurrent, self.usage, self.stop = chat.concurrent, chat.usage, chat.stop

    @classmethod
    def load(cls, path_or_id: str, *, max_new_tokens: int = 0, **how: Any) -> Any:
        return cls(open_chat(path_or_id, **{**cls.local, **how}), max_new_tokens=max_new_tokens)

    def describe(self) -> Json:
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
